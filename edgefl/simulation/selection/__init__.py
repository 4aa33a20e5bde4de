"""Selection of the clients of a round."""

from edgefl.simulation.selection.base import Candidates, Chosen, Random, RoundRobin, Selection
from edgefl.simulation.selection.orders import NO_CLIENTS

__all__ = ["NO_CLIENTS", "Candidates", "Chosen", "Random", "RoundRobin", "Selection"]
