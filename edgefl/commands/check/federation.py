"""The tiny federation that a method is checked in: two clients of each kind, towers of two blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edgefl.commands.check_method.findings import Findings
from edgefl.cost import Predictor
from edgefl.methods import Method
from edgefl.planning import Setup
from edgefl.scenario import Scenario, load
from edgefl.training import Node, Report, Task

KINDS = ("image", "text", "image-text")

_SETTING: dict[str, Any] = {
    "name": "check",
    "seed": 1,
    "data": {
        "source": "glyphs",
        "clients": dict.fromkeys(KINDS, 2),
        "partition": "iid",
        "samples": {"image": 27, "text": 25, "image-text": 24},
        "size": 16,
        "validation": 40,
        "test": 24,
        "public": 24,
    },
    "model": {
        "image": {"blocks": 2, "width": 16, "heads": 2, "patch": 8},
        "text": {"blocks": 2, "width": 16, "heads": 2, "tokens": 8},
    },
    # three batches in each of three epochs: one more of each than a prediction runs
    "training": {"batch": 8, "epochs": 3},
    "evaluation": {"batch": 16, "pairs": 40},
}


def tiny_scenario(kinds: Sequence[str], needs: Mapping[str, Any]) -> Scenario:
    """The scenario of two clients of each of these kinds, with the sections that a method ``needs``."""
    data = {**_SETTING["data"], "clients": dict.fromkeys(kinds, 2), **needs.get("data", {})}
    return load({**_SETTING, **needs, "data": data})


@dataclass(frozen=True)
class TinyFederation:
    """A method under check, the objects that run it, and the findings.

    ``new_method`` makes another instance of the method; ``measured`` has the keys of the costs that were compared with
    a measurement, and ``tasks`` the tasks to repeat in a worker process, each with its place and its report.
    """

    method: Method
    new_method: Callable[[], Method]
    scenario: Scenario
    setup: Setup
    findings: Findings
    node: Node
    predictor: Predictor
    measured: set[str] = field(default_factory=set)
    tasks: list[tuple[str, Task, Report]] = field(default_factory=list)
