"""Which of several variants is best over seeds, and by how much: seeds are paired, and chance is told from a gap.

A seed draws the same data, first weights and cohorts for every variant.  So the differences of two variants, seed by
seed, spread less than their scores, and it is the differences that intervals and tests are about.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, product
from math import inf, isfinite, sqrt
from typing import Any

import numpy as np
from scipy.special import stdtr, stdtrit

from edgefl import seeds
from edgefl.arrays import Floats
from edgefl.records.summary import SeedFigure
from edgefl.results.sentences import join_names, some_names
from edgefl.results.spread import SeedSpread

LEVEL = 0.95
"""Level of intervals; a winner is named and ranks are apart at the error of 5 %."""
POWER = 0.8
"""Probability of showing a gap that is as large as ``PairedGap.detectable``: the usual one (Cohen 1988)."""
MOST_SEEDS = 10_000
"""``seeds_needed`` doesn't search beyond it: nobody trains so often."""
RESAMPLES = 10_000
"""Of the bootstrap: the ends of an interval of 95 % then stand on 250 resamples each.  More take memory and time in
proportion."""
ROUNDING = 1e-12
"""Scores that differ by at most this share of the larger one are equal: sums of equal terms in another order."""


@dataclass(frozen=True)
class Interval:
    """From ``low`` to ``high``, both included."""

    low: float
    high: float

    @property
    def holds_zero(self) -> bool:
        """Whether 0 lies in it."""
        return self.low <= 0 <= self.high


@dataclass(frozen=True)
class PairedGap:
    """The gap of two variants, first minus second, over the seeds that both have.

    ``mean`` and ``deviation`` (n - 1) are those of the differences by seed.  ``student`` is Student's t interval of the
    mean, ``bootstrap`` the percentile interval over seeds (Efron and Tibshirani 1993, 13.3), ``p`` that of the
    two-sided paired t test.  With fewer than two seeds, and where the differences are too large for a float, all but
    ``mean`` and ``seeds`` are None.  Differences that are all equal have intervals without width, and p = 0 unless they
    are 0.

    ``detectable`` is the gap that so many seeds with this deviation show with 80 % power in a t test at the level of
    the intervals (``detectable_gap``).
    """

    mean: float
    seeds: int
    deviation: float | None = None
    student: Interval | None = None
    bootstrap: Interval | None = None
    p: float | None = None
    detectable: float | None = None

    @property
    def is_significant(self) -> bool:
        """Whether the gap is beyond chance: neither interval holds 0."""
        return not any(interval is None or interval.holds_zero for interval in (self.student, self.bootstrap))


def detectable_gap(deviation: float, seeds: int, *, level: float = LEVEL) -> float:
    """The gap that so many seeds, two or more, show with 80 % power in a paired t test at this level.

    It is ``(t(1 - (1 - level) / 2) + t(0.8)) * deviation / sqrt(seeds)``, quantiles with ``seeds - 1`` degrees of
    freedom.  It takes the central t distribution for the noncentral one, and the deviation of a sample for that of the
    population.
    """
    quantiles = stdtrit(seeds - 1, 1 - (1 - level) / 2) + stdtrit(seeds - 1, POWER)
    return float(quantiles) * deviation / sqrt(seeds)


def seeds_needed(gap: float, deviation: float) -> int | None:
    """The fewest seeds, two or more, that show a gap with this deviation over seeds with 80 % power.

    None if there is no gap, or if they are more than MOST_SEEDS.
    """
    counts = range(2, MOST_SEEDS + 1)
    place = bisect_left(counts, True, key=lambda n: detectable_gap(deviation, n) <= abs(gap))
    return counts[place] if gap and place < len(counts) else None


def paired_gap(first: Sequence[float], second: Sequence[float], *, level: float = LEVEL) -> PairedGap:
    """Compare two variants by their scores over the same seeds, in the same order: first minus second.

    The bootstrap has its generator from a fixed seed, so the same numbers have the same interval.  Raises ValueError
    for other numbers of scores, none, and scores that aren't finite.
    """
    a, b = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    if a.shape != b.shape or not len(a) or not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise ValueError(f"two variants need a finite score each for every seed, here {len(a)} and {len(b)}")
    with np.errstate(over="ignore", invalid="ignore"):
        gaps = a - b
        gaps[np.abs(gaps) <= ROUNDING * np.maximum(np.abs(a), np.abs(b))] = 0.0
        n, mean = len(gaps), float(gaps.mean())
        if n < 2 or not isfinite(deviation := float(gaps.std(ddof=1))):
            return PairedGap(mean, n)
    error, tail = deviation / sqrt(n), (1 - level) / 2
    reach = float(stdtrit(n - 1, 1 - tail))
    if error:
        p = 2 * float(stdtr(n - 1, -abs(mean) / error))
    else:
        p = 0.0 if mean else 1.0
    low, high = np.quantile(_resampling(n) @ gaps, [tail, 1 - tail]).tolist()
    return PairedGap(
        mean=mean,
        seeds=n,
        deviation=deviation,
        student=Interval(mean - reach * error, mean + reach * error),
        bootstrap=Interval(low, high),
        p=p,
        detectable=detectable_gap(deviation, n, level=level),
    )


@lru_cache(maxsize=4)
def _resampling(n: int) -> Floats:
    """The share of each of n seeds in each resample: `[RESAMPLES, n]`."""
    drawn = seeds.generator(0, "bootstrap over seeds").integers(0, n, (RESAMPLES, n))
    cells = np.arange(RESAMPLES)[:, None] * n + drawn
    return np.bincount(cells.ravel(), minlength=RESAMPLES * n).reshape(RESAMPLES, n) / n


def holm(p_values: Sequence[float]) -> list[float]:
    """p values of several tests, adjusted so that any false finding has the probability of one (Holm 1979)."""
    adjusted, highest = [0.0] * len(p_values), 0.0
    for step, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        highest = max(highest, min(1.0, (len(p_values) - step) * p_values[index]))
        adjusted[index] = highest
    return adjusted


# --- the winner ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Winner:
    """The best variant over seeds, if the seeds show it.

    ``name`` is that of the best mean if it is ahead of each other variant, else None; then ``tied`` has the best and
    those that aren't shown to be behind it, best first.  ``gap`` says how far the best is ahead of the next best (above
    0 where less is better too), None if no other takes part.  ``detectable`` is the gap that these seeds could have
    shown with 80 % power, before Holm's adjustment: the largest of the comparisons with tied ones, or that with the
    next best.
    """

    name: str | None
    tied: tuple[str, ...] = ()
    gap: PairedGap | None = None
    detectable: float | None = None


def winner_of(scores: Mapping[str, Sequence[float | None]], *, higher: bool) -> Winner:
    """The variant with the best mean, named only if it is ahead of each other one beyond what seeds do by chance.

    It is ahead of another if the paired t test says so at 5 %, with Holm's adjustment over its comparisons with all
    others, and the bootstrap interval of the gap doesn't hold 0.  With fewer than two seeds nobody is.

    Args:
        scores: By variant, over the same seeds in the same order.  A variant with a score that is None (it diverged, or
            nobody can train it) or isn't finite takes no part: it is behind all that do.
        higher: Whether more is better.

    Raises:
        ValueError: The variants have other numbers of scores.
    """
    values = _complete_scores(scores, higher=higher)
    if not values:
        return Winner(None)
    best, *others = values
    gaps = {name: paired_gap(values[best], values[name]) for name in others}
    shown = _shown_gaps(gaps)
    close = [name for name in others if name not in shown]
    named = not close and len(values[best]) > 1
    could = [gaps[name].detectable for name in close or others[:1]]
    return Winner(
        name=best if named else None,
        tied=() if named else (best, *close),
        gap=gaps[others[0]] if others else None,
        detectable=max((each for each in could if each is not None), default=None),
    )


def _complete_scores(scores: Mapping[str, Sequence[float | None]], *, higher: bool) -> dict[str, list[float]]:
    """The scores of variants that have one for each seed, the best mean first, below 0 where less is better."""
    if len({len(of) for of in scores.values()}) > 1:
        raise ValueError(f"variants need a score for each seed: { ({name: len(of) for name, of in scores.items()}) }")
    values: dict[str, list[float]] = {}
    for name, of in scores.items():
        known = [score if higher else -score for score in of if score is not None and isfinite(score)]
        if known and len(known) == len(of):
            values[name] = known
    return {name: values[name] for name in sorted(values, key=lambda name: (-sum(values[name]), name))}


def _shown_gaps(gaps: Mapping[Any, PairedGap]) -> set[Any]:
    """Those of gaps that are judged together that are beyond chance: by Holm's adjustment and by the bootstrap."""
    adjusted = holm([1.0 if gap.p is None else gap.p for gap in gaps.values()])
    return {
        key for p, (key, gap) in zip(adjusted, gaps.items(), strict=True)
        if p < 1 - LEVEL and gap.bootstrap is not None and not gap.bootstrap.holds_zero
    }  # fmt: skip


def standing_of(scores: Mapping[str, Sequence[float | None]], *, higher: bool) -> str:
    """Who is behind whom over seeds, and where that isn't shown, which gap these seeds could have shown, in words.

    A variant is behind another by the rule of ``winner_of``.  Without a winner the gaps of all pairs are judged
    together.  What could be shown is ``detectable_gap`` at 5 % over the number of these gaps.  "" with fewer than two
    seeds, or two variants that take part.
    """
    values, winner = _complete_scores(scores, higher=higher), winner_of(scores, higher=higher).name
    best, *others = values or [""]
    if not others or (seeds := len(values[best])) < 2:
        return ""
    pairs = [pair for pair in combinations(values, 2) if winner in (None, pair[0])]
    gaps = {pair: paired_gap(values[pair[0]], values[pair[1]]) for pair in pairs}
    shown, told = _shown_gaps(gaps), []
    ahead: dict[tuple[str, ...], list[str]] = {}
    for worse in others:
        ahead.setdefault(tuple(name for name in values if (name, worse) in shown), []).append(worse)
    for better, behind in ahead.items():
        if better:
            by = _amounts([gaps[pair].mean for pair in product(better, behind)])
            told.append(f"{_are(behind)} behind {some_names(better)} by {by}")
    if told:
        told[-1] += f" (paired over {seeds} seeds, beyond chance)"
    if close := [worse for worse in others if (best, worse) not in shown]:
        level = 1 - (1 - LEVEL) / len(gaps)
        could = _amounts([detectable_gap(gaps[best, name].deviation or 0.0, seeds, level=level) for name in close])
        by = _amounts([gaps[best, name].mean for name in close])
        told.append(f"{_are(close)} not shown to be behind {best}: by {by}, where {seeds} seeds could show {could}")
    return "; ".join(told)


def _are(names: Sequence[str]) -> str:
    return f"{some_names(names)} {'is' if len(names) == 1 else 'are'}"


def _amounts(gaps: Sequence[float]) -> str:
    """Up to three gaps in the order of their names; of more the least and the largest."""
    return join_names([f"{gap:.3f}" for gap in gaps]) if len(gaps) < 4 else f"{min(gaps):.3f} to {max(gaps):.3f}"


def rival_scores(
    names: Iterable[str], of_seeds: Sequence[Sequence[int]], values: Sequence[Sequence[float | None]],
    rivals: Sequence[object],
) -> Iterator[dict[str, list[float | None]]]:  # fmt: skip
    """The values of rows of runs over the seeds that rivals share, for each group of rivals.

    ``of_seeds`` are the seeds of each row, in the order of its values.  Rows are ``rivals`` if they have equal ones;
    None takes no part (``facts.rivals_of``).
    """
    rows = [(name, dict(zip(*row, strict=True))) for name, *row in zip(names, of_seeds, values, strict=True)]
    for group in dict.fromkeys(each for each in rivals if each is not None):
        mine = {name: row for (name, row), each in zip(rows, rivals, strict=True) if each == group}
        shared = [seed for seed in next(iter(mine.values())) if all(seed in row for row in mine.values())]
        yield {name: [row[seed] for seed in shared] for name, row in mine.items()}


def figures_of(
    of_seeds: Sequence[Sequence[int]], spreads: Sequence[SeedSpread], rivals: Sequence[object], *, higher: bool
) -> list[SeedFigure]:
    """A column of a table: a figure for each row of runs, the best of its rivals marked by the seeds that these share.

    The arguments are those of ``rival_scores``; ``higher``: more is better.
    """
    best = set[str]()
    values = [spread.values for spread in spreads]
    for scores in rival_scores(map(str, range(len(spreads))), of_seeds, values, rivals):
        winner = winner_of(scores, higher=higher)
        best |= {winner.name} if winner.name is not None and winner.gap is not None else set()
    return [
        SeedFigure(
            mean=spread.mean,
            deviation=spread.deviation,
            half_width=spread.half_width,
            values=list(spread.values),
            diverged=spread.diverged,
            best=str(index) in best,
        )
        for index, spread in enumerate(spreads)
    ]


# --- ranks -----------------------------------------------------------------------------------------------------------


def mean_ranks(blocks: Sequence[Mapping[str, float | None]], *, higher: bool) -> dict[str, float]:
    """Rank the variants within each block, such as a fleet, and take the means over the blocks: 1 is best.

    Equal scores share the mean of their ranks; those without a score (None) share the last ranks.  Raises ValueError
    if there is no block, or one has other variants than the first.
    """
    if not blocks or any(block.keys() != blocks[0].keys() for block in blocks):
        raise ValueError(f"ranks need one block or more with the same variants: {[sorted(block) for block in blocks]}")
    sign = -1.0 if higher else 1.0
    costs = np.array([[inf if x is None else sign * x for x in map(block.get, blocks[0])] for block in blocks])
    below = (costs[:, None, :] < costs[:, :, None]).sum(axis=2)
    equal = (costs[:, None, :] == costs[:, :, None]).sum(axis=2)
    return dict(zip(blocks[0], (below + (equal + 1) / 2).mean(axis=0).tolist(), strict=True))
