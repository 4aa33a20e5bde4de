"""``edgefl tune``: the settings of a scenario that score best on validation."""
