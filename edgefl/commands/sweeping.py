"""``edgefl sweep``: who could take part under each variation, and what it would cost, without training."""

from __future__ import annotations

import csv
import io
import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.commands.composing import Observe, compose, predictor_of, scenario_of, silent
from edgefl.cost import Predictor
from edgefl.data import Federation
from edgefl.eligibility import Verdict
from edgefl.errors import DataError, RunError
from edgefl.runs.durable import replace_file, writing
from edgefl.runs.tables import mend, plain
from edgefl.scenario import Scenario, vary
from edgefl.schedules import Stage
from edgefl.simulation import Ledger, Plan, Planner, Setup, judged
from edgefl.work import digest


def sweep(
    scenario: str | os.PathLike[str] | dict[str, Any] | Scenario,
    axes: Sequence[str] = (),
    *,
    overrides: Sequence[str] = (),
    output: str | os.PathLike[str] | None = None,
    observe: Observe = silent,
) -> list[dict[str, Any]]:
    """One row per combination of ``axes`` (``fleet.budgets.memory=16MiB,32MiB``) and of what the scenario compares.

    A row says who fits their budgets in each stage, what refuses the others, which share of the data and classes the
    eligible hold, and what a round costs them: of clients that hold everything frozen already, without jitter.

    With ``output`` rows are kept in ``sweep.jsonl`` and ``sweep.csv`` there; a label that stands there already isn't
    computed again.  Raises ScenarioError, and RunError for a folder that can't be used or that holds rows of
    another scenario.
    """
    whole = scenario_of(scenario, overrides)
    combinations = vary(whole, axes)
    varied = [*whole.compare, *(axis.partition("=")[0].strip() for axis in axes)]
    kept = _Rows(Path(output), dict(combinations)) if output is not None else None
    rows, predictors = [], dict[str, Predictor]()

    def report(text: str) -> None:
        observe("prepare", {"what": text})

    for index, (label, each) in enumerate(combinations):
        observe("combination", {"label": label, "index": index, "of": len(combinations)})
        row = kept.known.get(label) if kept else None
        if row is None:
            predictor = predictors.setdefault(each.executor.device, predictor_of(each))
            sets = {path: _at(each.resolved(), path) for path in varied}
            row = plain({"label": label, "sets": sets, **_row(compose(each, report), predictor)})
            if kept:
                kept.add(row)
        rows.append(row)
    if kept:
        kept.write_csv(rows)
    observe("done", {"folder": str(output) if output is not None else None})
    return rows


def _at(data: Any, path: str) -> Any:
    for key in path.split("."):
        data = data.get(key) if isinstance(data, Mapping) else None
    return data


# --- one row ---------------------------------------------------------------------------------------------------------


def _row(setup: Setup, predictor: Predictor) -> dict[str, Any]:
    planner = Planner(setup, predictor)
    samples = np.asarray(setup.clients.client_samples)
    classes = _class_counts(setup)
    stages, verdicts, plans = [], [], []
    for stage in setup.schedule.stages:
        if not stage.rounds:
            continue
        first = 1 + sum(s.rounds for s in setup.schedule.stages if s.index < stage.index)
        # every copy counts as up to date: what is charged is what a stage itself moves
        found, judged_ = judged(planner, first, Ledger(), defaultdict(int))
        stages.append(_stage_row(setup, stage, found, judged_, samples, classes))
        plans.append(found)
        verdicts.append(judged_)
    clients = len(samples)
    at = [np.array([c in v and v[c].eligible for c in range(clients)], dtype=bool) for v in verdicts]
    ever = np.logical_or.reduce(at)
    rounds = sum(stage["rounds"] for stage in stages)
    hardest = min(stages, key=lambda s: s["eligible"])
    costs = [plans[i][int(c)].cost for i in range(len(stages)) for c in np.flatnonzero(at[i])]
    weights = [stages[i]["rounds"] for i in range(len(stages)) for _ in np.flatnonzero(at[i])]
    slowest = [stage["round_seconds"] for stage in stages]
    return {
        "clients": clients,
        "rounds": rounds,
        "eligible_share": sum(s["rounds"] * s["eligible_share"] for s in stages) / rounds,
        "eligible_share_ever": _share(int(ever.sum()), clients),
        "eligible_share_at_hardest_stage": hardest["eligible_share"],
        "eligible_share_ever_by_kind": {
            kind: _share(int(ever[setup.of_kind(kind)].sum()), len(setup.of_kind(kind))) for kind in setup.clients.kinds
        },
        "eligible_samples_share": sum(s["rounds"] * s["eligible_samples_share"] for s in stages) / rounds,
        "eligible_samples_share_ever": _share(int(samples[ever].sum()), int(samples.sum())),
        "class_coverage_ever": _coverage(classes, ever),
        "hardest_stage": hardest["stage"],
        "refused_by": hardest["refused_by"],
        "peak_memory_bytes": max(p.cost.compute.peak_memory_bytes for found in plans for p in found.values()),
        "eligible_peak_memory_bytes": max((c.compute.peak_memory_bytes for c in costs), default=None),
        "round_seconds": _mean([s for s in slowest if s is not None],
                               [s["rounds"] for s in stages if s["round_seconds"] is not None]),
        "schedule_seconds": sum(stage["rounds"] * (stage["round_seconds"] or 0.0) for stage in stages),
        "download_bytes": _mean([c.traffic.download_bytes for c in costs], weights),
        "upload_bytes": _mean([c.traffic.upload_bytes for c in costs], weights),
        "flops": _mean([c.compute.forward_flops + c.compute.backward_flops for c in costs], weights),
        "energy_joules": _mean([c.duration.energy_joules for c in costs], weights),
        "stages": stages,
    }  # fmt: skip


def _stage_row(
    setup: Setup,
    stage: Stage,
    plans: Mapping[int, Plan],
    verdicts: Mapping[int, Verdict],
    samples: NDArray[Any],
    classes: NDArray[Any] | None,
) -> dict[str, Any]:
    """Clients of one stage, in all and by kind; shares are of all clients, those that the method leaves out too."""
    everyone = list(range(len(samples)))
    kinds = {kind: setup.of_kind(kind) for kind in setup.clients.kinds}
    return {
        "stage": stage.index,
        "rounds": stage.rounds,
        **_group(everyone, plans, verdicts, samples, classes),
        "kinds": {kind: _group(clients, plans, verdicts, samples, classes) for kind, clients in kinds.items()},
    }


def _group(
    clients: Sequence[int],
    plans: Mapping[int, Plan],
    verdicts: Mapping[int, Verdict],
    samples: NDArray[Any],
    classes: NDArray[Any] | None,
) -> dict[str, Any]:
    able = [c for c in clients if c in verdicts and verdicts[c].eligible]
    refused = Counter(str(verdicts[c].binding) for c in clients if c in verdicts and not verdicts[c].eligible)
    costs = [plans[c].cost for c in able]
    mask = np.zeros(len(samples), dtype=bool)
    mask[able] = True
    return {
        "clients": len(clients),
        "eligible": len(able),
        "eligible_share": _share(len(able), len(clients)),
        "eligible_samples_share": _share(int(samples[mask].sum()), int(samples[list(clients)].sum())),
        "class_coverage": _coverage(classes, mask),
        "refused_by": dict(refused.most_common()),
        "peak_memory_bytes": max((plans[c].cost.compute.peak_memory_bytes for c in clients if c in plans), default=0),
        "round_seconds": max((c.duration.virtual_seconds for c in costs), default=None),
        "download_bytes": _mean([c.traffic.download_bytes for c in costs]),
        "upload_bytes": _mean([c.traffic.upload_bytes for c in costs]),
        "flops": _mean([c.compute.forward_flops + c.compute.backward_flops for c in costs]),
        "energy_joules": _mean([c.duration.energy_joules for c in costs]),
    }


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _mean(values: Sequence[float], weights: Sequence[float] | None = None) -> float | None:
    """The mean, None of nothing."""
    return float(np.average(values, weights=weights)) if values else None


def _class_counts(setup: Setup) -> NDArray[Any] | None:
    """Samples of each class by client, None where the data are only declared."""
    assert isinstance(setup.clients, Federation)
    try:
        return np.asarray(setup.clients.class_counts())[:, :-1]  # the last column has those of no class
    except DataError:
        return None


def _coverage(classes: NDArray[Any] | None, clients: NDArray[Any]) -> float | None:
    """The share of all classes of which some of these clients holds a sample."""
    if classes is None or not classes.shape[1]:
        return None
    return float((classes[clients].sum(axis=0) > 0).mean())


# --- rows on disk ----------------------------------------------------------------------------------------------------


class _Rows:
    """``sweep.jsonl`` in a folder: rows by label, each with the digest of the scenario that it belongs to."""

    def __init__(self, folder: Path, combinations: Mapping[str, Scenario]):
        self.folder, self.path = folder, folder / "sweep.jsonl"
        # where and in how many processes a run would train changes no row
        self._keys = {
            label: digest({**s.resolved(), "executor": s.executor.device}) for label, s in combinations.items()
        }
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            others = [p.name for p in folder.iterdir() if p.name not in ("sweep.jsonl", "sweep.csv")]
        if others and not self.path.exists():
            raise RunError(f"{folder} already holds files ({others[0]}, ...); choose another folder")
        with writing(self.path):
            self.path.touch()
        mend(self.path)
        self.known: dict[str, dict[str, Any]] = {}
        for number, line in enumerate(self.path.read_text(encoding="utf-8").splitlines(), start=1):
            try:
                row = json.loads(line)
                label, key = row["label"], row.pop("scenario_digest")
            except (ValueError, KeyError, TypeError, AttributeError):
                raise RunError(f"{self.path}:{number}: this line is damaged: {line[:60]!r}") from None
            if self._keys.get(label, key) != key:
                raise RunError(
                    f"{self.path}:{number}: {label!r} stands there for another scenario; choose another folder"
                )
            self.known[label] = row

    def add(self, row: Mapping[str, Any]) -> None:
        """Append a row."""
        line = json.dumps({**row, "scenario_digest": self._keys[row["label"]]}, allow_nan=False)
        with writing(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def write_csv(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """All rows of the folder as a table, those of this sweep first; nested fields are joined by a dot."""
        rows = list(rows)
        labels = {row["label"] for row in rows}
        flat = [_flat(row) for row in [*rows, *(r for label, r in self.known.items() if label not in labels)]]
        columns = list(dict.fromkeys(name for row in flat for name in row))
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, restval="")
        writer.writeheader()
        writer.writerows(flat)
        replace_file(self.folder / "sweep.csv", text.getvalue().encode())


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, item in value.items():
        if name == "stages" and not prefix:
            for stage in item:
                flat |= _flat(stage, f"stage{stage['stage']}.")
        elif isinstance(item, Mapping):
            flat |= _flat(item, f"{prefix}{name}.")
        else:
            flat[prefix + name] = json.dumps(item) if isinstance(item, list) else item
    return flat
