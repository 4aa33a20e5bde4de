"""Orderings over several seeds: whether each is shown, is reversed, or can't be told from chance.

A seed draws the same data, initial weights and cohorts for every variant, so seeds are paired.  An ordering is shown if
neither 95 % interval of the gap, seed by seed, holds 0 (``paired.PairedGap``), and is reversed if that is so of the
opposite gap; otherwise it could not be shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import fmean, stdev

from edgefl.commands.compare.answer import Ordering, OrderingClaim, OrderingFigure, OrderingRow
from edgefl.records.metrics import lower_is_better
from edgefl.results.paired import paired_gap, seeds_needed

Values = Mapping[str, Mapping[str, Mapping[int, float]]]
"""A metric's value by variant, metric and seed."""
SHOWN, REVERSED, NOT_SHOWN = "shown", "reversed", "could not be shown"
"""Verdicts on a claimed ordering."""


def ordering_of_rows(title: str, values: Values, metrics: Sequence[str]) -> Ordering:
    """The means of a comparison's rows and the verdict on each pair, the row with the better mean as the better one.

    ``values`` has for each row and metric the value by seed; only seeds that every row has are compared, and only
    metrics that every row has for all of them.
    """
    rows = list(values)
    seeds = sorted(set.intersection(*({s for of in values[row].values() for s in of} for row in rows)))
    common = [m for m in metrics if all(seed in values[row].get(m, {}) for row in rows for seed in seeds)]
    claims = []
    for metric in common if seeds else ():
        for pair in combinations(rows, 2):
            sign = -1.0 if lower_is_better(metric) else 1.0  # a gap above 0 is one by which the better row is ahead
            columns = {row: [sign * values[row][metric][seed] for seed in seeds] for row in pair}
            worse, better = sorted(pair, key=lambda row: fmean(columns[row]))
            claims.append(claim_of(worse, better, metric, columns[worse], columns[better]))
    means = []
    for row in rows if seeds else ():
        columns = {metric: [values[row][metric][seed] for seed in seeds] for metric in common}
        means.append(OrderingRow(label=row, figures={metric: figure_of(column) for metric, column in columns.items()}))
    return Ordering(title=title, seeds=seeds, metrics=common, rows=means, claims=claims)


def figure_of(values: Sequence[float]) -> OrderingFigure:
    """Mean and standard deviation of a sample; the deviation of a single value is 0."""
    return OrderingFigure(mean=fmean(values), deviation=stdev(values) if len(values) > 1 else 0.0)


def claim_of(worse: str, better: str, metric: str, behind: Sequence[float], ahead: Sequence[float]) -> OrderingClaim:
    """The verdict on a pair of rows by their values seed by seed: ``behind`` of the worse, ``ahead`` of the better."""
    gap = paired_gap(ahead, behind)
    word = NOT_SHOWN if not gap.is_significant else SHOWN if gap.mean > 0 else REVERSED
    return OrderingClaim(
        worse=worse,
        better=better,
        metric=metric,
        gap=gap.mean,
        gap_deviation=gap.deviation,
        low=gap.student.low if gap.student else None,
        high=gap.student.high if gap.student else None,
        detectable=gap.detectable,
        seeds_needed=None if gap.deviation is None else seeds_needed(gap.mean, gap.deviation),
        ahead=sum(b > a for a, b in zip(behind, ahead, strict=True)),
        seeds=gap.seeds,
        verdict=word if gap.seeds > 1 else f"one seed: {NOT_SHOWN}",
    )
