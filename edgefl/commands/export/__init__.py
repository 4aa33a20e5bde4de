"""``edgefl export``: a run for other programs, and as figures for a paper."""
