"""``edgefl run``: what a run needs and is made of, its rounds, and how it goes on."""
