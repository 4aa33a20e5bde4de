"""A search under way: batches of trials are drawn, priced and played from rung to rung, and ranges are widened."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from edgefl import registry
from edgefl.cells.needs import check
from edgefl.cells.workers import Cell
from edgefl.commands.tune.answer import Widening
from edgefl.commands.tune.draws import distributions, draw_settings, number_at
from edgefl.commands.tune.halving import batches_of, going_on, pad_rungs
from edgefl.commands.tune.trial_run import Advance, Reached, Run
from edgefl.commands.tune.trial_store import TRIALS, Ended, StoredTrial, TrialStore, mean_of
from edgefl.errors import EdgeflError, RunError, ScenarioError
from edgefl.planning.workload import binding_counts, stage_eligibility, workload_of
from edgefl.records.record import UNSET
from edgefl.runs.contents import CHECKPOINTS
from edgefl.runs.progress import OnProgress, messages
from edgefl.scenario import Scenario
from edgefl.scenario.problems import reason
from edgefl.scenario.scenario import with_fields
from edgefl.scenario.search_space import NumberRange, Searched, span_errors, with_settings
from edgefl.setup.compose import predictor_of

MOST_ASKED = 2
"""So many times the trials are drawn at most, because a refused one is replaced.

A choice, not measured: with more, a search whose budgets admit next to nothing prices settings without end.
"""


@dataclass(frozen=True)
class TrialTask:
    """The scenario as trials run it, the metric, whether lower values are better, the seeds, and how many rungs."""

    base: Scenario
    metric: str
    lower: bool
    seeds: tuple[int, ...]
    rungs: int


@dataclass
class TuneSearch:
    """A search under way.  ``space`` has the ranges as they are now, ``given`` as they were; ``widened`` says how.

    All that happens is a function of the task and the trials in the store, so that a search which was killed goes on
    as it would have.
    """

    task: TrialTask
    space: list[Searched]
    trials: int
    store: TrialStore
    on_progress: OnProgress
    given: tuple[Searched, ...] = ()
    widened: list[Widening] = field(default_factory=list)
    beyond: list[tuple[NumberRange, tuple[float, float]]] = field(default_factory=list)
    first: int = 1
    exhausted: bool = False

    def __post_init__(self) -> None:
        self.given = tuple(self.space)
        self._predictor = predictor_of(self.task.base)

    def run(self, run: Run) -> None:
        """Draw and play all batches; Raises ScenarioError if every trial is refused."""
        widens = any(isinstance(each, NumberRange) and each.by_log for each in self.space)
        phases = batches_of(self.trials, widens=widens)
        number, self.first = 0, phases[0][0]
        for phase, sizes in enumerate(phases):
            fixed = self._beyond(sum(sizes))
            for size in sizes:
                number += 1
                batch = self._batch(number, size, fixed)
                if any(trial.ended is None for trial in batch):
                    self._halve(batch, run)
            if phase < len(phases) - 1:
                self._widen(number)
        if not any(trial.refused is None for trial in self.store.trials):
            reasons = list(dict.fromkeys(trial.refused or "" for trial in self.store.trials))
            raise ScenarioError(f"each of {len(self.store.trials)} settings is refused: {'; '.join(reasons[:3])}")

    # -- a batch --

    def _batch(self, number: int, size: int, fixed: list[dict[str, Any]]) -> list[StoredTrial]:
        """The trials of a batch that are to be run, drawn as far as they aren't in the store.

        Every third trial takes, and removes, the next of the ``fixed`` numbers.
        """
        while True:
            of_batch = [trial for trial in self.store.trials if trial.batch == number]
            batch = [trial for trial in of_batch if trial.refused is None]
            if len(batch) == size or len(self.store.trials) >= MOST_ASKED * self.trials or self.exhausted:
                del fixed[: ceil(len(of_batch) / 3)]
                return batch
            third, left = divmod(len(of_batch), 3)
            found = draw_settings(
                self.space, self.store.trials, self.task.base.seed, lower=self.task.lower, first=self.first,
                fixed=fixed[third] if not left and third < len(fixed) else None,
            )  # fmt: skip
            if found is None:
                self.exhausted = True
                continue
            refused, rungs = self._check_settings(self.settings(found))
            self.store.add(found, distributions(self.space), number, rungs, refused)
            if refused is not None:
                self.on_progress("prepare", {"what": f"trial {len(self.store.trials) - 1} is refused: {refused}"})

    def _beyond(self, size: int) -> list[dict[str, Any]]:
        """The numbers that a phase of so many trials tries in what was added to ranges: a third of the trials.

        They are evenly spaced, the new ends first, so that it shows whether the best is beyond those too.
        """
        count = ceil(size / 3)
        found: list[dict[str, Any]] = []
        for i in range(count if self.beyond else 0):
            span, (near, far) = self.beyond[i % len(self.beyond)]
            of = ceil(count / len(self.beyond))
            found.append({span.name: number_at(span, near, far, 1 - i // len(self.beyond) / of)})
        return found

    def settings(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """The settings of what was drawn."""
        return {
            each.name: found[each.name] if isinstance(each, NumberRange) else each.setting(found[each.name])
            for each in self.space
        }

    def _check_settings(self, settings: Mapping[str, Any]) -> tuple[str | None, tuple[int, ...]]:
        """Why a trial is refused, None if it isn't, and its rungs."""
        on_message = messages(self.on_progress)
        try:
            with registry.named_faults():
                scenario = with_settings(self.task.base, self.space, settings)
                setup = check(scenario, on_message, self.store.folder)
                workload = workload_of(setup, self._predictor)
        except EdgeflError as error:
            if error.exit_code != EdgeflError.exit_code or isinstance(error, RunError):
                raise
            return reason(error), ()
        judged = stage_eligibility(workload)
        if not any(turn.eligible.any() for turn in judged):
            counts = binding_counts(judged[0].binding, setup.fleet.budget_names)
            of = int(np.sum(judged[0].binding >= 0))
            refuse = " and ".join(f"{name} {count}" for name, count in counts.items())
            return f"no budget admits it: of {of} clients, by what refuses them, {refuse}", ()
        return None, pad_rungs(setup.schedule.rounds, scenario.evaluation.every, self.task.rungs)

    def _halve(self, batch: Sequence[StoredTrial], run: Run) -> None:
        """Play the trials of a batch from rung to rung, and write what each gave."""
        scores: dict[int, list[tuple[float | None, ...]]] = {trial.number: [] for trial in batch}
        took = dict.fromkeys(scores, 0.0)
        rounds, diverged = dict[int, tuple[int, ...]](), dict[int, str]()
        alive = [trial.number for trial in batch]
        for rung in range(self.task.rungs):
            reached = self._play_rung(alive, rung, run)
            for number, each in reached.items():
                scores[number].append(tuple(one.score for one in each))
                took[number] += sum(one.seconds for one in each)
                rounds[number] = tuple(one.rounds for one in each)
                if texts := [one.diverged for one in each if one.diverged is not None]:
                    diverged[number] = texts[0]
            everyone = {
                trial.number: trial.ended.means[rung]
                for trial in self.store.trials
                if trial.ended is not None and len(trial.ended.scores) > rung and trial.batch < batch[0].batch
            }
            everyone |= {number: mean_of(scores[number][rung]) for number in alive}
            if rung < self.task.rungs - 1:
                alive = going_on(everyone, alive, lower=self.task.lower)
        for trial in batch:
            n = trial.number
            self.store.end(n, Ended(tuple(scores[n]), rounds[n], took[n], diverged.get(n)))
            for seed in self.task.seeds:  # no trial goes on later, and they take much of the disk
                shutil.rmtree(self.folder(n, seed) / CHECKPOINTS, ignore_errors=True)

    def _play_rung(self, numbers: Sequence[int], rung: int, run: Run) -> dict[int, list[Reached]]:
        """What the runs of these trials give at a rung, by seed.  Raises what ends a run other than divergence."""
        cells, several = [], len(self.task.seeds) > 1
        for number in numbers:
            trial = self.store.trials[number]
            scenario = with_settings(self.task.base, self.space, self.settings(trial.drawn))
            for seed in self.task.seeds:
                label = f"trial {number}" + (f", seed {seed}" if several else "")
                folder = self.folder(number, seed)
                seeded = with_fields(scenario, {"seed": seed}) if several else scenario
                cells.append(Cell(label, Advance(folder, label, seeded, trial.rungs[rung], self.task.metric), folder))
        if cells:
            names = f"trials {numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else f"trial {numbers[0]}"
            self.on_progress("prepare", {"what": f"{names}: rung {rung + 1} of {self.task.rungs}"})
        found: dict[int, list[Reached]] = {number: [] for number in numbers}
        for cell, outcome in zip(cells, run(cells), strict=True):
            if outcome.error is not None:
                raise outcome.error
            found[int(cell.label.removeprefix("trial ").partition(",")[0])].append(outcome.answer)
        return found

    def folder(self, number: int, seed: int) -> Path:
        """The folder of a trial's run."""
        several = f"-seed-{seed}" if len(self.task.seeds) > 1 else ""
        return self.store.folder / TRIALS / f"{number:04}{several}"

    # -- between phases --

    def _widen(self, number: int) -> None:
        """Widen the ranges, searched by their logarithm, at whose edge the best trial up to this batch is.

        The store of a search that goes on may have later trials, which were drawn from ranges that this made.
        """
        so_far = [trial for trial in self.store.trials if trial.batch <= number]
        best, self.beyond = self.best(so_far), []
        if best is None:
            return
        for i, each in enumerate(self.space):
            if not isinstance(each, NumberRange) or not each.by_log:
                continue
            value = best.drawn[each.name]
            side = each.edge(value)
            if side is None:
                continue
            wider, after = each.widen(side), sum(trial.refused is None for trial in so_far)
            old, new = (each.low, wider.low) if side == "lower" else (each.high, wider.high)
            errors = span_errors(self.task.base, wider, new)
            why_not = reason(errors[0]) if errors else "there is nothing beyond" if new == old else None
            self.widened.append(Widening(
                path=each.name, side=side, after=after, best=best.number, value=value, old=old,
                new=None if why_not else new, why_not=why_not or UNSET,
            ))  # fmt: skip
            if why_not is None:
                self.space[i] = wider
                self.beyond.append((wider, each.added_interval(wider)))

    def best(self, trials: Sequence[StoredTrial]) -> StoredTrial | None:
        """The best trial: of those that got furthest without diverging the one with the best score."""
        sign = 1 if self.task.lower else -1
        known = [
            (-len(trial.ended.scores), sign * score, trial.number)
            for trial in trials
            if trial.ended is not None and trial.ended.diverged is None and (score := trial.score) is not None
        ]
        return self.store.trials[min(known)[2]] if known else None
