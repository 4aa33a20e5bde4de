"""``edgefl tune``: search for the settings of a scenario that score best on its validation split."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from statistics import stdev
from typing import Any

import numpy as np

from edgefl import registry
from edgefl.commands.cells.cells import check_jobs, kept_workers
from edgefl.commands.cells.workers import Cell
from edgefl.commands.compose import Given, at_most, federation_of, predictor_of, scenario_of
from edgefl.commands.progress import OnProgress, messages, public_command, silent
from edgefl.commands.run.fingerprint import fixed_part
from edgefl.commands.run.run import Executors, check
from edgefl.commands.tune.draws import distributions, drawn, number_at, optuna, quiet
from edgefl.commands.tune.halving import batches_of, fitted, going_on, rungs_of
from edgefl.commands.tune.trial_run import Advance, Reached, advanced, in_worker
from edgefl.commands.tune.trial_store import TRIALS, Ended, Stored, TrialStore, mean_of
from edgefl.cost import metric_names
from edgefl.errors import DivergedError, EdgeflError, RunError, ScenarioError, suggestion
from edgefl.planning import Setup
from edgefl.planning.stop_options import lower_is_better
from edgefl.planning.workload import binding_counts, evaluated, workload_of
from edgefl.records import UNSET
from edgefl.records.tune import AtEdge, BestSettings, RefusedTrial, SearchedField, TunedTrial, Tuning, Widening
from edgefl.runs import read_run
from edgefl.runs.contents import CHECKPOINTS
from edgefl.runs.durable import replace_file
from edgefl.runs.folders import free_folder, json_text
from edgefl.scenario import Scenario
from edgefl.scenario.problems import reason
from edgefl.scenario.search_space import (
    Searched,
    Side,
    Span,
    searched_of,
    settings_sets,
    settings_yaml,
    span_errors,
    with_fields,
    with_settings,
)

SPLIT = "validation"
"""The split on which trials are scored."""
HEADLINES = ("accuracy", "r@10", "soft_score", "perplexity")
"""Metrics of which the first that an evaluation has is optimised, where none is named."""
MOST_ASKED = 2
"""Refused settings are as many as the trials at most, so that so many times the trials are drawn."""


@public_command
def tune(
    scenario: Given,
    search: Sequence[str],
    *,
    trials: int = 30,
    metric: str | None = None,
    seeds: int = 1,
    overrides: Sequence[str] = (),
    output: str | os.PathLike[str] | None = None,
    jobs: int = 1,
    on_progress: OnProgress = silent,
    progress: bool = False,
) -> Tuning:
    """Search for the settings of a scenario that score best on its validation split; the test split isn't scored.

    Settings are drawn in batches: the first is spread evenly over the ranges, later ones are drawn by Optuna's TPE (the
    extra ``tune``).  Successive halving ends most trials after a ninth or a third of the rounds.  The same call gives
    the same trials, whatever ``jobs`` is.

    Args:
        scenario: A scenario file, the name of a shipped scenario, or a scenario as a dictionary.
        search: Fields with a range or a list, ``"training.lr=1e-4..1e-1"``, ``"method.mu=0.01,0.1,1"``.  A range of
            positive numbers that differ by a factor of ten or more is searched by its logarithm (``linear:0.1..10``
            is not).
        trials: How many settings are tried.
        metric: What is optimised, ``"image.accuracy"``.  By default ``stop.metric``, then ``evaluation.best``, then the
            only kind's accuracy, recall at 10, soft score or perplexity.
        seeds: Over how many seeds each trial runs, from the scenario's on; its score is the mean.
        overrides: Changes of single fields, ``"training.epochs=1"``.
        output: The folder of the trials.  By default ``runs/NAME-tune``, or the first of ``runs/NAME-tune-2``, ... that
            is free.  With the folder of an earlier call of the same search, that goes on.
        jobs: How many runs of trials run side by side, each in a process of its own.
        on_progress: Called with the name of an event and its facts.
        progress: Whether to show a bar, by tqdm or rich, whichever is installed.

    Returns:
        A record: ``best`` (the settings, also as ``sets`` for ``overrides`` and as ``yaml``), ``best_as_given`` (of
        the ranges as given), ``widened``, ``trials``, ``refused`` and what it took.

    Raises:
        ScenarioError: The scenario, a field or the metric is wrong, or there are no validation samples; nothing was
            written.  Also where every trial is refused.
        RunError: Optuna isn't installed, or the folder can't be used or holds another search.
        DivergedError: The models of all trials diverged.
    """
    check_jobs(jobs)
    optuna()  # before data are read
    whole = scenario_of(scenario, overrides)
    space = searched_of(whole, search)
    folder = Path(output) if output is not None else free_folder(f"{whole.name}-tune")
    result = tuned(whole, space, trials, folder, metric=metric, seeds=seeds, jobs=jobs, on_progress=on_progress)
    on_progress("done", {"folder": str(folder)})
    return result


def tuned(
    scenario: Scenario,
    space: Sequence[Searched],
    trials: int,
    folder: Path,
    *,
    metric: str | None = None,
    seeds: int = 1,
    jobs: int = 1,
    on_progress: OnProgress = silent,
) -> Tuning:
    """``tune`` with objects: try ``trials`` settings of a search space, or go on with those in the folder.

    The folder gets ``tune.json`` (the answer) and ``best.yaml`` too.  Raises what ``tune`` does.
    """
    for name, value in (("trials", trials), ("seeds", seeds)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise RunError(f"{name} must be 1 or more, not {value!r:.40}")
    optuna()
    on_progress("prepare", {"what": f"preparing {scenario.name}"})
    told = _task(scenario, metric, seeds, on_progress)
    made_of = {
        "scenario": fixed_part(told.base), "search": {each.name: each.told for each in space}, "metric": told.metric,
        "trials": trials, "seeds": seeds, "plug-in files": registry.plug_in_files(),
    }  # fmt: skip
    with quiet():
        store = TrialStore(optuna(), folder, made_of, lower=told.lower)
    on_progress("cells", {"folder": str(folder), "of": trials * seeds})
    search = _Search(told, list(space), trials, store, on_progress)
    with ExitStack() as stack:
        executors = Executors(stack)

        def here(argument: Advance, on_event: OnProgress) -> Reached:
            return advanced(argument, executors, on_event)

        run = stack.enter_context(kept_workers(here if jobs == 1 else in_worker, jobs, on_progress))
        search.run(run)
    result = search.answer()
    replace_file(folder / "tune.json", json_text(result.as_json()))
    replace_file(folder / "best.yaml", result.best.yaml.encode())
    return result


# --- what is asked ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """The scenario as trials run it, the metric, whether lower values are better, the seeds, and how many rungs."""

    base: Scenario
    metric: str
    lower: bool
    seeds: tuple[int, ...]
    rungs: int


def _task(scenario: Scenario, metric: str | None, seeds: int, on_progress: OnProgress) -> Task:
    """What is to be optimised.  Raises ScenarioError for a scenario that can't be tuned, or hasn't this metric."""
    if scenario.compare:
        paths = ", ".join(scenario.compare)
        raise scenario.error(
            ("compare",),
            f"one scenario is tuned, and this one compares {paths}: choose with --set, or --set compare=null",
        )
    if scenario.training.mode == "none":
        raise scenario.error(("training", "mode"), "none trains nothing that could be scored; tune needs real")
    on_message = messages(on_progress)
    followed = scenario.stop.metric or scenario.evaluation.best
    base = with_fields(scenario, {
        "evaluation.split": SPLIT, "evaluation.final": SPLIT, "evaluation.best": None, "training.on_divergence": "stop",
    })  # fmt: skip
    setup = check(base, on_message)
    samples = federation_of(base, on_message).server_samples.get(SPLIT, {})
    if not any(samples.values()):
        raise scenario.error(
            ("data", "validation"), "trials are scored on validation samples, and there are none: give it some"
        )
    chosen = _metric(setup, metric, followed)
    better = scenario.stop.better if scenario.stop.metric == chosen else None
    return Task(
        base,
        chosen,
        lower_is_better(chosen) if better is None else better == "lower",
        tuple(scenario.seed + i for i in range(seeds)),
        len(rungs_of(setup.schedule.rounds, base.evaluation.every)),
    )


def _metric(setup: Setup, asked: str | None, followed: str | None) -> str:
    """The metric that is optimised.  Raises ScenarioError for one that the evaluation doesn't write."""
    works = setup.evaluations(SPLIT, setup.schedule.stage(1))
    source = setup.clients.server()
    there = [f"{kind}.{name}" for work, kinds in works for name in metric_names(work, source) for kind in kinds]
    if asked is not None:
        if asked not in there:
            raise ScenarioError(f"the evaluation has no {asked!r:.80}{suggestion(asked, there)}", file="--metric")
        return asked
    if followed is not None and followed in there:
        return followed
    found = [name for headline in HEADLINES for name in there if name.partition(".")[2] == headline]
    if len({name.partition(".")[0] for name in there}) != 1 or not found:
        raise ScenarioError(f"say what is optimised: --metric KIND.NAME; there are {', '.join(found or there)}")
    return found[0]


# --- the search ------------------------------------------------------------------------------------------------------


@dataclass
class _Search:
    """A search under way.  ``space`` has the ranges as they are now, ``given`` as they were; ``widened`` says how.

    All that happens is a function of the task and the trials in the store, so that a search which was killed goes on
    as it would have.
    """

    task: Task
    space: list[Searched]
    trials: int
    store: TrialStore
    on_progress: OnProgress
    given: tuple[Searched, ...] = ()
    widened: list[Widening] = field(default_factory=list)
    beyond: list[tuple[Span, tuple[float, float]]] = field(default_factory=list)
    first: int = 1
    exhausted: bool = False

    def __post_init__(self) -> None:
        self.given = tuple(self.space)
        self._predictor = predictor_of(self.task.base)

    def run(self, run: Any) -> None:
        """Draw and play all batches; ``run`` plays a list of cells."""
        widens = any(isinstance(each, Span) and each.by_log for each in self.space)
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
                self._widen()
        if not any(trial.refused is None for trial in self.store.trials):
            reasons = list(dict.fromkeys(trial.refused or "" for trial in self.store.trials))
            raise ScenarioError(f"each of {len(self.store.trials)} settings is refused: {'; '.join(reasons[:3])}")

    # -- a batch --

    def _batch(self, number: int, size: int, fixed: list[dict[str, Any]]) -> list[Stored]:
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
            found = drawn(
                self.space, self.store.trials, self.task.base.seed, lower=self.task.lower, first=self.first,
                fixed=fixed[third] if not left and third < len(fixed) else None,
            )  # fmt: skip
            if found is None:
                self.exhausted = True
                continue
            refused, rungs = self._admitted(self._settings(found))
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

    def _settings(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """The settings of what was drawn."""
        return {
            each.name: found[each.name] if isinstance(each, Span) else each.setting(found[each.name])
            for each in self.space
        }

    def _admitted(self, settings: Mapping[str, Any]) -> tuple[str | None, tuple[int, ...]]:
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
        judged = evaluated(workload)
        if not any(turn.eligible.any() for turn in judged):
            counts = binding_counts(judged[0].binding, setup.fleet.budget_names)
            of = int(np.sum(judged[0].binding >= 0))
            refuse = " and ".join(f"{name} {count}" for name, count in counts.items())
            return f"no budget admits it: of {of} clients, by what refuses them, {refuse}", ()
        return None, fitted(setup.schedule.rounds, scenario.evaluation.every, self.task.rungs)

    def _halve(self, batch: Sequence[Stored], run: Any) -> None:
        """Play the trials of a batch from rung to rung, and write what each gave."""
        scores: dict[int, list[tuple[float | None, ...]]] = {trial.number: [] for trial in batch}
        took = dict.fromkeys(scores, 0.0)
        rounds, diverged = dict[int, tuple[int, ...]](), dict[int, str]()
        alive = [trial.number for trial in batch]
        for rung in range(self.task.rungs):
            reached = self._reached(alive, rung, run)
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
                shutil.rmtree(self._folder(n, seed) / CHECKPOINTS, ignore_errors=True)

    def _reached(self, numbers: Sequence[int], rung: int, run: Any) -> dict[int, list[Reached]]:
        """What the runs of these trials give at a rung, by seed.  Raises what ends a run other than divergence."""
        cells, several = [], len(self.task.seeds) > 1
        for number in numbers:
            trial = self.store.trials[number]
            scenario = with_settings(self.task.base, self.space, self._settings(trial.drawn))
            for seed in self.task.seeds:
                label = f"trial {number}" + (f", seed {seed}" if several else "")
                folder = self._folder(number, seed)
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

    def _folder(self, number: int, seed: int) -> Path:
        """The folder of a trial's run."""
        several = f"-seed-{seed}" if len(self.task.seeds) > 1 else ""
        return self.store.folder / TRIALS / f"{number:04}{several}"

    # -- between phases --

    def _widen(self) -> None:
        """Widen the ranges, searched by their logarithm, at whose edge the best trial so far is."""
        best, self.beyond = self._best(self.store.trials), []
        if best is None:
            return
        for i, each in enumerate(self.space):
            if not isinstance(each, Span) or not each.by_log:
                continue
            value = best.drawn[each.name]
            side = each.edge(value)
            if side is None:
                continue
            wider, after = each.widened(side), sum(trial.refused is None for trial in self.store.trials)
            old, new = (each.low, wider.low) if side == "lower" else (each.high, wider.high)
            errors = span_errors(self.task.base, wider, new)
            why_not = reason(errors[0]) if errors else "there is nothing beyond" if new == old else None
            self.widened.append(Widening(
                path=each.name, side=side, after=after, best=best.number, value=value, old=old,
                new=None if why_not else new, why_not=why_not or UNSET,
            ))  # fmt: skip
            if why_not is None:
                self.space[i] = wider
                self.beyond.append((wider, each.added(wider)))

    def _best(self, trials: Sequence[Stored]) -> Stored | None:
        """The best trial: of those that got furthest without diverging the one with the best score."""
        sign = 1 if self.task.lower else -1
        known = [
            (-len(trial.ended.scores), sign * score, trial.number)
            for trial in trials
            if trial.ended is not None and trial.ended.diverged is None and (score := trial.score) is not None
        ]
        return self.store.trials[min(known)[2]] if known else None

    # -- the answer --

    def answer(self) -> Tuning:
        """The record of the search.  Raises DivergedError if the models of all trials diverged."""
        task, tried = self.task, [trial for trial in self.store.trials if trial.refused is None]
        best = self._best(tried)
        if best is None:
            raise DivergedError(
                f"the models of all {len(tried)} trials diverged: search lower learning rates, or clip gradients; the "
                f"trials are in {self.store.folder}"
            )
        as_given = self._best([
            trial for trial in tried if all(each.holds(trial.drawn[each.name]) for each in self.given)
        ])  # fmt: skip
        rows = [self._row(trial) for trial in tried]
        kind, _, name = task.metric.partition(".")
        chance = read_run(self._folder(best.number, task.seeds[0])).evaluation.chance
        full_runs = sum(row.full_runs for row in rows)
        return Tuning(
            scenario=task.base.name,
            at_most=at_most([task.base]) or UNSET,
            folder=str(self.store.folder),
            metric=task.metric,
            split=SPLIT,
            better="lower" if task.lower else "higher",
            chance=chance.get(SPLIT, {}).get(kind, {}).get(name),
            seeds=list(task.seeds),
            asked_for=self.trials,
            exhausted=self.exhausted,
            search=[_field(each) for each in self.given],
            best=self._settings_record(best),
            best_as_given=None if as_given is None else self._settings_record(as_given),
            widened=self.widened,
            at_edge=self._at_edge(best),
            trials=rows,
            refused=[
                RefusedTrial(number=trial.number, settings=self._settings(trial.drawn), refused=trial.refused)
                for trial in self.store.trials
                if trial.refused is not None
            ],
            full_runs=full_runs,
            full_runs_share=full_runs / (len(rows) * len(task.seeds)),
            seconds=sum(row.seconds for row in rows),
        )

    def _row(self, trial: Stored) -> TunedTrial:
        ended = trial.ended
        assert ended is not None
        last = ended.scores[-1]
        return TunedTrial(
            number=trial.number,
            settings=self._settings(trial.drawn),
            batch=trial.batch,
            rungs=list(trial.rungs),
            reached=len(ended.scores),
            scores=ended.means,
            score=trial.score,
            seed_scores=list(last),
            deviation=_deviation(last),
            complete=trial.complete,
            diverged=ended.diverged or UNSET,
            rounds=sum(ended.rounds),
            full_runs=sum(ended.rounds) / trial.rungs[-1],
            seconds=ended.seconds,
        )

    def _settings_record(self, trial: Stored) -> BestSettings:
        settings, score = self._settings(trial.drawn), trial.score
        assert trial.ended is not None and score is not None
        return BestSettings(
            number=trial.number,
            settings=settings,
            score=score,
            deviation=_deviation(trial.ended.scores[-1]),
            sets=settings_sets(self.space, settings),
            yaml=settings_yaml(with_settings(self.task.base, self.space, settings), self.space),
        )

    def _at_edge(self, best: Stored) -> list[AtEdge]:
        """The fields whose best value is at the end of what was searched."""
        found = []
        for each in self.space:
            value = self._settings(best.drawn)[each.name]
            side: Side | None = each.edge(value)
            if side is None:
                continue
            where = f"the {side} edge of {each.told}" if isinstance(each, Span) else "an end of its list"
            text = f"{each.name} = {value:g} is at {where}: what lies beyond wasn't tried"
            found.append(AtEdge(path=each.name, side=side, value=value, text=text))
        return found


def _deviation(scores: Sequence[float | None]) -> float | None:
    known = [score for score in scores if score is not None]
    return stdev(known) if len(known) == len(scores) > 1 else None


def _field(each: Searched) -> SearchedField:
    if isinstance(each, Span):
        scale = "log" if each.by_log else "linear"
        return SearchedField(
            path=each.name, scale=scale, whole=each.whole, low=each.low, high=each.high, choices=[]
        )  # fmt: skip
    return SearchedField(path=each.name, scale="choices", whole=False, low=None, high=None, choices=each.values.values)
