"""``edgefl new``: a commented scenario to begin with."""
