"""``edgefl run --verify``: check a run's records against rules of conservation."""
