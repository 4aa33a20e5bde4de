"""``edgefl analyse``: what each kind of clients is worth, gradients, drift, matching."""
