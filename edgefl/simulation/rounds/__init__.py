"""Rounds: synchronous ones wait for their cohort, overlapping ones don't."""
