"""``edgefl analyse``: the value of each client kind, and gradients, drift and matching of a trained federation."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, TypeVar

from edgefl.cells.cells import check_jobs, shard_of, share_of
from edgefl.cells.needs import check
from edgefl.commands.analyse.answer import Analysis, ShardOfAnalysis
from edgefl.commands.analyse.chart import analysis_chart
from edgefl.commands.analyse.shapley import (
    EVERYBODY,
    check_folders,
    coalitions,
    make_runs,
    metrics_of,
    parts_of,
    values_of,
    without,
)
from edgefl.commands.analyse.table import ANALYSES
from edgefl.commands.analyse.trained_federation import (
    Trained,
    drift,
    gradients,
    matches_nothing,
    matching,
    no_prototypes,
)
from edgefl.commands.run.resume import check_plug_in_files
from edgefl.drawing.figures import FIGURE_FORMS, check_figure, draw_figure
from edgefl.errors import RunError, UnknownName
from edgefl.records.record import UNSET, Maybe
from edgefl.runs import Run, comparison, is_comparison, is_run, read_run
from edgefl.runs.durable import replace_file
from edgefl.runs.progress import OnProgress, messages, silent
from edgefl.scenario import Scenario, load
from edgefl.setup.compose import Given, scenario_of
from edgefl.setup.progress import public_command

Made = TypeVar("Made")


@public_command
def analyse(
    given: Given | Run,
    *,
    only: Sequence[str] = (),
    overrides: Sequence[str] = (),
    out: str | os.PathLike[str] | None = None,
    figure: str | os.PathLike[str] | None = None,
    seeds: int = 1,
    clients: int = 3,
    metric: str | None = None,
    jobs: int = 1,
    address: str | None = None,
    shard: str | None = None,
    on_progress: OnProgress = silent,
) -> Analysis | ShardOfAnalysis:
    """Compute Shapley values of the client kinds, and gradients, drift and matching of a trained federation.

    The runs that this takes are kept in ``out`` and used again, so an interrupted analysis can be continued.

    Args:
        given: A finished run (its folder, or a ``Run``), or a scenario, which is run first; what it compares is
            ignored.
        only: Some of ``"shapley"``, ``"gradients"``, ``"drift"``, ``"matching"``; by default all that apply.
        overrides: Changes of single fields of a scenario.
        out: The folder for runs and ``analysis.json``; by default ``runs/NAME-analysis``, or ``RUN-analysis``
            beside the given run.
        figure: A file (png, pdf, svg) for a drawing of the results.
        seeds: How many seeds the runs for Shapley values are repeated with: the scenario's and the following ones.
        clients: How many clients of each kind, those with the most samples, gradients and drift are computed for.
        metric: The only metric to compute Shapley values of, ``"image.accuracy"``; by default those that tables show.
        jobs: How many runs are made side by side, each in a process of its own.
        address: Make them on the nodes of the Ray cluster at ``"HOST:PORT"``, or ``"auto"`` for the one that this
            machine is a node of.  All nodes see ``out`` at the same path.
        shard: ``"3/50"``: make only the third of 50 shares of the runs.  Calls for the others may use the same
            ``out``; the one that finds all runs finished analyses them.
        on_progress: Called with the name of an event and its facts.

    Returns:
        A record, also written to ``analysis.json``: ``shapley``, ``gradients``, ``drift`` and ``matching``, if they
        were made, and ``skipped`` with the reason for each that doesn't apply.  From a shard that doesn't find all runs
        finished: ``shard``, ``folder``, the number of ``runs`` and how many are ``left``.

    Raises:
        RunError: The folder isn't a finished run's, or an analysis in ``only`` doesn't apply.
        UnknownName: The analysis or metric is unknown.
        ScenarioError: The scenario can't be run.
        TrainingError: A work failed in one of the runs.
    """
    for name in only:
        if name not in ANALYSES:
            raise UnknownName("analysis", name, ANALYSES)
    for what, number in (("seeds", seeds), ("clients", clients)):
        if number < 1:
            raise RunError(f"{what} must be 1 or more, not {number}")
    check_jobs(jobs, address)
    share = None if shard is None else shard_of(shard)
    if figure is not None:
        check_figure(figure, FIGURE_FORMS)

    on_message = messages(on_progress)

    run, scenario = _run_and_scenario(given, overrides)
    if scenario.training.mode == "none":
        raise RunError(f"{scenario.name} has training: none, so there is no trained model to analyse")
    players = _players(scenario)
    selected = _select_analyses(only, players)
    setup = check(scenario, on_message)
    if "matching" in only and (reason := matches_nothing(setup.method, scenario.method_name)):
        raise RunError(reason)
    folder = _folder(out, run, scenario)
    run_folder = run.path if run is not None else folder / EVERYBODY
    skipped = {name: reason for name, reason in selected.items() if reason}
    parts = _parts(scenario, players, seeds if "shapley" in selected and "shapley" not in skipped else 0, folder, run)
    check_folders([part for _, _, part in parts])
    _check_writable(folder)
    make_runs(share_of([part for _, _, part in parts], share), on_progress, jobs, address)
    runs: dict[int, dict[str, Run]] = {}
    left = 0
    for seed, name, (_, path, _) in parts:
        if is_run(path) and (each := read_run(path)).is_finished:
            runs.setdefault(seed, {})[name] = each
        else:  # another shard makes it
            left += 1
    if left:
        return ShardOfAnalysis(shard=shard, folder=str(folder), runs=len(parts), left=left)
    done = runs[scenario.seed][EVERYBODY]
    last = setup.schedule.stage(setup.schedule.rounds)
    alike = [kinds for _, kinds in setup.evaluations(scenario.evaluation.final, last)]
    if metric is not None:
        metrics_of(done, metric, alike)
    wanted = [name for name in selected if name not in skipped]
    trained: Trained | None = None
    if set(wanted) - {"shapley"}:
        trained = Trained.from_run(done, scenario, on_message)
        reason = matches_nothing(trained.setup.method, scenario.method_name) or no_prototypes(trained)
        if "matching" in selected and reason:
            if only:
                raise RunError(reason)
            skipped["matching"] = reason
            wanted.remove("matching")

    def run_analysis(name: str, make: Callable[[Trained], Made]) -> Made | Maybe:
        return make(trained) if trained is not None and name in wanted else UNSET

    result = Analysis(
        scenario=scenario.name,
        method=scenario.method_name,
        run=str(run_folder),
        folder=str(folder),
        gradients=run_analysis("gradients", lambda trained: gradients(trained, players, clients, on_message)),
        drift=run_analysis("drift", lambda trained: drift(trained, players, clients, on_message)),
        matching=run_analysis(
            "matching", lambda trained: matching(trained, players, scenario.evaluation.final, on_message)
        ),
        shapley=values_of(runs, players, metric, alike) if "shapley" in wanted else UNSET,
        skipped=skipped,
    )
    replace_file(folder / "analysis.json", (json.dumps(result.to_data(), indent=2) + "\n").encode())
    if figure is not None:
        draw_figure(analysis_chart(result), Path(figure))
    on_progress("done", {"folder": str(folder)})
    return result


def _run_and_scenario(given: Any, overrides: Sequence[str]) -> tuple[Run | None, Scenario]:
    """The finished run, None if a scenario is given, and the scenario without its ``compare`` section."""
    run: Run | None = None
    if isinstance(given, Run):
        run = read_run(given.path)
    elif isinstance(given, str | os.PathLike) and Path(given).is_dir():
        run = read_run(given)
    if run is None:
        return None, without(whole := scenario_of(given, overrides), (), whole.seed)
    if overrides:
        raise RunError("a finished run keeps its scenario: leave out --set, or give the scenario instead of the run")
    if is_comparison(run.path):
        labels = ", ".join(str(path) for path in comparison(run.path).values())
        raise RunError(f"{run.path} holds several runs; name one of them: {labels}")
    if not run.is_finished:
        raise RunError(f"the run at {run.path} isn't finished: continue it with edgefl run --resume {run.path}")
    check_plug_in_files(run.path)
    return run, load(run.path / "scenario.yaml")


def _players(scenario: Scenario) -> list[str]:
    """The kinds that take part."""
    return [kind for kind, n in scenario.data.clients.items() if n and kind not in scenario.round.leave_out]


def _select_analyses(only: Sequence[str], players: Sequence[str]) -> dict[str, str]:
    """The selected analyses, each with the reason why it doesn't apply, empty if it does.

    Raises RunError if an analysis in ``only`` doesn't apply.
    """
    reasons = {name: "" for name in ANALYSES if not only or name in only}
    if len(players) < 2 and "shapley" in reasons:
        reasons["shapley"] = f"there is one kind of clients, {', '.join(players)}: all that is learned comes from it"
        if only:
            raise RunError(f"no Shapley values: {reasons['shapley']}")
    return reasons


def _folder(out: str | os.PathLike[str] | None, run: Run | None, scenario: Scenario) -> Path:
    if out is not None:
        return Path(out)
    if run is not None:
        path = run.path.resolve()
        return path.with_name(f"{path.name}-analysis")
    return Path("runs") / f"{scenario.name}-analysis"


def _check_writable(folder: Path) -> None:
    """Make the folder of the analysis.  Raises RunError if nothing can be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        why = error.strerror or error
        raise RunError(f"can't write the analysis to {folder}: {why}; choose another folder with --out") from error


def _parts(
    scenario: Scenario, players: Sequence[str], seeds: int, folder: Path, run: Run | None
) -> list[tuple[int, str, tuple[str, Path, Scenario]]]:
    """Seed, coalition and ``(label, folder, scenario)`` of each run; for no seeds only the run with all kinds."""
    known = run.path if run is not None else None
    return [
        (seed, name, part)
        for seed in range(scenario.seed, scenario.seed + max(seeds, 1))
        for name, part in zip(coalitions(players), parts_of(scenario, players, seed, folder, known), strict=True)
        if seeds or name == EVERYBODY
    ]
