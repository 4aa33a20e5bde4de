"""``edgefl run --verify``: whether a run keeps the rules of conservation."""
