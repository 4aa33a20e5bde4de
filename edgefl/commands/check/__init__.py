"""``edgefl.check_method``: check on a tiny federation that a method keeps its contract with the code that runs it."""
