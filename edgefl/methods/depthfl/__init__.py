"""DepthFL: a classifier at every depth."""
