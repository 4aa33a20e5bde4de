"""Rounds on a virtual clock."""

from edgefl.simulation.engine import Journal, Observer, Simulation, verdicts_of
from edgefl.simulation.options import EvaluationOptions, RoundOptions
from edgefl.simulation.setup import Clients, Plan, Planner, Setup

__all__ = [
    "Clients",
    "EvaluationOptions",
    "Journal",
    "Observer",
    "Plan",
    "Planner",
    "RoundOptions",
    "Setup",
    "Simulation",
    "verdicts_of",
]
