"""The analyses that were asked for, made of finished runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from edgefl.commands.analyse.answer import Analysis
from edgefl.commands.analyse.embeddings import embeddings
from edgefl.commands.analyse.gaps import Clip, gaps
from edgefl.commands.analyse.landscape import landscape
from edgefl.commands.analyse.shapley import EVERYBODY, metrics_of, values_of
from edgefl.commands.analyse.trained_federation import (
    Trained,
    drift,
    gradients,
    matches_nothing,
    matching,
    no_prototypes,
)
from edgefl.errors import RunError
from edgefl.planning.setup import Setup
from edgefl.records.record import UNSET, Maybe
from edgefl.runs import Run
from edgefl.scenario import Scenario
from edgefl.setup.compose import federation_of
from edgefl.work.torch_device import device_of

Made = TypeVar("Made")


def check_matching(names: Sequence[str], setup: Setup, scenario: Scenario) -> None:
    """Raise RunError if matching is asked for by name and the method matches nothing."""
    if "matching" in names and (reason := matches_nothing(setup.method, scenario.method_name)):
        raise RunError(reason)


def made_analyses(
    runs: Mapping[int, Mapping[str, Run]],
    scenario: Scenario,
    setup: Setup,
    selected: Mapping[str, str],
    players: Sequence[str],
    kinds: Sequence[str],
    *,
    folder: Path,
    must: bool,
    clients: int,
    metric: str | None,
    clip: Clip | None,
    samples: int,
    classes: int | None,
    on_message: Callable[[str], None],
) -> Analysis:
    """The answer: each selected analysis that applies, of the runs by seed and coalition.

    ``selected`` has the reason why one doesn't apply, or "".  With ``must`` a RunError says that matching doesn't.
    Without ``runs`` only ``gaps`` is made.
    """
    analysis = Analysis(scenario=scenario.name, method=scenario.method_name, run=None, folder=str(folder), skipped={})
    if clip is not None:
        clip[2].to(device_of(scenario.executor.devices[0]))
        analysis = replace(analysis, gaps=gaps(clip, federation_of(scenario, on_message), kinds, on_message))
    if not runs:
        return analysis
    done = runs[scenario.seed][EVERYBODY]
    last = setup.schedule.stage(setup.schedule.rounds)
    alike = [evaluated for _, evaluated in setup.evaluations(scenario.evaluation.final, last)]
    if metric is not None:
        metrics_of(done, metric, alike)
    skipped = {name: reason for name, reason in selected.items() if reason}
    wanted = [name for name in selected if name not in skipped]
    trained: Trained | None = None
    if set(wanted) - {"shapley", "gaps"}:
        trained = Trained.from_run(done, scenario, on_message)
        reason = matches_nothing(trained.setup.method, scenario.method_name) or no_prototypes(trained)
        if "matching" in selected and reason:
            if must:
                raise RunError(reason)
            skipped["matching"] = reason
            wanted.remove("matching")

    def run_analysis(name: str, make: Callable[[Trained], Made]) -> Made | Maybe:
        return make(trained) if trained is not None and name in wanted else UNSET

    return replace(
        analysis,
        run=str(done.path),
        gradients=run_analysis("gradients", lambda trained: gradients(trained, kinds, clients, on_message)),
        drift=run_analysis("drift", lambda trained: drift(trained, kinds, clients, on_message)),
        matching=run_analysis(
            "matching", lambda trained: matching(trained, kinds, scenario.evaluation.final, on_message)
        ),
        embeddings=run_analysis(
            "embeddings", lambda trained: embeddings(trained, kinds, clients, samples, classes, folder, on_message)
        ),
        landscape=run_analysis("landscape", lambda trained: landscape(trained, kinds, folder, on_message)),
        shapley=values_of(runs, players, kinds, metric, alike) if "shapley" in wanted else UNSET,
        skipped=skipped,
    )
