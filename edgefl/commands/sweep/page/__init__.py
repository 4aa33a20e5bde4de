"""``edgefl explore``: a page in which budgets and choices are moved by hand."""
