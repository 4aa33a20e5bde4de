"""``edgefl bench``: hold the variants of a suite against each other on its fleets, over its seeds."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from edgefl import registry
from edgefl.cells.cells import check_jobs, kept_workers
from edgefl.cells.needs import check
from edgefl.cells.workers import Cell
from edgefl.commands.bench.admissions import Level, Works, content_of, levels_of, works_of
from edgefl.commands.bench.answer import BenchAnswer
from edgefl.commands.bench.bench_answer import BenchCell, FleetCells, answer_of, run_folder
from edgefl.commands.bench.page import write_bench_page
from edgefl.commands.bench.table import bench_csv
from edgefl.commands.run.command import Executors, run_undrawn
from edgefl.commands.tune.answer import Tuning
from edgefl.commands.tune.batches import Run
from edgefl.commands.tune.command import metric_of, tune_scenario
from edgefl.commands.tune.draws import optuna
from edgefl.commands.tune.trial_run import Advance, advance_run
from edgefl.devices import Fleet
from edgefl.devices.budgets import budget_named
from edgefl.errors import DivergedError, EdgeflError, RunError, ScenarioError, text_of
from edgefl.planning.setup import Setup
from edgefl.runs import is_run, read_run
from edgefl.runs.durable import lock_folder, replace_file, writing
from edgefl.runs.folders import check_finished, free_folder, json_text
from edgefl.runs.progress import OnProgress, messages, silent
from edgefl.scenario import Scenario
from edgefl.scenario.document import write
from edgefl.scenario.problems import raise_all, reason
from edgefl.scenario.search_space import parse_search_space, with_settings
from edgefl.scenario.suite import Suite, Variant, read_suite
from edgefl.setup.compose import compose, predictor_of
from edgefl.setup.progress import public_command
from edgefl.units import show_share

RUNS, TRIALS, SUITE, ANSWER = "runs", "tune", "suite.yaml", "bench.json"
"""What is in a suite's folder: runs, trials, the suite as it was run last, and the answer."""


@public_command
def bench(
    suite: str | os.PathLike[str],
    *,
    overrides: Sequence[str] = (),
    out: str | os.PathLike[str] | None = None,
    jobs: int = 1,
    on_progress: OnProgress = silent,
    progress: bool = False,
) -> BenchAnswer:
    """Train the variants of a suite on each of its fleets, and say which is best where, as far as the seeds show it.

    Cells of a variant in which every client can do the same works are one run.  Runs, trials and the answer
    (``bench.json``, ``bench.csv``) stay in the folder; a call with the same folder goes on, and trains what a changed
    suite adds.

    Args:
        suite: A suite's file, that of a scenario which compares (its ``compare`` has the variants, the budget or the
            conditions, and the seeds), or the name of a shipped one (``"small"``).
        overrides: Changes of single fields of the suite's scenario, ``"training.epochs=1"``.
        out: The folder.  By default ``runs/NAME``, or the first of ``runs/NAME-2``, ... that is free.
        jobs: How many runs are trained side by side, each in a process of its own.
        on_progress: Called with the name of an event and its facts.
        progress: Whether to show a bar, by tqdm or rich, whichever is installed.

    Returns:
        A record: ``fleets`` (a row for each variant, and the winner or who is tied), ``ranks``, ``spent`` (the metric
        within totals of time, bytes and energy), ``costs`` until the target, ``variants`` and what was trained.

    Raises:
        ScenarioError: The suite, its scenario or a field is wrong; nothing was written.  Also if no variant can be run.
        RunError: The folder can't be used, or runs failed, after all others have ended: the answer without them is in
            the folder, and the same call tries them again.
    """
    check_jobs(jobs)
    asked = read_suite(os.fspath(suite), overrides)
    on_progress("prepare", {"what": f"preparing {asked.name}"})
    if asked.options.tune is not None:
        optuna()  # before data are read
    began = time.monotonic()
    variants, metric = _check_variants(asked, on_progress)
    with ExitStack() as held:
        if out is None:
            folder = held.enter_context(closing(free_folder(asked.name))).path
        else:
            folder = Path(out)
            _begin(folder, held)
        replace_file(folder / SUITE, write(asked.to_data()).encode())
        on_progress("cells", {"folder": str(folder), "of": len(variants) * len(asked.seeds)})
        executors = Executors(held)

        def here(argument: Advance | _Training, on_event: OnProgress) -> Any:
            return _play_cell(argument, executors, on_event)

        run = held.enter_context(kept_workers(here if jobs == 1 else _in_worker, jobs, on_progress))
        tunings: dict[str, Tuning] = {}
        if asked.options.tune is not None:
            variants, tunings = _tune_variants(asked, variants, metric, folder / TRIALS, run, on_progress)
        fleets, needs = _price_fleets(asked, variants, on_progress)
        failed = _train_runs(fleets, folder / RUNS, run, on_progress)
        result = answer_of(asked, variants, needs, tunings, fleets, failed, folder, metric, time.monotonic() - began)
        replace_file(folder / ANSWER, json_text(result.to_data()))
        replace_file(folder / "bench.csv", bench_csv(result).encode())
        write_bench_page(result, folder / "bench.html")
    if failed:
        told = "; ".join(list(failed.values())[:3])
        more = f" and {len(failed) - 3} more" if len(failed) > 3 else ""
        raise RunError(
            f"{len(failed)} of {result.trained + len(failed)} runs failed: {told}{more}; the answer without them is "
            f"{folder / ANSWER}; go on with: the same command and -o {folder}"
        )
    on_progress("done", {"folder": str(folder)})
    return result


def _begin(folder: Path, held: ExitStack) -> None:
    """Make a suite's folder, or take it up again, and lock it.  Raises RunError if it holds anything else."""
    with writing(folder):
        if folder.exists() and not folder.is_dir():
            raise RunError(f"{folder} is a file; a suite needs a new or empty folder")
        others = [path.name for path in folder.iterdir()] if folder.is_dir() else []
        if others and SUITE not in others:
            raise RunError(f"{folder} already holds files ({others[0]}, ...); choose another folder")
        folder.mkdir(parents=True, exist_ok=True)
    if (lock := lock_folder(folder)) is not None:
        held.enter_context(closing(lock))


# --- variants --------------------------------------------------------------------------------------------------------


def _check_variants(suite: Suite, on_progress: OnProgress) -> tuple[list[Variant], str]:
    """The variants, those that can't be run with the reason, and the metric.  Raises ScenarioError if none can be."""
    variants, errors = list[Variant](), list[EdgeflError]()
    metric, on_message = suite.options.metric, messages(on_progress)
    for variant in suite.variants:
        if variant.refused is not None:
            errors.append(suite.document.error(("variants", variant.name), variant.refused))
            variants.append(variant)
            continue
        try:
            with registry.named_faults():
                scenario = replace(variant.scenario, seed=suite.seeds[0])
                for fields in suite.options.conditions.values() or [{}]:
                    setup = check(suite.with_fields(scenario, "conditions", fields), on_message)
        except EdgeflError as error:
            if not _is_scenario_error(error):
                raise
            errors.append(error)
            variants.append(replace(variant, refused=reason(error)))
            continue
        variants.append(variant)
        try:
            followed = scenario.stop.metric or scenario.evaluation.best
            where = "metric: KIND.NAME, or in a scenario evaluation.best:"
            metric = metric_of(setup, scenario.evaluation.final, metric, followed, where)
        except ScenarioError as error:
            raise suite.document.error(("metric",), f"{error.message} (variant {variant.name})") from error
    if len(errors) == len(variants):
        raise_all([error for error in errors if isinstance(error, ScenarioError)])
        raise errors[0]
    assert metric is not None
    return variants, metric


def _is_scenario_error(error: EdgeflError) -> bool:
    """Whether an error is about the scenario of one variant, so that the others can go on."""
    return error.exit_code == EdgeflError.exit_code and not isinstance(error, RunError)


def _tune_variants(
    suite: Suite, variants: Sequence[Variant], metric: str, folder: Path, run: Run, on_progress: OnProgress
) -> tuple[list[Variant], dict[str, Tuning]]:
    """The variants with the settings that scored best on validation, by equally many trials, and how each was found."""
    found, tunings = list[Variant](), dict[str, Tuning]()
    options = suite.options.tune
    assert options is not None
    for variant in variants:
        if variant.refused is not None:
            found.append(variant)
            continue
        scenario = variant.scenario
        space = parse_search_space(scenario, options.search)
        place = folder / run_folder(variant.name, content_of(scenario, None))
        place.mkdir(parents=True, exist_ok=True)
        on_progress("prepare", {"what": f"{variant.name}: {options.trials} trials"})
        try:
            tuning = tune_scenario(
                scenario, space, options.trials, place, metric=metric, seeds=options.seeds, run=run,
                on_progress=on_progress,
            )  # fmt: skip
        except (ScenarioError, DivergedError) as error:
            found.append(replace(variant, refused=f"tuning: {reason(error)}"))
            continue
        tunings[variant.name] = tuning
        found.append(replace(variant, scenario=with_settings(scenario, space, tuning.best.settings)))
    if not tunings:
        raise suite.document.error(("tune",), f"no variant can be tuned: {found[0].name}: {found[0].refused}")
    return found, tunings


# --- fleets ----------------------------------------------------------------------------------------------------------


def _price_fleets(
    suite: Suite, variants: Sequence[Variant], on_progress: OnProgress
) -> tuple[list[FleetCells], dict[str, list[float]]]:
    """The fleets with their cells, and by variant the amounts of the budget from which a client can do more."""
    on_message, budget = messages(on_progress), suite.options.budget
    runnable = [variant for variant in variants if variant.refused is None]
    works: dict[tuple[str, int], Works] = {}
    for seed in suite.seeds:
        for variant in runnable if budget is not None else ():
            scenario = replace(variant.scenario, seed=seed)
            setup = compose(scenario, on_message)
            works[variant.name, seed] = works_of(scenario, setup, predictor_of(scenario), budget)
    if budget is None:
        conditions = suite.options.conditions or {suite.name: {}}
        return [FleetCells(name, _of_condition(suite, runnable, name, fields, on_progress))
                for name, fields in conditions.items()], {}  # fmt: skip
    needs = {
        variant.name: sorted({amount for seed in suite.seeds for amount in works[variant.name, seed].needs})
        for variant in runnable
    }
    fleets: list[FleetCells] = []
    for share in suite.options.small:
        for level in levels_of(needs, budget, suite.options.at):
            label = fleet_label(budget, share, level)
            cells = _on_fleet(suite, runnable, works, share, level)
            before = fleets[-1] if fleets else None
            if (
                before is not None
                and before.small == share
                and not suite.options.at
                and _has_same_cells(before.cells, cells)
            ):
                assert before.level is not None
                wider = Level(before.level.low, level.high, before.level.amount)
                fleets[-1] = replace(before, name=fleet_label(budget, share, wider), level=wider)
                continue
            if any(cell.eligible_share for of_variant in cells.values() for cell in of_variant):
                fleets.append(FleetCells(label, cells, share, level))
    if not fleets:
        least = min((amount for amounts in needs.values() for amount in amounts), default=inf)
        show = budget_named(budget).quantity.show
        raise suite.document.error(
            ("at",),
            f"no client can train any variant with so little {budget}: the least that a work takes is {show(least)}",
        )
    return fleets, needs


def fleet_label(budget: str, share: float, level: Level) -> str:
    """A fleet's name: ``70 % below 6.1 MiB``."""
    show = budget_named(budget).quantity.show
    if level.low == level.high:
        return f"{show_share(share)} at {show(level.amount)}"
    if level.high == inf:
        return f"{show_share(share)} at {show(level.low)} and more"
    if not level.low:
        return f"{show_share(share)} below {show(level.high)}"
    return f"{show_share(share)} at {show(level.low)} to {show(level.high)}"


def _has_same_cells(first: Mapping[str, Sequence[BenchCell]], second: Mapping[str, Sequence[BenchCell]]) -> bool:
    return all(a.key == b.key for name in first for a, b in zip(first[name], second[name], strict=True))


def _on_fleet(
    suite: Suite, variants: Sequence[Variant], works: Mapping[tuple[str, int], Works], share: float, level: Level
) -> dict[str, list[BenchCell]]:
    """The cells of a fleet by variant, one for each seed."""
    cells: dict[str, list[BenchCell]] = {}
    fields = suite.budget_fields(share, level.amount)
    for variant in variants:
        on_fleet = suite.with_fields(variant.scenario, "budget", fields)
        cells[variant.name] = []
        for seed in suite.seeds:
            of = works[variant.name, seed]
            fleet = Fleet.draw(on_fleet.fleet, len(of.setup.client_group), seed)
            cells[variant.name].append(
                BenchCell(variant.name, seed, replace(on_fleet, seed=seed), of.key(fleet), of.eligible(fleet))
            )
    return cells


def _of_condition(
    suite: Suite, variants: Sequence[Variant], name: str, fields: Mapping[str, Any], on_progress: OnProgress
) -> dict[str, list[BenchCell]]:
    """The cells of a condition by variant, one for each seed."""
    cells: dict[str, list[BenchCell]] = {}
    for variant in variants:
        there = suite.with_fields(variant.scenario, "conditions", fields)
        cells[variant.name] = []
        for seed in suite.seeds:
            scenario = replace(there, seed=seed)
            setup: Setup = compose(scenario, messages(on_progress))
            of = works_of(scenario, setup, predictor_of(scenario), None)
            cells[variant.name].append(
                BenchCell(variant.name, seed, scenario, of.key(setup.fleet), of.eligible(setup.fleet))
            )
    return cells


# --- runs ------------------------------------------------------------------------------------------------------------


class _Training(NamedTuple):
    """A run that is to be trained."""

    folder: Path
    label: str
    scenario: Scenario


def _train_runs(fleets: Sequence[FleetCells], folder: Path, run: Run, on_progress: OnProgress) -> dict[str, str]:
    """Train each run that some cell needs and that isn't finished; returns why some failed, by folder.

    Raises RunError for a finished run whose files were changed.
    """
    cells: dict[str, Cell] = {}
    for fleet in fleets:
        for each in (cell for of_variant in fleet.cells.values() for cell in of_variant):
            if each.eligible_share and each.run not in cells and not _has_finished_run(folder / each.run):
                label = f"{each.variant}, {fleet.name}, seed {each.seed}"
                cells[each.run] = Cell(label, _Training(folder / each.run, label, each.scenario), folder / each.run)
    on_progress("prepare", {"what": f"{len(cells)} runs"})
    failed: dict[str, str] = {}
    for name, outcome in zip(cells, run(list(cells.values())) if cells else (), strict=True):
        if outcome.error is not None and not isinstance(outcome.error, DivergedError):
            failed[name] = f"{outcome.label}: {text_of(outcome.error)}"
    return failed


def _has_finished_run(folder: Path) -> bool:
    if not is_run(folder) or not read_run(folder).is_finished:
        return False
    check_finished(folder)
    return True


def _in_worker(argument: Advance | _Training, on_progress: OnProgress) -> Any:
    """``_play_cell`` in a worker process."""
    with ExitStack() as stack:
        return _play_cell(argument, Executors(stack), on_progress)


def _play_cell(argument: Advance | _Training, executors: Executors, on_progress: OnProgress) -> Any:
    """Play a trial's rounds, or a whole run."""
    if isinstance(argument, Advance):
        return advance_run(argument, executors, on_progress)
    run_undrawn(argument.folder, argument.label, argument.scenario, executors, on_progress)
    return None
