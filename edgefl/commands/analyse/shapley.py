"""The Shapley value of each kind of clients, from runs of the federation with every subset of the kinds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from math import factorial, nan
from pathlib import Path
from statistics import fmean, stdev
from tempfile import TemporaryFile

from edgefl.cells.run_scenario import run_parts
from edgefl.commands.analyse.answer import Shapley, ValuedMetric, Worth
from edgefl.errors import EdgeflError, RunError, UnknownName
from edgefl.records.metrics import metric_value, metric_values, shown_metrics, with_means
from edgefl.runs import Run, is_run, read_run
from edgefl.runs.progress import OnProgress
from edgefl.scenario import Scenario, load
from edgefl.setup.compose import has_same_results

EVERYBODY, NOBODY = "everybody", "nobody"

Coalition = frozenset[str]


def coalitions(players: Sequence[str], kinds: Sequence[str]) -> dict[str, Coalition]:
    """Every subset of the players by who takes part, the largest first: everybody, ``image+text``, ..., nobody.

    Those of ``kinds`` that are no players always take part.
    """
    by_name: dict[str, Coalition] = {}
    for size in range(len(players), -1, -1):
        for members in combinations(players, size):
            present = "+".join(kind for kind in kinds if kind in members or kind not in players)
            by_name[EVERYBODY if size == len(players) else present or NOBODY] = frozenset(members)
    return by_name


def shapley(value: Mapping[Coalition, float], players: Sequence[str]) -> dict[str, float]:
    """The Shapley value of each player: its mean gain over all orders in which players may join (Shapley 1953).

    ``value`` has every subset.  The results add up to the value of all players minus that of none.
    """
    count, values = len(players), dict.fromkeys(players, 0.0)
    for player in players:
        others = [other for other in players if other != player]
        for size in range(count):
            weight = factorial(size) * factorial(count - size - 1) / factorial(count)
            for kinds in combinations(others, size):
                before = frozenset(kinds)
                values[player] += weight * (value[before | {player}] - value[before])
    return values


# --- runs ------------------------------------------------------------------------------------------------------------


def without(scenario: Scenario, left_out: Sequence[str], seed: int, *, empty: bool = False) -> Scenario:
    """The scenario with another seed, without clients of these kinds and without its ``compare`` section."""
    data = {key: part for key, part in scenario.to_data().items() if key != "compare"}
    rounds = {**data["round"], "leave_out": [*data["round"]["leave_out"], *left_out]}
    if empty:  # rounds without clients are allowed, whatever the scenario says
        rounds |= {"below_quorum": "skip"}
    return load({**data, "seed": seed, "round": rounds})


def check_folders(parts: Sequence[tuple[str, Path, Scenario]], whole: Path) -> None:
    """Make the ``whole`` folder.

    Raises RunError if nothing can be written there, or if the folder of one of these ``(label, folder, scenario)``
    holds another scenario's run.
    """
    for _, folder, scenario in parts:
        if is_run(folder) and not has_same_results(read_run(folder).scenario, scenario.to_data()):
            raise RunError(f"{folder} holds the run of another scenario; choose another --out")
    try:
        whole.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=whole):
            pass
    except OSError as error:
        why = error.strerror or error
        raise RunError(f"can't write the analysis to {whole}: {why}; choose another folder with --out") from error


def make_runs(
    parts: Sequence[tuple[str, Path, Scenario]], on_progress: OnProgress, jobs: int, address: str | None
) -> None:
    """Run or resume these ``(label, folder, scenario)``.  Raises RunError with the label of a run that fails."""
    label = ""

    def on_event(event: str, facts: Mapping[str, object]) -> None:
        nonlocal label
        if event == "combination":  # a run is only part of the analysis
            facts = {name: value for name, value in facts.items() if name != "folder"}
            label = str(facts["label"])
        on_progress(event, facts)

    try:
        run_parts(parts, on_event, jobs=jobs, address=address)
    except EdgeflError as error:
        failure = RunError(f"the run of {label} failed: {error}" if label else str(error))
        failure.exit_code = error.exit_code
        raise failure from error


def parts_of(
    scenario: Scenario, players: Sequence[str], kinds: Sequence[str], seed: int, folder: Path, known: Path | None
) -> list[tuple[str, Path, Scenario]]:
    """The runs for one seed: every coalition in its folder, but that of all kinds in ``known`` if it is given."""
    first = seed == scenario.seed
    base = folder if first else folder / f"seed-{seed}"
    parts = []
    for name, members in coalitions(players, kinds).items():
        left_out = [kind for kind in players if kind not in members]
        label = name if first else f"{name},seed={seed}"
        run_folder = known if known is not None and first and name == EVERYBODY else base / name
        parts.append((label, run_folder, without(scenario, left_out, seed, empty=name == NOBODY)))
    return parts


# --- what comes out --------------------------------------------------------------------------------------------------


def metrics_of(run: Run, metric: str | None, alike: Sequence[Sequence[str]]) -> list[tuple[list[str], str]]:
    """(kinds, name) of the selected metrics: ``metric``, or by default those that tables show.

    ``alike`` groups the kinds by the model that is evaluated for them: a model's metrics are taken once.

    Raises UnknownName if the run has no such metric.
    """
    metrics = run.result.metrics
    held = {(kind, name): v for kind, values in metrics.items() for name, v in values.items()}
    if metric is None:
        shown = {kind: shown_metrics(values) for kind, values in metrics.items()}
        return [(list(k), name) for k in alike for kind, name in held if kind == k[0] and name in shown[kind]]
    if not metric_values(metrics, metric):
        raise UnknownName("metric", metric, with_means(f"{kind}.{name}" for kind, name in held))
    kind, _, name = metric.partition(".")
    return [([kind], name)]


def values_of(
    runs: Mapping[int, Mapping[str, Run]],
    players: Sequence[str],
    present: Sequence[str],
    metric: str | None,
    alike: Sequence[Sequence[str]],
) -> Shapley:
    """Shapley values from ``{seed: {coalition: run}}``: means over seeds, and standard deviations of several.

    ``lost`` is the value of all kinds minus that of all others; ``alone`` that of the kind alone minus that of none.
    """
    subsets = coalitions(players, present)
    everyone, rows = subsets[EVERYBODY], []
    for kinds, name in metrics_of(next(iter(runs.values()))[EVERYBODY], metric, alike):
        kind = kinds[0]
        by_seed = [
            {members: _number(metric_value(of[label].result.metrics, f"{kind}.{name}"))
             for label, members in subsets.items()}
            for of in runs.values()
        ]  # fmt: skip
        worth = [shapley(value, players) for value in by_seed]
        scores = {label: [value[members] for value in by_seed] for label, members in subsets.items()}
        rows.append(
            ValuedMetric(
                kind=kind,
                kinds=kinds,
                metric=name,
                values={label: fmean(values) for label, values in scores.items()},
                values_std={label: _spread(values) for label, values in scores.items()},
                players={
                    player: _worth(
                        [of[player] for of in worth],
                        [value[everyone] - value[everyone - {player}] for value in by_seed],
                        [value[frozenset([player])] - value[frozenset()] for value in by_seed],
                    )
                    for player in players
                },
            )
        )
    split = next(iter(runs.values()))[EVERYBODY].settings.evaluation.final
    return Shapley(players=list(players), seeds=list(runs), split=split, rows=rows)


def _worth(shapley: Sequence[float], lost: Sequence[float], alone: Sequence[float]) -> Worth:
    return Worth(
        shapley=fmean(shapley),
        lost=fmean(lost),
        alone=fmean(alone),
        shapley_std=_spread(shapley),
        lost_std=_spread(lost),
        alone_std=_spread(alone),
    )


def _spread(values: Sequence[float]) -> float | None:
    """Standard deviation of a sample; None for one value."""
    return stdev(values) if len(values) > 1 else None


def _number(value: float | None) -> float:
    """A metric; records hold null for one that isn't a number."""
    return nan if value is None else value
