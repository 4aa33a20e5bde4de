"""Rounds on a virtual clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgefl import first_use

if TYPE_CHECKING:
    from edgefl.simulation.policies import Policy
    from edgefl.simulation.roster import Roster
    from edgefl.simulation.run_state import OnProgress, OnRound, RecordWriter
    from edgefl.simulation.selection import Selection
    from edgefl.simulation.simulation import Simulation

__all__ = ["RecordWriter", "OnProgress", "OnRound", "Policy", "Roster", "Selection", "Simulation"]

_MODULES = {
    "Policy": "policies",
    "Roster": "roster",
    **dict.fromkeys(("RecordWriter", "OnProgress", "OnRound"), "run_state"),
    "Selection": "selection",
    "Simulation": "simulation",
}
"""Module of each public name."""

__getattr__ = first_use.imports(__name__, _MODULES)
