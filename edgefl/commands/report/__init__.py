"""``edgefl report``: a run as one page."""
