"""Measurements of this computer: compute and memory rates, power, links to other machines, and measured works."""
