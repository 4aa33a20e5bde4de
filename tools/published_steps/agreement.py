"""How far predictions are from measurements: errors and rank correlation with their bootstrap intervals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from math import exp

import numpy as np
from numpy.typing import ArrayLike, NDArray

from edgefl.arrays import Floats
from edgefl.seeds import generator
from tools.published_steps.answer import Agreement, Estimate

DRAWS = 1000
"""Efron and Tibshirani advise a thousand for percentile intervals; the answer's time grows with them."""
SEED = 42
"""Any: it fixes the draws, so that an interval is the same in every call."""
FEWEST_CLUSTERS = 5
"""A choice: resamples of four clusters are 35 at most, whose percentiles say little."""
FACTOR = 1.5
"""A choice: what docs/evidence/seconds.md counts as near."""
SHARE = 0.8
"""Of the rows, counted by device and source, that lie within an interval.  A choice: reports say 80 %."""
ROUNDING = 1e-9
"""Sums of shares of rows are off by less: sixteen twentieths are 80 %."""


def agreement(
    measured: ArrayLike, predicted: ArrayLike, clusters: Sequence[Hashable], devices: int, draws: int = DRAWS
) -> Agreement:
    """The agreement of predicted with measured values, both `[rows]` and positive.

    Intervals are from a bootstrap that draws whole ``clusters`` (one of each row): rows of one device and source are
    off together, so that drawing rows would make the intervals too narrow.  Efron and Tibshirani, An Introduction to
    the Bootstrap (1993), percentile intervals.  There are none of fewer than FEWEST_CLUSTERS clusters.
    """
    ratio = np.asarray(predicted, np.float64) / np.asarray(measured, np.float64)
    errors, off = np.abs(ratio - 1), np.abs(np.log(ratio))
    within = off <= np.log(FACTOR)
    index = {cluster: number for number, cluster in enumerate(dict.fromkeys(clusters))}
    of_row = np.array([index[cluster] for cluster in clusters])
    shape = (draws if len(index) >= FEWEST_CLUSTERS else 0, len(index))
    drawn = generator(SEED, "agreement", len(ratio)).integers(len(index), size=shape)
    times = (drawn[:, :, None] == of_row).sum(axis=1)
    first, second = (np.sign(np.subtract.outer(each, each)) for each in (np.asarray(measured), np.asarray(predicted)))
    taus = kendall_taus(first, second, np.vstack([np.ones((1, len(ratio))), times]))
    return Agreement(
        rows=len(ratio),
        devices=devices,
        median_error=_estimate(lambda of: np.median(errors[of]), times),
        within_factor=_estimate(lambda of: within[of].mean(), times),
        mean_factor=exp(np.mean([off[of_row == number].mean() for number in index.values()])),
        share_factor=factor_around(off, clusters),
        worst_factor=exp(off.max()),
        tau=None if np.isnan(taus[0]) else _interval(taus[0], taus[1:]),
    )


def factor_around(off: Floats, clusters: Sequence[Hashable]) -> float:
    """The factor within which SHARE of rows lie, either way, whose |ln(predicted / measured)| is ``off`` `[rows]`.

    Each cluster counts once, however many rows it has.
    """
    count, order = Counter(clusters), np.argsort(off)
    inside = np.cumsum([1 / count[clusters[index]] for index in order])
    return exp(off[order[np.searchsorted(inside, SHARE * inside[-1] - ROUNDING)]])


def _estimate(of: Callable[[NDArray[np.intp]], float], times: NDArray[np.intp]) -> Estimate:
    rows = np.arange(times.shape[1])
    return _interval(of(rows), np.array([of(np.repeat(rows, each)) for each in times]))


def _interval(value: float, drawn: Floats) -> Estimate:
    if not len(drawn):
        return Estimate(value=float(value), low=None, high=None)
    low, high = np.nanpercentile(drawn, (2.5, 97.5))
    return Estimate(value=float(value), low=float(low), high=float(high))


def kendall_taus(first: Floats, second: Floats, times: ArrayLike) -> Floats:
    """Kendall's tau-b of two orders, from the signs of their pairs `[n, n]`, if each stands ``times`` `[draws, n]`.

    NaN where all are level in one of them.  M. G. Kendall, The treatment of ties in ranking problems (Biometrika 33,
    1945).
    """
    weights = np.asarray(times, np.float64)

    def pairs(signs: Floats) -> Floats:
        return np.asarray(np.einsum("di,ij,dj->d", weights, signs, weights, optimize=True))

    with np.errstate(invalid="ignore"):
        return np.asarray(pairs(first * second) / np.sqrt(pairs(np.abs(first)) * pairs(np.abs(second))))
