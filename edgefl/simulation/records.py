"""What is recorded of a client's verdict, a client's round and a work of the server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgefl.cost import ClientCost, ComputeCost, compute_cost
from edgefl.eligibility import Verdict
from edgefl.simulation.rounds import Flight
from edgefl.simulation.setup import Plan, Setup
from edgefl.training import Report
from edgefl.work import Source, Work

MEASURED = ("measured_peak_memory_bytes", "measured_forward_flops", "measured_backward_flops", "memory_error")
"""Measured twins of what was predicted: None where nothing was metered."""


def verdict_record(setup: Setup, plan: Plan, verdict: Verdict, round: int) -> dict[str, Any]:
    """Whether a client may take part, and what its round would cost."""
    return {
        "round": round,
        **_who(setup, plan),
        "eligible": verdict.eligible,
        "binding": verdict.binding,
        "margins": dict(verdict.margins),
        "reason": verdict.reason,
        "costs": plan.cost.budgets(),
    }


def client_record(setup: Setup, flight: Flight, report: Report | None, round: int) -> dict[str, Any]:
    """What a selected client's round cost and came to; ``report`` is absent where a late one's was dropped."""
    plan = flight.plan
    cost = ClientCost(plan.cost.compute, plan.cost.traffic, flight.duration)
    return {
        "round": round,
        **_who(setup, plan),
        "outcome": "finished" if flight.finished else "late",
        "loss": report.result.loss if report is not None and flight.finished else None,
        **cost.record(),
        **_measured(plan.work, setup.clients.client(plan.client), cost.compute, report),
    }


def server_record(
    setup: Setup, work: Work, when: str, computed: ComputeCost, seconds: float, report: Report
) -> dict[str, Any]:
    """What a work of the server cost; ``when`` says at which point of the round."""
    return {
        "when": when,
        "kind": work.kind,
        "steps": [p.step for p in work.passes],
        "seconds": seconds,
        "peak_memory_bytes": computed.peak_memory_bytes,
        "forward_flops": computed.forward_flops,
        "backward_flops": computed.backward_flops,
        **_measured(work, setup.clients.server(), computed, report),
    }


def _who(setup: Setup, plan: Plan) -> dict[str, Any]:
    return {
        "client": plan.client,
        "kind": plan.kind,
        "device": setup.fleet.device(plan.client).name,
        "link": setup.fleet.link(plan.client).name,
        "stage": plan.stage.index,
        "samples": int(setup.clients.client_samples[plan.client]),
    }


def _measured(work: Work, source: Source, predicted: ComputeCost, report: Report | None) -> Mapping[str, Any]:
    if report is None or report.measured is None:
        return dict.fromkeys(MEASURED)
    peak = report.measured.peak_memory_bytes
    found = compute_cost(work, source, report.measured.trace)
    error = (predicted.peak_memory_bytes - peak) / peak if peak else None
    return dict(zip(MEASURED, (peak, found.forward_flops, found.backward_flops, error), strict=True))
