"""Rounds on a virtual clock."""

from edgefl.simulation.policies import Policy
from edgefl.simulation.roster import Roster
from edgefl.simulation.run_state import Journal, OnProgress, OnRound
from edgefl.simulation.selection import Selection
from edgefl.simulation.simulation import Simulation

__all__ = ["Journal", "OnProgress", "OnRound", "Policy", "Roster", "Selection", "Simulation"]
