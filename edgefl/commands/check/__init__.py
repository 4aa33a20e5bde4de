"""``edgefl check``: check on a tiny federation that a part keeps its contract with the code that runs it."""
