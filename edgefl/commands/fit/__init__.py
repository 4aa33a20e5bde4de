"""``edgefl fit``: the smallest change of a scenario that lets a device take part."""
