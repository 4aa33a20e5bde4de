"""Hostile inputs for edgefl: strategies that make them, a process that tries them, and a search for the smallest one."""
