"""The search for the changes that let the clients of one kind take part."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping
from dataclasses import replace
from math import isfinite

from edgefl import units
from edgefl.commands.fit.allowances import Allowance
from edgefl.commands.fit.answer import (
    BudgetLimit,
    FailedCombination,
    Fit,
    FitCandidate,
    KindFit,
    ScenarioChange,
    StageFit,
    Tightest,
)
from edgefl.commands.fit.bounds import FitQuestion, Pricer
from edgefl.commands.fit.changes import TIERS, Levels, axes_of, sets_of, steps_of
from edgefl.commands.fit.search import FitSearch, worst
from edgefl.devices import free_memory_range, runtime_range
from edgefl.devices.browsing import seconds_within
from edgefl.planning.eligibility import Verdict, memory_limit
from edgefl.planning.subjects import largest
from edgefl.records.record import UNSET, Maybe
from edgefl.runs.progress import OnProgress
from edgefl.schedules import Stage
from edgefl.setup.compose import at_most

PAUSE = 5.0
"""Wall time in seconds without a message after which the number of combinations that were looked at is told.

A choice: a user sees that the search goes on, and a log of an hour has 720 lines at most.
"""


def fit_of(question: FitQuestion, allowances: Mapping[str, Allowance], kinds: Mapping[str, KindFit]) -> Fit:
    """The answer, of what was found for each kind."""
    scenario, device = question.scenario, question.device
    return Fit(
        scenario=scenario.name,
        at_most=at_most([scenario]) or UNSET,
        seconds_within=seconds_within([device.name]) or UNSET,
        device=device.name,
        link=question.link.name,
        runtime=runtime_range(device, scenario.fleet.runtime),
        runtime_overhead_bytes=device.runtime_overhead_bytes,
        least_available_bytes=free_memory_range(device)[0],
        most_available_bytes=free_memory_range(device)[1],
        any_stage=question.any_stage,
        budgets={
            name: BudgetLimit(
                allowed=_finite(each.allowed),
                source=each.source,
                limit=memory_limit(each.allowed, question.memory_of_device) if name == "memory" else UNSET,
            )
            for name, each in allowances.items()
        },
        sets=["compare=null"] if scenario.compare else [],
        kinds=kinds,
    )


class KindSearch:
    """The search for a kind; ``so_far`` is its answer with what is known by now."""

    def __init__(self, question: FitQuestion, kind: str, on_progress: OnProgress):
        self.question, self.kind, self._on_progress = question, kind, on_progress
        setup = question.setup
        client = largest(setup, kind)
        samples = int(setup.clients.client_samples[client])
        self.axes = axes_of(question.scenario, setup, kind, samples, growing=question.any_stage, epochs=question.epochs)
        self.pricer = Pricer(question, self.axes, kind, client, self._on_prediction)
        self.search = FitSearch(self.pricer)
        self._told = time.monotonic()
        self.so_far = KindFit(
            kind=kind, samples=samples, rounds=0, fits=False, as_it_stands=None, solutions=[], complete=False
        )

    def _on_prediction(self, predicted: int, levels: Levels, stage: Stage) -> None:
        what = ", ".join(step.what for step in steps_of(self.axes, levels)) or "as it stands"
        solutions = f"{len(self.so_far.solutions)} solutions so far"
        if (first := self.question.first) is not None:
            solutions = f"{len(self.so_far.solutions)} of {first} solutions"
        self._tell(f"work {predicted + 1}, {solutions}: {what}, stage {stage.index}")

    def _on_candidate(self) -> None:
        if time.monotonic() - self._told >= PAUSE:  # many are decided without a prediction
            result = self.search.result
            self._tell(f"combination {result.looked_at:,} of {result.candidates:,}")

    def _tell(self, words: str) -> None:
        self._told = time.monotonic()
        self._on_progress("prepare", {"what": f"{self.kind}: {words}"})

    def _on_solution(self, levels: Levels) -> None:
        candidate = _candidate(self.search, levels, self.so_far.as_it_stands)
        self.so_far = replace(self.so_far, solutions=[*self.so_far.solutions, candidate])
        sets = " ".join(f"--set {shlex.quote(text)}" for text in candidate.sets)
        told = f"solution {len(self.so_far.solutions)}, peak {units.show_bytes(candidate.peak_memory_bytes)}: {sets}"
        self._on_progress("found", {"what": f"{self.kind}: {told}"})

    def find_fit(self) -> KindFit:
        """The answer."""
        as_it_stands: Levels = (0,) * len(self.axes)
        rounds = sum(span.rounds for span in self.pricer.spans(as_it_stands))
        if not rounds:
            return replace(self.so_far, complete=UNSET)
        self.so_far = replace(self.so_far, rounds=rounds)
        unchanged = _candidate(self.search, as_it_stands)
        self.search.memory_binds = (unchanged.margins["memory"] or 0.0) < 0
        self.so_far = replace(self.so_far, fits=unchanged.fits, as_it_stands=unchanged)
        if unchanged.fits:
            return replace(self.so_far, predictions=len(self.pricer.keys), complete=True)
        try:
            result = self.search.find(self._on_solution, self._on_candidate)
        finally:
            self._note_search()
        nearest: FitCandidate | Maybe = UNSET
        if result.nearest is not None:
            levels, excess = result.nearest
            nearest = replace(_candidate(self.search, levels, unchanged), excess=excess)
        self._note_search()
        return replace(
            self.so_far,
            nearest=nearest,
            unmet=UNSET if result.solutions else list(result.unmet),
            complete=result.complete,
        )

    def _note_search(self) -> None:
        result = self.search.result
        failed = [
            FailedCombination(sets=sets_of(steps_of(self.axes, cell)), error=text)
            for cell, text in result.failed.items()
        ]
        self.so_far = replace(
            self.so_far,
            predictions=len(self.pricer.keys),
            candidates=result.candidates,
            looked_at=result.looked_at,
            failed=failed,
        )


def _candidate(search: FitSearch, levels: Levels, unchanged: FitCandidate | None = None) -> FitCandidate:
    """A candidate with its costs: the largest by budget, and means over the rounds."""
    pricer = search.pricer
    pricer.most, most = len(pricer.keys) + 10**6, pricer.most  # an answer's costs are always predicted
    rows = list(search.verdicts(levels))
    on_time = list(search.verdicts(levels, late=False))
    pricer.most = most
    fitting = [row for row in rows if row[2].eligible]
    verdict = worst(fitting if search.any_stage and fitting else rows)
    rounds = sum(span.rounds for span, _, _ in rows)
    seconds, joules = (
        sum(span.rounds * each.costs[name] for span, _, each in on_time) / rounds for name in ("seconds", "joules")
    )
    steps = steps_of(pricer.axes, levels)
    return FitCandidate(
        changes=[ScenarioChange(what=step.what, changes=TIERS[step.tier]) for step in steps],
        sets=sets_of(steps),
        fits=bool(fitting) if search.any_stage else len(fitting) == len(rows),
        peak_memory_bytes=int(verdict.costs["memory"]),
        **vars(_tightest(verdict)),
        seconds_per_round=seconds,
        joules_per_round=joules,
        stages=[
            StageFit(
                stage=stage.index,
                part=stage.label or UNSET,
                first_round=span.first,
                rounds=span.rounds,
                eligible=verdict.eligible,
                reason=verdict.reason,
                **vars(_tightest(verdict)),
            )
            for span, stage, verdict in rows
        ],
        seconds_ratio=_ratio(seconds, unchanged.seconds_per_round if unchanged else seconds),
        joules_ratio=_ratio(joules, unchanged.joules_per_round if unchanged else joules),
    )


def _ratio(value: float, before: float) -> float | None:
    return value / before if before else None


def _tightest(verdict: Verdict) -> Tightest:
    """Costs and margins in the budgets' units; None for a margin without limit."""
    return Tightest(
        binding=verdict.binding,
        memory_limit=verdict.memory_limit,
        costs=verdict.costs,
        margins={name: _finite(margin) for name, margin in verdict.margins.items()},
    )


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None
