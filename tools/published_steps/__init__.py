"""Predictions held against published measurements of training (``tools/published.py``)."""
