"""``edgefl explain``: what a round's length is made of, and why clients were absent."""
