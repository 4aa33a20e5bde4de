"""Planning: what a client would do in a round and what it would cost, before anything runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgefl import first_use

if TYPE_CHECKING:
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
    from edgefl.planning.judge import StageChoices, choose_stages
    from edgefl.planning.meta_state import shapes, shapes_alone
    from edgefl.planning.offers import Priced, Prices, choose
    from edgefl.planning.payload_options import PayloadOptions, encoded
    from edgefl.planning.planner import PLANNED, Demand, Plan, PlanCell, Planner, Start, WorkKey
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
    "DEVICE", "JOB", "OWNER", "ROUND", "PLANNED", "StageChoices", "PlanCell", "ClientVersions", "Clients",
    "DataCoverage", "Demand", "EvaluationOptions", "PayloadOptions", "Plan", "Planner", "Priced", "Prices",
    "RoundOptions", "Setup", "Start", "Verdict", "Verdicts", "Versions", "WorkKey", "always", "choose",
    "choose_stages", "encoded", "final_blocks", "frozen", "gate", "memory_limit", "older", "preinstalled", "shapes",
    "shapes_alone", "stale",
]  # fmt: skip

_MODULES = {
    "DataCoverage": "coverage",
    **dict.fromkeys(("DEVICE", "JOB", "OWNER", "ROUND", "Verdict", "Verdicts", "gate", "memory_limit"), "eligibility"),
    **dict.fromkeys(("StageChoices", "choose_stages"), "judge"),
    **dict.fromkeys(("shapes", "shapes_alone"), "meta_state"),
    **dict.fromkeys(("Priced", "Prices", "choose"), "offers"),
    **dict.fromkeys(("PayloadOptions", "encoded"), "payload_options"),
    **dict.fromkeys(("PLANNED", "PlanCell", "Demand", "Plan", "Planner", "Start", "WorkKey"), "planner"),
    **dict.fromkeys(("EvaluationOptions", "RoundOptions"), "round_options"),
    **dict.fromkeys(("Clients", "Setup"), "setup"),
    **dict.fromkeys(
        ("ClientVersions", "Versions", "always", "final_blocks", "frozen", "older", "preinstalled", "stale"), "versions"
    ),
}
"""Module of each public name."""

__getattr__ = first_use.imports(__name__, _MODULES)
