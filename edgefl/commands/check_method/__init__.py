"""``edgefl.check_method``: the contract between a method and everything that runs it, held on a tiny federation."""
