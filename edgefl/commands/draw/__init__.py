"""``edgefl report`` and ``edgefl figures``: pictures of a run."""
