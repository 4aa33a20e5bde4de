"""``edgefl fit``: the least change of a scenario that lets a device take part."""
