"""``edgefl compare``: runs side by side, with the spread over their seeds."""
