"""What is analysed: the run, the kinds that took part, the analyses that apply, and the runs that they take."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from edgefl.commands.analyse.shapley import (
    EVERYBODY,
    coalitions,
    parts_of,
    without,
)
from edgefl.errors import RunError, UnknownName, install_hint
from edgefl.runs import Run, comparison, is_comparison, is_run, read_run
from edgefl.runs.plug_in_files import check_plug_in_files
from edgefl.scenario import Scenario, load
from edgefl.setup.compose import Given, scenario_of

if TYPE_CHECKING:
    from edgefl.console.options import Place

USUAL = ("shapley", "gradients", "drift", "matching")
"""Names of the analyses that are made unless some are named."""
ANALYSES = (*USUAL, "gaps", *(EXTRA := ("embeddings", "landscape")))
"""Names of all analyses: gaps needs an encoder, and the last scikit-learn, so they are made only if they are named."""


def names_in(only: Sequence[str]) -> list[str]:
    """The names that were given, one by one or several with commas.  Raises UnknownName or RunError."""
    names = [name.strip() for each in only for name in each.split(",")]
    for name in names:
        if name not in ANALYSES:
            raise UnknownName("analysis", name, ANALYSES)
        if name in EXTRA and find_spec("sklearn") is None:
            raise RunError(f"{name} needs scikit-learn: pip install scikit-learn (or, {install_hint('data')})")
    return names


def run_and_scenario(given: Given | Run, overrides: Sequence[str], *, trains: bool) -> tuple[Run | None, Scenario]:
    """The finished run, None if a scenario is given, and the scenario without its ``compare`` section, which trains."""
    run: Run | None = None
    if isinstance(given, Run):
        run = read_run(given.path)
    elif isinstance(given, str | os.PathLike) and Path(given).is_dir():
        run = read_run(given)
    if run is None:
        assert not isinstance(given, Run)
        scenario = without(whole := scenario_of(given, overrides), (), whole.seed)
        return None, _that_trains(scenario) if trains else scenario
    if overrides:
        raise RunError("a finished run keeps its scenario: leave out --set, or give the scenario instead of the run")
    if is_comparison(run.path):
        labels = ", ".join(str(path) for path in comparison(run.path).values())
        raise RunError(f"{run.path} holds several runs; name one of them: {labels}")
    if not run.is_finished:
        raise RunError(f"the run at {run.path} isn't finished: continue it with edgefl run --resume {run.path}")
    check_plug_in_files(run.path)
    return run, _that_trains(load(run.path / "scenario.yaml"))


def _that_trains(scenario: Scenario) -> Scenario:
    """The scenario.  Raises RunError if it trains nothing."""
    if scenario.training.mode == "none":
        raise RunError(f"{scenario.name} has training: none, so there is no trained model to analyse")
    return scenario


def players_of(scenario: Scenario) -> list[str]:
    """The kinds that take part."""
    return [kind for kind, n in scenario.data.clients.items() if n and kind not in scenario.round.leave_out]


def chosen_players(given: Sequence[str], only: Sequence[str], kinds: Sequence[str]) -> Sequence[str]:
    """The kinds that may be absent: all, or those that were given, one by one or several with commas.

    Raises UnknownName for a kind that doesn't take part, RunError for one player or without Shapley values.
    """
    chosen = {name.strip() for each in given for name in each.split(",")}
    if unknown := sorted(chosen - {*kinds}):
        raise UnknownName("kind of clients", unknown[0], kinds)
    if given and only and "shapley" not in only:
        raise RunError("--players is only for shapley: add --only shapley")
    if len(chosen) == 1:
        raise RunError(f"players: {min(chosen)} alone has nobody to share with: name two kinds or more")
    return [kind for kind in kinds if kind in chosen] or kinds


def selected_analyses(only: Sequence[str], players: Sequence[str]) -> dict[str, str]:
    """The selected analyses, each with the reason why it doesn't apply, empty if it does.

    Raises RunError if an analysis in ``only`` doesn't apply.
    """
    reasons = {name: "" for name in ANALYSES if name in (only or USUAL)}
    if len(players) < 2 and "shapley" in reasons:
        reasons["shapley"] = f"there is one kind of clients, {', '.join(players)}: all that is learned comes from it"
        if only:
            raise RunError(f"no Shapley values: {reasons['shapley']}")
    return reasons


def analysis_folder(out: Place | None, run: Run | None, scenario: Scenario) -> Path:
    """The folder for the runs and the answer: ``out``, or one beside the run or under ``runs``."""
    if out is not None:
        return Path(out)
    if run is not None:
        path = run.path.resolve()
        return path.with_name(f"{path.name}-analysis")
    return Path("runs") / f"{scenario.name}-analysis"


def coalition_runs(
    scenario: Scenario, players: Sequence[str], kinds: Sequence[str], seeds: int, folder: Path, run: Run | None
) -> list[tuple[int, str, tuple[str, Path, Scenario]]]:
    """Seed, coalition and ``(label, folder, scenario)`` of each run; for no seeds only the run with all kinds."""
    known = run.path if run is not None else None
    return [
        (seed, name, part)
        for seed in range(scenario.seed, scenario.seed + max(seeds, 1))
        for name, part in zip(
            coalitions(players, kinds), parts_of(scenario, players, kinds, seed, folder, known), strict=True
        )
        if seeds or name == EVERYBODY
    ]


def finished_runs(
    parts: Sequence[tuple[int, str, tuple[str, Path, Scenario]]],
) -> tuple[dict[int, dict[str, Run]], int]:
    """The finished runs by seed and coalition, and how many aren't finished: other shards make them."""
    runs: dict[int, dict[str, Run]] = {}
    for seed, name, (_, path, _) in parts:
        if is_run(path) and (each := read_run(path)).is_finished:
            runs.setdefault(seed, {})[name] = each
    return runs, len(parts) - sum(map(len, runs.values()))
