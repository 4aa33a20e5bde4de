"""The search of ``edgefl fit``: the least changes that fit a device's budgets, by few predictions."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf, isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.commands.fit.bounds import Enough, Pricer, Span, excess
from edgefl.commands.fit.changes import Levels, candidates, within
from edgefl.errors import EdgeflError
from edgefl.planning import BUDGETS, Verdict, choose_stages, gate
from edgefl.schedules import Stage

NEARER = 12
"""Works that may be predicted only to say what is nearest where nothing fits."""

FITS = 1.0
"""The excess of what exceeds nothing."""


@dataclass(frozen=True)
class Standing:
    """By how much a candidate exceeds its tightest budget at least (FITS: by nothing that is known), and which ones."""

    excess: float
    over: frozenset[str]


@dataclass
class Found:
    """What a search found: solutions, the least first; without any, the candidate that is nearest."""

    solutions: list[Levels] = field(default_factory=list)
    nearest: tuple[Levels, float] | None = None
    """Of what few predictions showed; the least changed if several are."""
    unmet: tuple[str, ...] = ()
    """Budgets that every candidate exceeds, as far as one had to be asked about to refuse them."""
    failed: dict[Levels, str] = field(default_factory=dict)
    """Why a candidate can't be composed or predicted, without what changes traffic alone."""
    looked_at: int = 0
    of: int = 0
    complete: bool = True
    """Whether every candidate that could be a solution was decided; more predictions than allowed would have been."""


class Search:
    """Candidates in order of what they change, each decided by as few predictions as will do.

    A candidate fits if every stage that has rounds does; with the question's ``any_stage`` one will do.
    """

    def __init__(self, pricer: Pricer):
        self.pricer = pricer
        self.allowed, self.any_stage = pricer.question.allowed, pricer.question.any_stage

    def find(self) -> Found:
        """Solutions of which none contains another, the least first and as many as are asked for."""
        order, first = candidates(self.pricer.axes), self.pricer.question.first
        found = Found(of=len(order))
        standings: dict[Levels, Standing] = {}
        hopeless: dict[Levels, Standing] = {}  # whatever travels in which form
        try:
            for levels in order:
                if first is not None and len(found.solutions) >= first:
                    break
                found.looked_at += 1
                if any(within(known, levels) for known in found.solutions):
                    continue
                cell = self.pricer.cell(levels)
                if cell in found.failed:
                    continue
                try:
                    if cell not in hopeless and (floor := self._standing(levels, self._floors)).excess > FITS:
                        hopeless[cell] = floor
                    if cell in hopeless:
                        standings[levels] = hopeless[cell]
                        continue
                    standing = self.standing(levels)
                    if standing.excess <= FITS and self._fits(levels):
                        found.solutions.append(levels)
                        continue
                    standings[levels] = self.standing(levels)
                    if (untravelled := self._standing(levels, self._untravelled)).excess > FITS:
                        hopeless[cell] = untravelled
                except (EdgeflError, RuntimeError) as error:
                    # each step can be taken, but not together: a kernel that doesn't take what another step leaves it
                    found.failed[cell] = str(error).partition("\n")[0]
        except Enough:
            found.complete = False
        if not found.solutions:
            self._explain(found, standings)
        return found

    def verdict(self, levels: Levels, span: Span, *, late: bool = True) -> tuple[Stage, Verdict]:
        """The first stage that fits in these rounds or the one that comes nearest, with its verdict; raises Enough."""
        costs: dict[int, dict[str, float]] = {}

        def offer(stage: Stage, clients: NDArray[Any]) -> tuple[NDArray[Any], dict[str, float]]:
            costs[stage.index] = self.pricer.cost(levels, span, stage, late=late).budgets()
            return clients, costs[stage.index]

        budgets = {name: np.array([allowed]) for name, allowed in self.allowed.items()}
        chosen = choose_stages({stage.index: partial(offer, stage) for stage in span.stages}, budgets)
        stage = next(stage for stage in span.stages if stage.index == chosen.stage[0])
        return stage, gate(costs[stage.index], self.allowed)[0]

    def standing(self, levels: Levels) -> Standing:
        """What is known of a candidate without predicting anything."""
        return self._standing(levels, self.pricer.at_least)

    def _floors(self, levels: Levels, span: Span, stage: Stage) -> dict[str, float]:
        return {"memory": self.pricer.floor(levels, span, stage)}

    def _untravelled(self, levels: Levels, span: Span, stage: Stage) -> dict[str, float]:
        """What a round costs at least of what travelling takes nothing of."""
        least = self.pricer.at_least(levels, span, stage)
        return {name: least[name] for name in ("memory", "flops")}

    def _standing(self, levels: Levels, least: Callable[[Levels, Span, Stage], dict[str, float]]) -> Standing:
        each = []
        for span in self.pricer.spans(levels):
            offers = [excess(least(levels, span, stage), self.allowed) for stage in span.stages]
            over = frozenset.intersection(*(frozenset(offer) for offer in offers))
            each.append((min(max(offer.values(), default=FITS) for offer in offers), over))
        if self.any_stage:
            return Standing(min(e for e, _ in each), frozenset.intersection(*(over for _, over in each)))
        return Standing(max(e for e, _ in each), frozenset.union(*(over for _, over in each)))

    def _fits(self, levels: Levels) -> bool:
        # the last stage has most of the model attached: it is the first to refuse
        for span in reversed(self.pricer.spans(levels)):
            if self.any_stage and self._excluded(levels, span):
                continue
            stage, verdict = self.verdict(levels, span)
            if not verdict.eligible and verdict.margins["memory"] < 0:
                self._bisect(levels, span, stage)
            if verdict.eligible == self.any_stage:
                return self.any_stage
        return not self.any_stage

    def _excluded(self, levels: Levels, span: Span) -> bool:
        return all(excess(self.pricer.at_least(levels, span, stage), self.allowed) for stage in span.stages)

    def _bisect(self, levels: Levels, span: Span, stage: Stage) -> None:
        """Predict which smaller batches have a peak that fits: what is left out then is decided by its bound."""

        def peak(other: Levels) -> float:
            return self.pricer.at_least(other, span, stage)["memory"]

        left = [other for _, other in self.pricer.smaller(levels, span, stage) if peak(other) <= self.allowed["memory"]]
        if len(left) < 3:
            return  # asking them in turn costs no more
        self.pricer.cost(left[0], span, stage)
        if peak(left[0]) > self.allowed["memory"]:
            return
        low, high = 0, len(left)
        while high - low > 1:
            middle = (low + high) // 2
            self.pricer.cost(left[middle], span, stage)
            low, high = (middle, high) if peak(left[middle]) <= self.allowed["memory"] else (low, middle)

    # where nothing fits ---------------------------------------------------------------------------------------------

    def _explain(self, found: Found, standings: Mapping[Levels, Standing]) -> None:
        """The candidate with the least excess, first those that may have it; and what none of them meets."""
        if found.complete:
            found.unmet = self._unmet(standings)
        unchanged = next(iter(standings), None)  # is known whatever may be predicted
        exact = [(self.standing(unchanged).excess, 0, unchanged)] if unchanged else []
        # of what is bounded alike the more is changed the nearer it may be
        heap = [(s.excess, -place, levels) for place, (levels, s) in enumerate(standings.items())]
        heapq.heapify(heap)
        self.pricer.most = min(self.pricer.most, len(self.pricer.keys) + NEARER)
        try:
            while heap and isfinite(heap[0][0]) and heap[0][0] < min(exact)[0]:
                least, place, levels = heapq.heappop(heap)
                now = self.standing(levels).excess
                if now > least:  # more is known of it than when it was looked at
                    heapq.heappush(heap, (now, place, levels))
                    continue
                list(self.verdicts(levels))
                exact.append((self.standing(levels).excess, -place, levels))
        except Enough:
            pass
        if exact and isfinite(min(exact)[0]):
            least, _, levels = min(exact)
            found.nearest = self._lighter(levels, least, standings), least

    def _lighter(self, levels: Levels, least: float, order: Iterable[Levels]) -> Levels:
        """The first candidate within this one that exceeds no more."""
        try:
            for other in order:
                if within(other, levels) and self.standing(other).excess <= least:
                    list(self.verdicts(other))
                    if self.standing(other).excess <= least:
                        return other
        except Enough:
            pass
        return levels

    def _unmet(self, standings: Mapping[Levels, Standing]) -> tuple[str, ...]:
        """Budgets that every candidate exceeds."""
        left = set(BUDGETS)
        for levels, known in standings.items():
            if left - known.over:  # a candidate that was given up at once may exceed more
                left &= self.standing(levels).over
        return tuple(name for name in BUDGETS if name in left)

    def verdicts(self, levels: Levels, *, late: bool = True) -> Iterator[tuple[Span, Stage, Verdict]]:
        """The verdict on all rounds of a candidate.  Raises Enough."""
        for span in self.pricer.spans(levels):
            yield (span, *self.verdict(levels, span, late=late))


def worst(rows: Sequence[tuple[Any, Any, Verdict]]) -> Verdict:
    """All verdicts in one: of each budget the smallest margin, and the binding one of the tightest."""

    def relative(verdict: Verdict) -> float:
        if verdict.binding is None:
            return inf
        allowed = verdict.budgets[verdict.binding]
        return verdict.margins[verdict.binding] / allowed if allowed else -inf

    verdicts = [verdict for _, _, verdict in rows]
    tightest = min(verdicts, key=relative)
    return Verdict(
        all(v.eligible for v in verdicts),
        tightest.binding,
        {name: min(v.margins[name] for v in verdicts) for name in BUDGETS},
        {name: max(v.costs[name] for v in verdicts) for name in BUDGETS},
        tightest.budgets,
    )
