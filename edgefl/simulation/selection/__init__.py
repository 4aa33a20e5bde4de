"""Selection of the clients of a round."""

from edgefl.simulation.selection.base import NO_CLIENTS, Candidates, Chosen, Random, RoundRobin, Selection

__all__ = ["NO_CLIENTS", "Candidates", "Chosen", "Random", "RoundRobin", "Selection"]
