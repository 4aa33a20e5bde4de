"""Planning: what a client would do in a round and what it would cost, before anything runs."""

from edgefl.planning.coverage import DataCoverage
from edgefl.planning.eligibility import (
    DEVICE,
    JOB,
    OWNER,
    ROUND,
    Verdict,
    Verdicts,
    gate,
    memory_limit,
)
from edgefl.planning.judge import Choices, choose_stages
from edgefl.planning.meta_state import shapes, shapes_alone
from edgefl.planning.offers import Priced, Prices, choose
from edgefl.planning.payload_options import PayloadOptions, encoded
from edgefl.planning.planner import PLANNED, Cell, Demand, Plan, Planner, Start, WorkKey
from edgefl.planning.round_options import EvaluationOptions, RoundOptions
from edgefl.planning.setup import Clients, Setup
from edgefl.planning.versions import (
    ClientVersions,
    Versions,
    always,
    final_blocks,
    frozen,
    older,
    preinstalled,
    stale,
)

__all__ = [
    "DEVICE", "JOB", "OWNER", "ROUND", "PLANNED", "Choices", "Cell", "ClientVersions", "Clients", "DataCoverage",
    "Demand", "EvaluationOptions", "PayloadOptions", "Plan", "Planner", "Priced", "Prices", "RoundOptions", "Setup",
    "Start", "Verdict", "Verdicts", "Versions", "WorkKey", "always", "choose", "choose_stages", "encoded",
    "final_blocks", "frozen", "gate", "memory_limit", "older", "preinstalled", "shapes", "shapes_alone", "stale",
]  # fmt: skip
