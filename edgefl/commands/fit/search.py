"""The search of ``edgefl fit``: the smallest changes that fit a device's budgets, found with few predictions."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf, isfinite
from typing import Any

import numpy as np

from edgefl.arrays import AnyArray
from edgefl.commands.fit.bounds import EqualRounds, PredictionLimit, Pricer, excess
from edgefl.commands.fit.changes import Levels, candidates, within
from edgefl.errors import EdgeflError
from edgefl.planning.eligibility import Verdict, gate
from edgefl.planning.judge import choose_stages
from edgefl.schedules import Stage

EXTRA_WORKS = 12
"""How many further works may be predicted to find the nearest candidate where nothing fits.

A choice, not measured: at half a second each they add six seconds; with fewer, the nearest that is named is less near.
"""

FITS = 1.0
"""The excess of a candidate that exceeds no budget."""


@dataclass(frozen=True)
class Bound:
    """A lower bound of a candidate's largest excess (FITS: none is known), and the budgets that it exceeds."""

    excess: float
    over: frozenset[str]


NO_BOUND = Bound(FITS, frozenset())
"""The bound of a candidate of which nothing is known."""


@dataclass
class SearchResult:
    """Solutions, the smallest change first; without any, the nearest candidate."""

    solutions: list[Levels] = field(default_factory=list)
    nearest: tuple[Levels, float] | None = None
    """The candidate with the smallest excess among the predicted ones, and that excess."""
    unmet: tuple[str, ...] = ()
    """Budgets that every candidate is known to exceed."""
    failed: dict[Levels, str] = field(default_factory=dict)
    """Errors of candidates that can't be composed or predicted, by cell."""
    looked_at: int = 0
    candidates: int = 0
    complete: bool = True
    """Whether every possible solution was decided; False if that takes more predictions than are allowed."""


class FitSearch:
    """Decides candidates, the smallest change first, each with as few predictions as possible.

    A candidate fits if every stage that has rounds fits; with the question's ``any_stage`` one is enough.
    """

    def __init__(self, pricer: Pricer):
        self.pricer = pricer
        self.allowed, self.any_stage = pricer.question.allowed, pricer.question.any_stage
        self.result = SearchResult()
        self.memory_binds = False
        """Whether the scenario as it stands peaks too high."""
        self._memory_refuses: dict[int, bool] = {}
        """By a span's first round, whether memory refused the last candidate there, if only in its smallest batch."""
        self._refused_at = 0
        """The first round of the span that refused a candidate last."""

    def find(self, on_solution: Callable[[Levels], None], on_candidate: Callable[[], None]) -> SearchResult:
        """Search for solutions of which none contains another, up to the number that the question asks for.

        Each is told by ``on_solution`` when it is found.  ``on_candidate`` is called before each candidate is decided.
        ``result`` has what is known so far.
        """
        order, first = candidates(self.pricer.axes), self.pricer.question.first
        result = self.result
        result.candidates = len(order)
        bounds: dict[Levels, Bound] = {}
        refused: dict[Levels, Bound] = {}  # by cell, whatever its payloads
        moving: dict[Levels, Bound] = {}  # by what moves, whatever is computed
        looked = 0

        def following() -> Iterator[tuple[Levels, EqualRounds, Stage]]:
            nonlocal looked
            looked = max(looked, result.looked_at)
            while looked < len(order):
                levels = order[looked]
                looked += 1
                cell, moves = self.pricer.cell(levels), self.pricer.moving_levels(levels)
                if cell in result.failed or cell in refused or moving.get(moves, NO_BOUND).excess > FITS:
                    continue
                if not any(within(self.pricer.axes, solution, levels) for solution in result.solutions):
                    yield from self._first_work(levels)

        self.pricer.following = following
        try:
            for levels in order:
                if first is not None and len(result.solutions) >= first:
                    break
                result.looked_at += 1
                on_candidate()
                if any(within(self.pricer.axes, solution, levels) for solution in result.solutions):
                    continue
                cell = self.pricer.cell(levels)
                if cell in result.failed:
                    continue
                try:
                    if cell not in refused and (bound := self._bound_levels(levels, self._floors)).excess > FITS:
                        refused[cell] = bound
                    if cell in refused:
                        bounds[levels] = refused[cell]
                        continue
                    if (moves := self.pricer.moving_levels(levels)) not in moving:
                        moving[moves] = self._bound_of_traffic(levels)
                    if moving[moves].excess > FITS:
                        bounds[levels] = moving[moves]
                        continue
                    bound = self.lower_bound(levels)
                    if bound.excess <= FITS and self._fits(levels):
                        result.solutions.append(levels)
                        on_solution(levels)
                        continue
                    bounds[levels] = self.lower_bound(levels)
                    if (bound := self._bound_levels(levels, self._compute_bounds)).excess > FITS:
                        refused[cell] = bound
                except (EdgeflError, RuntimeError) as error:
                    # steps that are valid alone may fail together: a kernel rejects the output of another step
                    result.failed[cell] = str(error).partition("\n")[0]
        except PredictionLimit:
            result.complete = False
        self.pricer.following = lambda: iter(())
        if not result.solutions:
            self._explain(result, bounds)
        return result

    def verdict(self, levels: Levels, span: EqualRounds, *, late: bool = True) -> tuple[Stage, Verdict]:
        """The first stage that fits in these rounds, or the nearest, with its verdict.  Raises PredictionLimit."""
        costs: dict[int, dict[str, float]] = {}

        def offer(stage: Stage, clients: AnyArray) -> tuple[AnyArray, dict[str, float]]:
            costs[stage.index] = self.pricer.cost(levels, span, stage, late=late)
            return clients, costs[stage.index]

        budgets = {name: np.array([allowed]) for name, allowed in self.allowed.items()}
        chosen = choose_stages({stage.index: partial(offer, stage) for stage in span.stages}, budgets)
        stage = next(stage for stage in span.stages if stage.index == chosen.stage[0])
        peak = self.pricer.peak_memory(levels, span, stage)
        of_device = self.pricer.question.memory_of_device
        return stage, gate(costs[stage.index], self.allowed, of_device, peak_memory=peak)[0]

    def lower_bound(self, levels: Levels) -> Bound:
        """The bound of a candidate that is known without a prediction, infinite if its steps don't go together."""
        try:
            return self._bound_levels(levels, self.pricer.at_least)
        except EdgeflError:
            return Bound(inf, frozenset(self.allowed))

    def _bound_of_traffic(self, levels: Levels) -> Bound:
        """The bound of all candidates with this one's traffic; none if its moving steps alone don't fit together."""
        try:
            return self._bound_levels(levels, self.pricer.least_of_traffic)
        except EdgeflError:
            return NO_BOUND

    def _floors(self, levels: Levels, span: EqualRounds, stage: Stage) -> dict[str, float]:
        return {"memory": self.pricer.floor(levels, span, stage)}

    def _compute_bounds(self, levels: Levels, span: EqualRounds, stage: Stage) -> dict[str, float]:
        """Lower bounds of the budgets that payloads don't change."""
        least = self.pricer.at_least(levels, span, stage)
        return {name: least[name] for name in ("memory", "flops")}

    def _bound_levels(self, levels: Levels, least: Callable[[Levels, EqualRounds, Stage], dict[str, float]]) -> Bound:
        by_span = []
        for span in self.pricer.spans(levels):
            offers = [excess(least(levels, span, stage), self.allowed) for stage in span.stages]
            over = frozenset.intersection(*(frozenset(offer) for offer in offers))
            by_span.append((min(max(offer.values(), default=FITS) for offer in offers), over))
        if self.any_stage:
            return Bound(min(value for value, _ in by_span), frozenset.intersection(*(over for _, over in by_span)))
        return Bound(max(value for value, _ in by_span), frozenset.union(*(over for _, over in by_span)))

    def _order(self, levels: Levels) -> list[EqualRounds]:
        """The spans of a candidate, first that which refused the one before, then the last.

        The last stage has most of the model attached.
        """
        return sorted(self.pricer.spans(levels), key=lambda span: (span.first != self._refused_at, -span.first))

    def _first_work(self, levels: Levels) -> Iterator[tuple[Levels, EqualRounds, Stage]]:
        """The work that is predicted first of a candidate, if any is."""
        try:
            if self._bound_levels(levels, self._floors).excess > FITS or self.lower_bound(levels).excess > FITS:
                return
            span = self._order(levels)[0]
            stage = span.stages[0]
            smallest = self.pricer.smaller(levels, span, stage)[:1] if self._tries_smallest(span) else []
            for each in [*(least for _, least in smallest), levels]:
                if not self.pricer.knows(each, span, stage):
                    yield each, span, stage
                    return
        except (EdgeflError, RuntimeError):  # told where the candidate is decided
            return

    def _fits(self, levels: Levels) -> bool:
        spans = self._order(levels)
        if not self.any_stage:
            for span in spans:
                if self._too_large(levels, span):
                    self._refused_at = span.first
                    return False
        for span in spans:
            if self.any_stage and (self._is_over_budget(levels, span) or self._too_large(levels, span)):
                continue
            stage, verdict = self.verdict(levels, span)
            if not verdict.eligible and verdict.margins["memory"] < 0:
                self._memory_refuses[span.first] = True
                self._bisect(levels, span, stage)
            if verdict.eligible == self.any_stage:
                self._refused_at = span.first
                return self.any_stage
        return not self.any_stage

    def _too_large(self, levels: Levels, span: EqualRounds) -> bool:
        """Whether even the smallest batch peaks too high, which excludes all others: it is predicted first.

        Only if the scenario as it stands peaks too high, and the last candidate did in these rounds: elsewhere it would
        be one prediction more.
        """
        if not self._tries_smallest(span):
            return False
        stage = span.stages[0]
        for _, least in self.pricer.smaller(levels, span, stage)[:1]:
            self.pricer.cost(least, span, stage)
            excluded = self.pricer.at_least(levels, span, stage)["memory"] > self.allowed["memory"]
            self._memory_refuses[span.first] = excluded
            return excluded
        return False

    def _tries_smallest(self, span: EqualRounds) -> bool:
        return self.memory_binds and len(span.stages) == 1 and self._memory_refuses.get(span.first, True)

    def _is_over_budget(self, levels: Levels, span: EqualRounds) -> bool:
        return all(excess(self.pricer.at_least(levels, span, stage), self.allowed) for stage in span.stages)

    def _bisect(self, levels: Levels, span: EqualRounds, stage: Stage) -> None:
        """Predict by bisection which smaller batches have a peak that fits; the bounds then decide the others."""

        def peak(other: Levels) -> float:
            return self.pricer.at_least(other, span, stage)["memory"]

        smaller = [
            other for _, other in self.pricer.smaller(levels, span, stage) if peak(other) <= self.allowed["memory"]
        ]
        if len(smaller) < 3:
            return  # predicting each costs no more
        self.pricer.cost(smaller[0], span, stage)
        if peak(smaller[0]) > self.allowed["memory"]:
            return
        low, high = 0, len(smaller)
        while high - low > 1:
            middle = (low + high) // 2
            self.pricer.cost(smaller[middle], span, stage)
            low, high = (middle, high) if peak(smaller[middle]) <= self.allowed["memory"] else (low, middle)

    # where nothing fits ---------------------------------------------------------------------------------------------

    def _explain(self, result: SearchResult, bounds: Mapping[Levels, Bound]) -> None:
        """Find the candidate with the least excess, the lowest bound first, and the budgets that no candidate meets."""
        if result.complete:
            result.unmet = self._unmet(bounds)
        unchanged = next(iter(bounds), None)  # predicted before the search
        exact = [(self.lower_bound(unchanged).excess, 0, unchanged)] if unchanged else []
        # of equal bounds, the candidate that changes more may be nearer
        heap = [(bound.excess, -rank, levels) for rank, (levels, bound) in enumerate(bounds.items())]
        heapq.heapify(heap)
        self.pricer.most = min(self.pricer.most, len(self.pricer.keys) + EXTRA_WORKS)
        try:
            while heap and isfinite(heap[0][0]) and heap[0][0] < min(exact)[0]:
                least, rank, levels = heapq.heappop(heap)
                current = self.lower_bound(levels).excess
                if current > least:  # its bound rose after it was queued
                    heapq.heappush(heap, (current, rank, levels))
                    continue
                list(self.verdicts(levels))
                exact.append((self.lower_bound(levels).excess, -rank, levels))
        except PredictionLimit:
            pass
        if exact and isfinite(min(exact)[0]):
            least, _, levels = min(exact)
            result.nearest = self._least_changed(levels, least, bounds), least

    def _least_changed(self, levels: Levels, least: float, bounds: Mapping[Levels, Bound]) -> Levels:
        """The first candidate within this one whose excess is no larger."""
        try:
            for other, bound in bounds.items():
                if bound.excess > least or not within(self.pricer.axes, other, levels):
                    continue
                if self.lower_bound(other).excess <= least:
                    list(self.verdicts(other))
                    if self.lower_bound(other).excess <= least:
                        return other
        except PredictionLimit:
            pass
        return levels

    def _unmet(self, bounds: Mapping[Levels, Bound]) -> tuple[str, ...]:
        """Budgets that every candidate exceeds."""
        unmet = set(self.allowed)
        for levels, bound in bounds.items():
            if unmet - bound.over:  # a candidate that was refused early may exceed more
                unmet &= self.lower_bound(levels).over
        return tuple(name for name in self.allowed if name in unmet)

    def verdicts(self, levels: Levels, *, late: bool = True) -> Iterator[tuple[EqualRounds, Stage, Verdict]]:
        """The verdicts on all spans of a candidate.  Raises PredictionLimit."""
        for span in self.pricer.spans(levels):
            yield (span, *self.verdict(levels, span, late=late))


def worst(rows: Sequence[tuple[Any, Any, Verdict]]) -> Verdict:
    """All verdicts in one: smallest margins and largest costs, with the binding budget of the tightest verdict.

    Of equally tight ones it is that with the largest peak.
    """

    def relative(verdict: Verdict) -> tuple[float, float]:
        if verdict.binding is None:
            return inf, 0.0
        allowed = verdict.budgets[verdict.binding]
        return verdict.margins[verdict.binding] / allowed if allowed else -inf, -verdict.costs["memory"]

    verdicts = [verdict for _, _, verdict in rows]
    tightest = min(verdicts, key=relative)
    return Verdict(
        all(v.eligible for v in verdicts),
        tightest.binding,
        {name: min(v.margins[name] for v in verdicts) for name in tightest.margins},
        {name: max(v.costs[name] for v in verdicts) for name in tightest.costs},
        tightest.budgets,
        tightest.memory_limit,
    )
