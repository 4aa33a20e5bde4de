"""``edgefl validate``: check a scenario without running it, or print its JSON Schema."""
