"""Successive halving (Jamieson and Talwalkar 2016) in batches: when trials are scored, and which go on.

All trials of a batch reach a rung before anyone goes on, so that nothing depends on which of them ends first.  A trial
goes on if its score is in the best third of all scores of that rung, those of earlier batches included.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil

ETA = 3
"""Of so many trials one goes on, and it plays so many times the rounds.

Of Hyperband (Li et al., JMLR 18, 2018), whose bound is best at e and which recommends 3 or 4.
"""
MOST_RUNGS = 3
"""A choice, not measured: the first of three scores a ninth of the rounds; a fourth would score one round of 27."""
LARGEST_BATCH = ETA ** (MOST_RUNGS - 1)
"""Most trials that are drawn before anything is learnt of them: so many that one of them reaches the last rung."""


def rungs_of(rounds: int, every: int) -> tuple[int, ...]:
    """The rounds after which a trial is scored: about a ninth, a third and all of them.

    Each is a round with an evaluation, of which there is one every so many rounds.  Fewer rounds give fewer rungs.
    """
    rungs = [rounds]
    for power in range(1, MOST_RUNGS):
        if rounds / ETA**power < 1:
            break
        rung = ceil(rounds / ETA**power / every) * every
        if rung < rungs[0]:
            rungs.insert(0, rung)
    return tuple(rungs)


def pad_rungs(rounds: int, every: int, count: int) -> tuple[int, ...]:
    """``rungs_of`` as ``count`` rungs, for a trial with another number of rounds: the first ones are repeated."""
    rungs = rungs_of(rounds, every)[-count:]
    return (rungs[0],) * (count - len(rungs)) + rungs


def going_on(scores: Mapping[int, float | None], batch: Sequence[int], *, lower: bool) -> list[int]:
    """The trials of a batch that are in the best third of a rung, in their order.

    ``scores`` has those of all trials that reached it, by number; None, of a diverged model, is the worst, and doesn't
    go on.  All that equal the last one of the third go on: nothing tells them apart.
    """
    costs = {number: value if lower else -value for number, value in scores.items() if value is not None}
    best = sorted(costs.values())[: ceil(len(scores) / ETA)]
    return [number for number in batch if number in costs and costs[number] <= best[-1]]


def batches_of(trials: int, *, widens: bool) -> list[list[int]]:
    """Sizes of the batches, by phase.

    With ranges that may be widened there are three phases, of about a half and two quarters of the trials; after each
    but the last, ranges are widened.  The batches of a phase are about equally large.
    """
    half = ceil(trials / 2)
    quarter = ceil((trials - half) / 2)
    phases = [half, quarter, trials - half - quarter] if widens else [trials]
    return [_even(size) for size in phases if size]


def _even(size: int) -> list[int]:
    count = ceil(size / LARGEST_BATCH)
    return [size // count + (i < size % count) for i in range(count)]
