"""Who can take part: each client's plan against its budgets, in every way the schedule offers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgefl.eligibility import Verdict, gate
from edgefl.simulation.ledger import Ledger, Versions
from edgefl.simulation.setup import Plan, Planner, Setup


def verdicts_of(plans: Sequence[Plan], setup: Setup) -> dict[int, Verdict]:
    """The gate's verdict on each plan; a round's deadline is a budget of seconds for everyone."""
    if not plans:
        return {}
    rows = np.array([p.client for p in plans])
    budgets = {name: values[rows] for name, values in setup.fleet.budgets.items()}
    if setup.round.deadline is not None:
        budgets["seconds"] = np.minimum(budgets["seconds"], setup.round.deadline)
    each = [p.cost.budgets() for p in plans]
    costs = {name: np.array([cost[name] for cost in each], dtype=float) for name in budgets}
    judged = gate(costs, budgets)
    return {p.client: judged[i] for i, p in enumerate(plans)}


def judged(
    planner: Planner, round: int, ledger: Ledger, current: Versions
) -> tuple[dict[int, Plan], dict[int, Verdict]]:
    """Each client's first stage that fits its budgets, or its last candidate with the verdict that refuses it.

    By client; kinds that the method leaves out of this round are not in it.
    """
    setup = planner.setup
    plans: dict[int, Plan] = {}
    verdicts: dict[int, Verdict] = {}
    left = [
        client
        for kind in setup.clients.kinds
        if setup.method.participates(kind, round)
        for client in setup.of_kind(kind)
    ]
    for stage in setup.schedule.candidates(round):
        for client in left:
            plans[client] = planner.plan(client, round, stage, ledger.held(client), current)
        found = verdicts_of([plans[c] for c in left], setup)
        verdicts.update(found)
        left = [c for c in left if not found[c].eligible]
    return plans, verdicts
