"""``edgefl emulate``: clients as processes of this machine, held against the simulation of the same scenario."""
