"""Metrics of runs at equal virtual time, bytes and joules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from edgefl.report.facts import RoundFacts
from edgefl.runs import Run

AXES = ("virtual_seconds", "bytes", "energy_joules")
"""What runs are held equal in: the virtual clock, bytes moved by all clients, and energy of all clients."""
ROUNDING = 1e-9
"""Sums of equal costs in another order differ by this share at most."""

Metrics = Mapping[str, Mapping[str, float | None]]


@dataclass(frozen=True)
class Evaluation:
    """The metrics of an evaluation by kind, its round and split, and what the run had spent by then, by AXES."""

    round: int
    split: str
    metrics: Metrics
    spent: Mapping[str, float]


@dataclass(frozen=True)
class Curve:
    """The evaluations of a run, in order, and what the whole run spent, by AXES."""

    evaluations: tuple[Evaluation, ...]
    spent: Mapping[str, float]

    def last(self, axis: str, budget: float, split: str | None = None) -> Evaluation | None:
        """The last evaluation, on this split if one is given, that the budget allows; None if there is none."""
        allowed = [e for e in self.evaluations if e.spent[axis] <= budget * (1 + ROUNDING) and split in (None, e.split)]
        return allowed[-1] if allowed else None


def curve_of(run: Run) -> Curve:
    """The curve of a finished run.  Raises RunError for records that lack a field."""
    rounds, options = list(run.read(RoundFacts)), run.settings.evaluation
    spent_by_round = [
        dict(zip(AXES, amounts, strict=True))
        for amounts in zip(
            (r.ended for r in rounds),
            accumulate(float(r.download_bytes + r.upload_bytes) for r in rounds),
            accumulate(r.energy_joules for r in rounds),
            strict=True,
        )
    ]
    evaluations = tuple(
        Evaluation(r.round, options.final if r is rounds[-1] else options.split, r.metrics, spent)
        for r, spent in zip(rounds, spent_by_round, strict=True)
        if r.metrics
    )
    return Curve(evaluations, spent_by_round[-1] if spent_by_round else dict.fromkeys(AXES, 0.0))


@dataclass(frozen=True)
class Equal:
    """Runs at one ``budget``: the ``split`` of the evaluations, and each run's last evaluation within the budget."""

    axis: str
    budget: float
    split: str
    evaluations: tuple[Evaluation | None, ...]


def at_equal(curves: Sequence[Curve], splits: Sequence[str]) -> list[Equal]:
    """For each of AXES the runs' last evaluations within the largest budget that all runs reached.

    The metric is a step function of what was spent: it keeps the value of the last evaluation until the next one.  If
    these evaluations are on several splits (a run's last one is on ``evaluation.final``), those on the first of
    ``splits`` that gives every run an evaluation are taken instead, else those on the first.
    """
    found = []
    for axis in AXES:
        budget = min(curve.spent[axis] for curve in curves)
        picks = [curve.last(axis, budget) for curve in curves]
        on = {pick.split for pick in picks if pick is not None}
        if len(on) <= 1:
            found.append(Equal(axis, budget, next(iter(on), splits[0]), tuple(picks)))
            continue
        by_split = {split: [curve.last(axis, budget, split) for curve in curves] for split in splits}
        split = next((split for split, picks in by_split.items() if None not in picks), splits[0])
        found.append(Equal(axis, budget, split, tuple(by_split[split])))
    return found
