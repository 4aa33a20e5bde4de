"""``edgefl parts``: what a scenario can name."""
