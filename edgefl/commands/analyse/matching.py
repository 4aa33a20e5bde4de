"""How often samples with one modality are matched with their class (PmcmFL's Table 5), and the resulting accuracy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from edgefl.commands.analyse.gradients import Trained
from edgefl.methods import Method
from edgefl.methods.prototypes.matching import DISTANCES, MATCHED, MODELS


def matches_nothing(method: Method, name: str) -> str | None:
    """Why a method has no matching to analyse, None if it has."""
    return None if hasattr(method.options, "inference") else f"{name} matches no prototypes (pmcmfl does)"


def no_prototypes(trained: Trained) -> str | None:
    """Why a run of a method that matches has no prototypes to match with, None if it has."""
    wanted = [f"table/prototypes.{modality}" for modality in getattr(trained.setup.method, "modalities", ())]
    if wanted and all(address in trained.state.tensors for address in wanted):
        return None
    return f"{trained.scenario.method_name} made no prototypes in this run: its options don't need them"


def matching(trained: Trained, kinds: Sequence[str], split: str, on_message: Callable[[str], None]) -> dict[str, Any]:
    """The run's final state, evaluated with each ``inference`` that completes samples with one modality.

    By kind, ``inference`` and ``pattern``: the accuracy, and how often the true class is among the 1, 5, 10 and 20 best
    matches (None for zeros, noise and the oracle, which match nothing).  The run's own matching is ``own``.
    """
    method, setup = trained.setup.method, trained.setup
    own = method.options.inference
    stage = setup.schedule.stage(setup.schedule.rounds)
    rows: list[dict[str, Any]] = []
    for inference in dict.fromkeys(("zero", *DISTANCES, own, "oracle")):
        on_message(f"matching by {inference}")
        change: dict[str, Any] = {"inference": inference}
        if inference not in MODELS:
            change["matching"] = None
            if inference not in DISTANCES:
                change["mix"] = 1
        completed = type(method)(method.options.model_copy(update=change), method.setting)
        evaluated: list[tuple[Any, dict[str, float]]] = []
        for kind in kinds:
            work = setup.staged(completed.evaluate(kind, split), stage)
            metrics = next((known_metrics for known, known_metrics in evaluated if known == work), None)
            if metrics is None:
                metrics = dict(trained.do(work, trained.state.wire(work), None, f"matching {inference}").metrics)
                evaluated.append((work, metrics))
            for pattern in dict.fromkeys(pattern for pass_ in work.passes for pattern in pass_.patterns):
                alone = len({p for pass_ in work.passes for p in pass_.patterns}) == 1
                whole = pattern == method.setting.kinds[kind].pattern
                accuracy = metrics.get(f"accuracy[{pattern}]", metrics.get("accuracy") if whole or alone else None)
                if accuracy is None:
                    continue
                rows.append(
                    {"kind": kind, "inference": inference, "own": inference == own, "pattern": pattern,
                     "accuracy": accuracy,
                     "matched": {str(k): metrics.get(f"matched@{k}[{pattern}]") for k in MATCHED}}
                )  # fmt: skip
    return {"split": split, "own": own, "rows": rows}
