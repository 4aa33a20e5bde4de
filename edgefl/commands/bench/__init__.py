"""``edgefl bench``: variants held against each other on fleets of small and free devices."""
