"""``edgefl sweep --page``: what a page has in which budgets and choices are moved by hand, from a scenario."""
