"""What each kind of clients is worth: the federation of every subset of kinds, and the Shapley value of each kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from math import factorial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from edgefl.commands.progress import OnProgress
from edgefl.commands.run import play
from edgefl.errors import EdgeflError, RunError, UnknownName
from edgefl.report.facts import SHOWN_METRICS
from edgefl.runs import Run, begun, read_run
from edgefl.scenario import Scenario, load

EVERYBODY, NOBODY = "everybody", "nobody"
_NOT_IN_RESULTS = ("executor",)
"""Sections that decide where a run trains and nothing of what comes out."""

Coalition = frozenset[str]


def coalitions(players: Sequence[str]) -> dict[str, Coalition]:
    """Every subset of the kinds by its name, the largest first: everybody, ``image+text``, ..., nobody."""
    found: dict[str, Coalition] = {}
    for size in range(len(players), -1, -1):
        for kinds in combinations(players, size):
            whole = EVERYBODY if size == len(players) else NOBODY
            found[whole if size in (0, len(players)) else "+".join(kinds)] = frozenset(kinds)
    return found


def shapley(value: Mapping[Coalition, float], players: Sequence[str]) -> dict[str, float]:
    """The Shapley value of each player: its mean gain over all orders in which players may join (Shapley 1953).

    ``value`` has every subset.  The values add up to what everybody has more than nobody.
    """
    count, found = len(players), dict.fromkeys(players, 0.0)
    for player in players:
        others = [other for other in players if other != player]
        for size in range(count):
            weight = factorial(size) * factorial(count - size - 1) / factorial(count)
            for kinds in combinations(others, size):
                before = frozenset(kinds)
                found[player] += weight * (value[before | {player}] - value[before])
    return found


# --- runs ------------------------------------------------------------------------------------------------------------


def without(scenario: Scenario, left_out: Sequence[str], seed: int, *, nobody: bool = False) -> Scenario:
    """The scenario with another seed, in which these kinds are never asked; of what it compares its own values."""
    data = {key: part for key, part in scenario.resolved().items() if key != "compare"}
    rounds = {**data["round"], "leave_out": [*data["round"]["leave_out"], *left_out]}
    if nobody:  # a round without anybody is what is wanted, however the scenario takes it
        rounds |= {"below_quorum": "skip"}
    return load({**data, "seed": seed, "round": rounds})


def same_results(one: Scenario, other: Scenario) -> bool:
    """Whether two scenarios give the same results."""
    a, b = ({k: v for k, v in s.resolved().items() if k not in _NOT_IN_RESULTS} for s in (one, other))
    return a == b


def played(parts: Sequence[tuple[str, Path, Scenario]], on_progress: OnProgress) -> list[Run]:
    """The finished runs of these ``(label, folder, scenario)``; what lies in a folder is gone on with, or taken.

    Raises RunError where another scenario's run lies in a folder, or where a run can't be played: says which one.
    """
    for _, folder, scenario in parts:
        if begun(folder) and not same_results(load(folder / "scenario.yaml"), scenario):
            raise RunError(f"{folder} holds the run of another scenario; choose another --output")
    at = ""

    def on_event(event: str, facts: Mapping[str, Any]) -> None:
        nonlocal at
        if event == "combination":  # to whoever listens a run is part of the analysis
            facts = {name: value for name, value in facts.items() if name != "folder"}
            at = facts["label"]
        on_progress(event, facts)

    try:
        play(parts, on_event)
    except EdgeflError as error:
        failed = RunError(f"the run of {at} can't be played: {error}")
        failed.exit_code = error.exit_code
        raise failed from error
    return [read_run(folder) for _, folder, _ in parts]


def parts_of(
    scenario: Scenario, players: Sequence[str], seed: int, folder: Path, known: Path | None
) -> list[tuple[str, Path, Scenario]]:
    """What is to be run for one seed: every coalition in its folder; everybody's may be ``known`` from elsewhere."""
    first = seed == scenario.seed
    base = folder if first else folder / f"seed-{seed}"
    found = []
    for name, kinds in coalitions(players).items():
        left_out = [kind for kind in players if kind not in kinds]
        label = name if first else f"{name},seed={seed}"
        place = known if known is not None and first and name == EVERYBODY else base / name
        found.append((label, place, without(scenario, left_out, seed, nobody=name == NOBODY)))
    return found


# --- what comes out --------------------------------------------------------------------------------------------------


def metrics_of(run: Run, metric: str | None, alike: Sequence[Sequence[str]]) -> list[tuple[list[str], str]]:
    """(kinds, name) of the metrics that are looked at: those that tables show, or the one asked for.

    ``alike`` are the kinds by the model that is scored for them: one model's metrics are looked at once.

    Raises UnknownName if the run has no such metric.
    """
    held = {(kind, name): v for kind, values in run.result["metrics"].items() for name, v in values.items()}
    if metric is None:
        return [(list(k), name) for k in alike for kind, name in held if kind == k[0] and name in SHOWN_METRICS]
    found = [([kind], name) for kind, name in held if f"{kind}.{name}" == metric]
    if not found:
        raise UnknownName("metric", metric, [f"{kind}.{name}" for kind, name in held])
    return found


def values_of(
    runs: Mapping[int, Mapping[str, Run]], players: Sequence[str], metric: str | None, alike: Sequence[Sequence[str]]
) -> dict[str, Any]:
    """Shapley values from ``{seed: {coalition: run}}``: means over seeds, and standard deviations of several.

    ``lost`` is what everybody has more than everybody else; ``alone`` what the kind by itself has more than nobody.
    """
    subsets = coalitions(players)
    measures = ("shapley", "lost", "alone")
    rows = []
    for kinds, name in metrics_of(next(iter(runs.values()))[EVERYBODY], metric, alike):
        kind = kinds[0]
        scores: dict[str, list[float]] = {label: [] for label in subsets}
        found: dict[str, dict[str, list[float]]] = {player: {m: [] for m in measures} for player in players}
        for seed_runs in runs.values():
            value = {who: float(seed_runs[label].result["metrics"][kind][name]) for label, who in subsets.items()}
            for label, who in subsets.items():
                scores[label].append(value[who])
            everyone = subsets[EVERYBODY]
            for player, worth in shapley(value, players).items():
                mine = frozenset([player])
                found[player]["shapley"].append(worth)
                found[player]["lost"].append(value[everyone] - value[everyone - mine])
                found[player]["alone"].append(value[mine] - value[frozenset()])
        rows.append(
            {
                "kind": kind,
                "kinds": kinds,
                "metric": name,
                "values": {label: fmean(each) for label, each in scores.items()},
                "values_std": {label: _spread(each) for label, each in scores.items()},
                "players": {
                    player: {
                        **{m: fmean(each) for m, each in of.items()},
                        **{f"{m}_std": _spread(each) for m, each in of.items()},
                    }
                    for player, of in found.items()
                },
            }
        )
    return {"players": list(players), "seeds": list(runs), "rows": rows}


def _spread(values: Sequence[float]) -> float | None:
    """Standard deviation of a sample; None of one value."""
    return stdev(values) if len(values) > 1 else None
