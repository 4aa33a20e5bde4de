"""Who fits in a stage, and the sentences that say that nobody does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgefl.records.summary import RunSummary


@dataclass(frozen=True)
class Fitting:
    """How many clients of a kind fit in a stage, and by budget the least that one needs which it refuses."""

    stage: int
    kind: str
    eligible: int
    least: Mapping[str, float]


def nobody_fits(cells: Sequence[Fitting]) -> list[str]:
    """Sentences that say that nobody can train: at all, or of a kind or in a stage; none if somebody can everywhere."""
    kinds = dict.fromkeys(cell.kind for cell in cells)
    idle = [kind for kind in kinds if not any(cell.eligible for cell in cells if cell.kind == kind)]
    stages = dict.fromkeys(cell.stage for cell in cells if cell.kind not in idle)
    parts = [(f"no {kind} client can train", [cell for cell in cells if cell.kind == kind]) for kind in idle]
    if len(idle) == len(kinds):
        parts = [("nobody can train", list(cells))] if cells else []
    for stage in stages:
        of_stage = [cell for cell in cells if cell.stage == stage and cell.kind not in idle]
        if not any(cell.eligible for cell in of_stage):
            parts.append((f"nobody can train in stage {stage}", of_stage))
    return [f"{said}{_least_need(of)}; edgefl fit finds changes" for said, of in parts]


def _least_need(cells: Sequence[Fitting]) -> str:
    needs = [(name, amount, cell) for cell in cells for name, amount in cell.least.items()]
    if not needs:
        return ""
    name = Counter(name for name, _, _ in needs).most_common(1)[0][0]
    amount, cell = min(((amount, cell) for each, amount, cell in needs if each == name), key=lambda each: each[0])
    from edgefl.devices.budgets import budget_named  # what all fit in is read without the arrays of fleets

    budget = budget_named(name)
    return f": the least need of {budget.noun} is {budget.quantity.show(amount)} ({cell.kind}, stage {cell.stage})"


def fitting_of(facts: RunSummary) -> list[Fitting]:
    """Who fitted in a run, or was sent off all the same (``gate: everyone``), by stage and kind."""
    sent = Counter[tuple[int, str]]()
    for row in facts.costs:
        sent[row.stage, row.kind] += row.client_rounds
    return [
        Fitting(stage.stage, kind, max(counts.most_eligible, sent[stage.stage, kind]), counts.least_needs)
        for stage in facts.stages
        for kind, counts in stage.kinds.items()
    ]
