"""Attacks on whole commands of edgefl, for ``tools/attack.py``: what is done to them, and what must hold after it."""
