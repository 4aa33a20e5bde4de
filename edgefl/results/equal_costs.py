"""Runs at equal costs: each one's metrics within the largest virtual time, bytes or joules that all of them reached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import isnan

from edgefl.records.record import or_nan
from edgefl.results.facts import RoundFacts
from edgefl.runs import Run

AXES = {
    "virtual_seconds": "virtual time", "bytes": "traffic of all clients", "energy_joules": "energy of all clients",
}  # fmt: skip
"""What runs spend over their rounds and are held equal in, and its titles; names end with the unit."""
ROUNDING = 1e-9
"""Sums of equal costs in another order differ by this share at most (see ``results.conservation.CLOSE``)."""

Metrics = Mapping[str, Mapping[str, float | None]]


@dataclass(frozen=True)
class KindEvaluation:
    """The metrics of an evaluation by kind, its round and split, and what the run had spent by then, by AXES."""

    round: int
    split: str
    metrics: Metrics
    spent: Mapping[str, float]


@dataclass(frozen=True)
class Curve:
    """The evaluations of a run, in order, what the whole run spent, by AXES, and whether anybody trained in it."""

    evaluations: tuple[KindEvaluation, ...]
    spent: Mapping[str, float]
    has_update: bool = True

    def last(self, axis: str, budget: float, split: str | None = None) -> KindEvaluation | None:
        """The last evaluation, on this split if one is given, that the budget allows; None if there is none."""
        allowed = [e for e in self.evaluations if e.spent[axis] <= budget * (1 + ROUNDING) and split in (None, e.split)]
        return allowed[-1] if allowed else None


def curve_of(run: Run) -> Curve:
    """The curve of a finished run.  Raises RunError for records that lack a field."""
    rounds = list(run.read(RoundFacts))
    spent_by_round = [
        dict(zip(AXES, amounts, strict=True))
        for amounts in zip(
            (r.finished_virtual_seconds for r in rounds),
            accumulate(float(r.carried_bytes) for r in rounds),
            accumulate(or_nan(r.energy_joules) for r in rounds),
            strict=True,
        )
    ]
    evaluations = tuple(
        KindEvaluation(r.round, r.split, r.metrics, spent)
        for r, spent in zip(rounds, spent_by_round, strict=True)
        if r.metrics
    )
    spent = spent_by_round[-1] if spent_by_round else dict.fromkeys(AXES, 0.0)
    return Curve(evaluations, spent, any(r.finished for r in rounds))


@dataclass(frozen=True)
class Equal:
    """Runs at one ``budget``: the ``split`` of the evaluations, and each run's last evaluation within the budget."""

    axis: str
    budget: float
    split: str
    evaluations: tuple[KindEvaluation | None, ...]


def at_equal(curves: Sequence[Curve], splits: Sequence[str]) -> list[Equal]:
    """For each of AXES the runs' last evaluations within the largest budget that all runs with an update reached.

    An axis is left out that isn't known of a run, such as the energy of real devices.

    The metric is a step function of what was spent: it keeps the value of the last evaluation until the next one.  If
    these evaluations are on several splits (a run's last one is on ``evaluation.final``), those on the first of
    ``splits`` that gives every run an evaluation are taken instead, else those on the first.
    """
    found = []
    for axis in AXES:
        if any(isnan(curve.spent[axis]) for curve in curves):
            continue
        budget = min((c.spent[axis] for c in curves if c.has_update), default=max(c.spent[axis] for c in curves))
        picks = [curve.last(axis, budget) for curve in curves]
        on = {pick.split for pick in picks if pick is not None}
        if len(on) <= 1:
            found.append(Equal(axis, budget, next(iter(on), splits[0]), tuple(picks)))
            continue
        by_split = {split: [curve.last(axis, budget, split) for curve in curves] for split in splits}
        split = next((split for split, picks in by_split.items() if None not in picks), splits[0])
        found.append(Equal(axis, budget, split, tuple(by_split[split])))
    return found
