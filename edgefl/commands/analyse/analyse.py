"""``edgefl analyse``: what each client kind is worth, and what a trained federation looks like from inside."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from edgefl.commands.analyse.gradients import Trained, drift, gradients
from edgefl.commands.analyse.matching import matches_nothing, matching, no_prototypes
from edgefl.commands.analyse.shapley import EVERYBODY, coalitions, metrics_of, parts_of, played, values_of, without
from edgefl.commands.compose import scenario_of
from edgefl.commands.progress import OnProgress, accepts_observe, messages, silent
from edgefl.commands.run import check
from edgefl.errors import RunError, UnknownName
from edgefl.report import check_figure
from edgefl.report.analysis import ANALYSES, FIGURE_FORMS, draw_analysis
from edgefl.runs import Run, comparison, is_comparison, read_run
from edgefl.runs.durable import replace_file
from edgefl.scenario import Scenario, load

OnMessage = Callable[[str], None]


@accepts_observe
def analyse(
    given: str | os.PathLike[str] | dict[str, Any] | Scenario | Run,
    *,
    only: Sequence[str] = (),
    overrides: Sequence[str] = (),
    output: str | os.PathLike[str] | None = None,
    figure: str | os.PathLike[str] | None = None,
    seeds: int = 1,
    clients: int = 3,
    metric: str | None = None,
    on_progress: OnProgress = silent,
) -> dict[str, Any]:
    """Say what each client kind is worth, and how gradients, drift and matching look in a trained federation.

    Runs that are needed lie in ``output`` and are used again, so that an analysis that was cut off goes on.

    Args:
        given: A finished run (its folder, or a ``Run``), or a scenario, which is run first; what it compares is left
            aside.
        only: Some of ``"shapley"``, ``"gradients"``, ``"drift"``, ``"matching"``; by default all that make sense.
        overrides: Changes of single fields of a scenario.
        output: The folder for runs and ``analysis.json``; by default ``runs/NAME-analysis``, or ``RUN-analysis``
            beside the given run.
        figure: A file (png, pdf, svg) for a drawing of what was found.
        seeds: How many seeds the runs for Shapley values are repeated with: the scenario's and the following ones.
        clients: How many clients of each kind, those with the most samples, are looked at for gradients and drift.
        metric: The one metric that is shared out, ``"image.accuracy"``; by default those that tables show.
        on_progress: Called with the name of an event and its facts.

    Returns:
        Plain data, which also stand in ``analysis.json``: ``shapley``, ``gradients``, ``drift`` and ``matching`` as
        far as they were made, and ``skipped`` with the reason for each that makes no sense here.

    Raises:
        RunError: The folder isn't a finished run's, or an analysis that was asked for makes no sense.
        UnknownName: There is no such analysis or metric.
        ScenarioError: The scenario can't be run.
        TrainingError: A work failed in one of the runs.
    """
    for name in only:
        if name not in ANALYSES:
            raise UnknownName("analysis", name, ANALYSES)
    for what, number in (("seeds", seeds), ("clients", clients)):
        if number < 1:
            raise RunError(f"{what} must be 1 or more, not {number}")
    if figure is not None:
        check_figure(figure, FIGURE_FORMS)

    on_message = messages(on_progress)

    run, scenario = _given(given, overrides)
    if scenario.training.mode == "none":
        raise RunError(f"{scenario.name} says training: none, so that there is nothing trained to analyse")
    players = _players(scenario)
    wanted = _sensible(only, players)
    setup = check(scenario, on_message)
    if "matching" in only and (why := matches_nothing(setup.method, scenario.method_name)):
        raise RunError(why)
    folder = _folder(output, run, scenario)
    place = run.path if run is not None else folder / EVERYBODY
    skipped = {name: why for name, why in wanted.items() if why}
    runs = _runs(
        scenario, players, seeds if "shapley" in wanted and "shapley" not in skipped else 0, folder, run, on_progress
    )
    done = runs[scenario.seed][EVERYBODY]
    last = setup.schedule.stage(setup.schedule.rounds)
    alike = [kinds for _, kinds in setup.evaluations(scenario.evaluation.final, last)]
    if metric is not None:
        metrics_of(done, metric, alike)
    found: dict[str, Any] = {"scenario": scenario.name, "method": scenario.method_name, "run": str(place)}
    found["folder"] = str(folder)
    if set(wanted) - {"shapley"} - set(skipped):
        trained = Trained.of(done, scenario, on_message)
        why = matches_nothing(trained.setup.method, scenario.method_name) or no_prototypes(trained)
        if "matching" in wanted and why:
            if only:
                raise RunError(why)
            skipped["matching"] = why
        _look(found, [name for name in wanted if name not in skipped], trained, players, clients, on_message)
    if "shapley" in wanted and "shapley" not in skipped:
        found["shapley"] = values_of(runs, players, metric, alike)
    found = {**found, "skipped": skipped}
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / "analysis.json", (json.dumps(found, indent=2) + "\n").encode())
    if figure is not None:
        draw_analysis(found, Path(figure))
    on_progress("done", {"folder": str(folder)})
    return found


def _given(given: Any, overrides: Sequence[str]) -> tuple[Run | None, Scenario]:
    """The finished run that was named, if it is one, and the scenario without what it compares."""
    run: Run | None = None
    if isinstance(given, Run):
        run = read_run(given.path)
    elif not isinstance(given, dict | Scenario) and Path(given).is_dir():
        run = read_run(given)
    if run is None:
        return None, without(whole := scenario_of(given, overrides), (), whole.seed)
    if overrides:
        raise RunError("a finished run keeps its scenario: leave out --set, or give the scenario instead of the run")
    if is_comparison(run.path):
        labels = ", ".join(str(path) for path in comparison(run.path).values())
        raise RunError(f"{run.path} holds several runs; name one of them: {labels}")
    if not run.finished:
        raise RunError(f"the run at {run.path} isn't finished: continue it with edgefl run --resume {run.path}")
    return run, load(run.path / "scenario.yaml")


def _players(scenario: Scenario) -> list[str]:
    """The kinds that take part."""
    return [kind for kind, n in scenario.data.clients.items() if n and kind not in scenario.round.leave_out]


def _sensible(only: Sequence[str], players: Sequence[str]) -> dict[str, str]:
    """The analyses that are wanted, each with why it makes no sense here (or nothing).

    Raises RunError where one was asked for by name.
    """
    found = {name: "" for name in ANALYSES if not only or name in only}
    if len(players) < 2 and "shapley" in found:
        found["shapley"] = f"there is one kind of clients, {', '.join(players)}: all that is learnt is its own"
        if only:
            raise RunError(f"nothing to share out: {found['shapley']}")
    return found


def _folder(output: str | os.PathLike[str] | None, run: Run | None, scenario: Scenario) -> Path:
    if output is not None:
        return Path(output)
    if run is not None:
        path = run.path.resolve()
        return path.with_name(f"{path.name}-analysis")
    return Path("runs") / f"{scenario.name}-analysis"


def _runs(
    scenario: Scenario, players: Sequence[str], seeds: int, folder: Path, run: Run | None, on_progress: OnProgress
) -> dict[int, dict[str, Run]]:
    """``{seed: {coalition: run}}`` of so many seeds; for 0 everybody's alone."""
    known = run.path if run is not None else None
    names = [*coalitions(players)] if seeds else [EVERYBODY]
    parts, keys = [], []
    for seed in range(scenario.seed, scenario.seed + max(seeds, 1)):
        for name, part in zip(coalitions(players), parts_of(scenario, players, seed, folder, known), strict=True):
            if name in names:
                keys.append((seed, name))
                parts.append(part)
    found: dict[int, dict[str, Run]] = {}
    for (seed, name), each in zip(keys, played(parts, on_progress), strict=True):
        found.setdefault(seed, {})[name] = each
    return found


def _look(
    found: dict[str, Any],
    wanted: Sequence[str],
    trained: Trained,
    players: Sequence[str],
    clients: int,
    on_message: OnMessage,
) -> None:
    """The analyses of the trained models."""
    if "gradients" in wanted:
        found["gradients"] = gradients(trained, players, clients, on_message)
    if "drift" in wanted:
        found["drift"] = drift(trained, players, clients, on_message)
    if "matching" in wanted:
        found["matching"] = matching(trained, players, trained.scenario.evaluation.final, on_message)
