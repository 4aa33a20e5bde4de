"""Hostile inputs for edgefl: strategies that make them, a process that tries them, a search for the smallest."""
