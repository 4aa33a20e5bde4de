"""Clients under way: when their phases end, in closed form or as events, alone or on a shared line."""
