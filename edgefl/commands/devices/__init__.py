"""``edgefl devices check``."""
