"""Planning: what a client would do in a round and what it would cost, before anything runs."""

from edgefl.planning.coverage import DataCoverage
from edgefl.planning.payload_options import PayloadOptions
from edgefl.planning.planner import Plan, Planner
from edgefl.planning.round_options import EvaluationOptions, RoundOptions
from edgefl.planning.setup import Clients, Setup
from edgefl.planning.versions import ClientVersions, Versions, final_blocks, stale

__all__ = [
    "ClientVersions",
    "Clients",
    "DataCoverage",
    "EvaluationOptions",
    "PayloadOptions",
    "Plan",
    "Planner",
    "RoundOptions",
    "Setup",
    "Versions",
    "final_blocks",
    "stale",
]
