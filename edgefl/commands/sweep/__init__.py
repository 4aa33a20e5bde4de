"""``edgefl sweep``: who can take part under other budgets, schedules, models and fleets."""
