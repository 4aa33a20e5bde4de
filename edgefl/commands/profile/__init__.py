"""``edgefl profile``: what a client's round costs, who of a fleet can pay it, and what has changed since."""
