"""The search of ``edgefl tune``: what is optimised, and trials in a folder that go on where they stopped."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing, nullcontext
from pathlib import Path

from edgefl import RUN_FORMAT, registry
from edgefl.cells.fingerprint import fixed_part
from edgefl.cells.needs import check, written_metrics
from edgefl.commands.tune.answer import Tuning
from edgefl.commands.tune.batches import TrialTask, TuneSearch
from edgefl.commands.tune.best_settings import SPLIT, answer_of
from edgefl.commands.tune.draws import optuna, quiet
from edgefl.commands.tune.halving import rungs_of
from edgefl.commands.tune.trial_run import Run, player
from edgefl.commands.tune.trial_store import TrialStore
from edgefl.errors import RunError, ScenarioError, suggestion
from edgefl.planning.setup import Setup
from edgefl.records.metrics import MEAN, SHORT, lower_is_better
from edgefl.runs.durable import replace_file
from edgefl.runs.folders import free_folder, json_text
from edgefl.runs.progress import OnProgress, messages, silent
from edgefl.scenario import Scenario
from edgefl.scenario.scenario import with_fields
from edgefl.scenario.search_space import Searched


def tune_scenario(
    scenario: Scenario,
    space: Sequence[Searched],
    trials: int,
    folder: Path | None,
    *,
    metric: str | None = None,
    seeds: int = 1,
    jobs: int = 1,
    run: Run | None = None,
    on_progress: OnProgress = silent,
) -> Tuning:
    """Try ``trials`` settings of a search space, or go on with those in the folder.

    Without a folder it is made, ``runs/NAME-tune`` or the next that is free.  It gets ``tune.json`` (the answer) and
    ``best.yaml`` too.  ``run`` plays the trials' cells, in ``jobs`` of its own.  Raises what ``tune`` does.
    """
    for name, value in (("trials", trials), ("seeds", seeds)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise RunError(f"{name} must be 1 or more, not {value!r:.40}")
    on_progress("prepare", {"what": f"preparing {scenario.name}"})
    told = _task(scenario, metric, seeds, on_progress)
    made_of = {
        "scenario": fixed_part(told.base), "search": {each.name: each.canonical_text for each in space},
        "metric": told.metric, "trials": trials, "seeds": seeds, "plug-in files": registry.plug_in_files(),
        "run format": RUN_FORMAT,
    }  # fmt: skip
    with ExitStack() as held, quiet():
        if folder is None:
            folder = held.enter_context(closing(free_folder(f"{scenario.name}-tune"))).path
        store = TrialStore(optuna(), folder, made_of, lower=told.lower)  # which locks the folder, too
    on_progress("cells", {"folder": str(folder), "of": trials * seeds})
    search = TuneSearch(told, list(space), trials, store, on_progress)
    with player(jobs, on_progress) if run is None else nullcontext(run) as play:
        search.run(play)
    result = answer_of(search)
    replace_file(folder / "tune.json", json_text(result.to_data()))
    replace_file(folder / "best.yaml", result.best.yaml.encode())
    return result


# --- what is asked ---------------------------------------------------------------------------------------------------


def _task(scenario: Scenario, metric: str | None, seeds: int, on_progress: OnProgress) -> TrialTask:
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
        "evaluation.split": SPLIT, "evaluation.final": SPLIT, "evaluation.best": None, "evaluation.reported": None,
        "training.on_divergence": "stop",
    })  # fmt: skip
    setup = check(base, on_message)
    chosen = metric_of(setup, SPLIT, metric, followed)
    better = scenario.stop.better if scenario.stop.metric == chosen else None
    return TrialTask(
        base,
        chosen,
        lower_is_better(chosen) if better is None else better == "lower",
        tuple(scenario.seed + i for i in range(seeds)),
        len(rungs_of(setup.schedule.rounds, base.evaluation.every)),
    )


def metric_of(setup: Setup, split: str, asked: str | None, followed: str | None, option: str = "--metric") -> str:
    """The metric of a split that is asked for, or else followed, or the only kind's headline.

    Raises ScenarioError for one that the evaluation doesn't write.
    """
    there = written_metrics(setup, split)
    if asked is not None:
        if asked not in there:
            raise ScenarioError(f"the evaluation has no {asked!r:.80}{suggestion(asked, there)}", file=option)
        return asked
    if followed is not None and followed in there:
        return followed
    found = [name for headline in SHORT for name in there if name.partition(".")[2] == headline]
    if len({name.partition(".")[0] for name in there} - {MEAN}) != 1 or not found:
        raise ScenarioError(f"name the metric: {option} KIND.NAME; there are {', '.join(found or there)}")
    return found[0]
