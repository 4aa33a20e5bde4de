"""``edgefl doctor``: whether this machine can run edgefl."""
