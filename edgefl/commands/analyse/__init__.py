"""``edgefl analyse``: the value of each kind of clients, gradients, drift, matching."""
