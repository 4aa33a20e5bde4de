"""Flights: when their phases end, in closed form or as events, on separate links or on a shared one."""
