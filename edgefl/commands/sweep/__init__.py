"""``edgefl sweep``: which clients can take part under other budgets, schedules, models and fleets."""
