"""From a scenario to what is simulated: its parts, its planner, what this machine needs for it."""
