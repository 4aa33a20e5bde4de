"""``edgefl devices``: the profile library, profiles of one's own, and that of this machine."""
