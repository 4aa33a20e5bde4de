"""Which clients a round asks."""

from edgefl.simulation.selection.base import NOBODY, Candidates, Chosen, Random, RoundRobin, Selection

__all__ = ["NOBODY", "Candidates", "Chosen", "Random", "RoundRobin", "Selection"]
