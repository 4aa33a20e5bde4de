"""The choices that a page offers where none are named: schedules, links, batches, ranks, precision, checkpointing."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

from edgefl.commands.fit.changes import schedules_of, splits_of
from edgefl.errors import EdgeflError
from edgefl.scenario import Scenario, load
from edgefl.scenario.document import KeyPath
from edgefl.scenario.keys import key_path
from edgefl.setup.compose import compose
from edgefl.yaml_lines import flow

MOST_ON_PAGE = 1000
"""Cells of a page. A choice: at the rate of the 108 below, a thousand take 47 minutes on two cores."""
MOST_PROPOSED = 108
"""Cells of a page whose choices nobody named: 6 schedules, 3 batches, 3 ranks and 2 precisions.

Of ``finetune/qwen2.5-0.5b`` under LoRA they take five minutes on two cores.
"""
MOST_STAGES = 4
"""Stages of the schedules that are proposed: each takes predictions. A choice, not measured."""
LINKS = ("wifi-5", "lte")
"""Links that a page of split training offers beside the scenario's: waits of 12 and 50 ms, of which a batch has two."""


def propose_axes(scenario: Scenario, link: str | None = None) -> list[str]:
    """Axes such as ``training.batch=20,40,80``, as long as there are few cells; none for what the scenario compares.

    A ``link`` that devices are given leaves no choice of links.
    """
    compared = scenario.axes()
    cells, axes = prod(len(axis.values) for axis in compared), list[str]()
    for path, values in _axes(scenario):
        if (link and path == "fleet.links") or any(
            _within(key_path(path), of) for axis in compared for of in axis.paths
        ):
            continue
        values = [value for value in values if value is values[0] or _loads(scenario, path, value)]
        if len(values) > 1 and cells * len(values) <= MOST_PROPOSED:
            cells *= len(values)
            axes.append(f"{path}={','.join(map(flow, values))}")
    return axes


def _axes(scenario: Scenario) -> Iterator[tuple[str, list[Any]]]:
    """Fields with the values to try, the scenario's own first; what matters most first."""
    training, resolved = scenario.training, scenario.to_data()
    yield "schedule", [resolved["schedule"], *_schedules(scenario)]
    if scenario.schedule_name == "split":
        own = resolved["fleet"]["links"]
        yield "fleet.links", [own, *({link: 1.0} for link in LINKS if {link: 1.0} != own)]
    yield "training.batch", [training.batch, *(_times(training.batch, factor) for factor in (0.5, 2))]
    if scenario.adapter_name != "none":
        if rank := resolved["adapter"].get("rank"):
            yield "adapter.rank", [rank, *sorted({max(rank // 2, 1), 2 * rank} - {rank})]
        other = "bfloat16" if training.precision == "float32" else "float32"
        yield "training.precision", [training.precision, other]
    yield "training.checkpointing", [training.checkpointing, not training.checkpointing]


def _schedules(scenario: Scenario) -> list[dict[str, Any]]:
    """The other schedules to try: of split training the whole model and other cuts.

    Else the first one of each name that ``edgefl fit`` would try, with as many stages as are proposed, and cuts of a
    model that can be split.
    """
    found: dict[str, dict[str, Any]] = {}
    plain = {key: value for key, value in scenario.to_data().items() if key != "compare"}
    try:
        setup = compose(load(plain), trains=False)
    except EdgeflError:  # the cell says why
        return []
    rounds = setup.schedule.rounds
    splits = splits_of(scenario, rounds)
    if scenario.schedule_name == "split":
        after = scenario.schedule_options.after
        return [{"name": "end-to-end", "rounds": rounds}, *(value for value in splits if value["after"] != after)]
    for step in schedules_of(load(plain), setup, growing=True):
        value: Any = step.sets["schedule"]
        if value["name"] != scenario.schedule_name and value.get("stages", 0) <= MOST_STAGES:
            found[value["name"]] = value  # of several the one with the most stages
    others = [found[name] for name in ("progressive", "layerwise") if name in found]
    return [*others, *splits] if "split" in found and _composes({**plain, "schedule": splits[0]}) else others


def _composes(data: dict[str, Any]) -> bool:
    """Whether a scenario can be run."""
    try:
        compose(load(data), trains=False)
    except EdgeflError:
        return False
    return True


def _times(batch: Any, factor: float) -> Any:
    """A batch size, or one for each pattern, times a factor, at least 1."""
    if isinstance(batch, dict):
        return {pattern: _times(size, factor) for pattern, size in batch.items()}
    return max(int(batch * factor), 1)


def _within(one: KeyPath, other: KeyPath) -> bool:
    """Whether one path is the other or leads to it."""
    shorter = min(len(one), len(other))
    return one[:shorter] == other[:shorter]


def _loads(scenario: Scenario, path: str, value: Any) -> bool:
    """Whether the scenario with this value can be read."""
    try:
        load(scenario.to_data(), [f"{path}={flow(value)}"])
    except EdgeflError:
        return False
    return True
