"""The tiny federation that a method is checked in: two clients of each kind, towers of two blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edgefl import registry
from edgefl.cost.predict import Predictor
from edgefl.methods import Method
from edgefl.planning.setup import Setup
from edgefl.scenario import Scenario, load
from edgefl.schedules import Schedule
from edgefl.testing.findings import Findings
from edgefl.training import Assignment, Node
from edgefl.work.update import Update

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
    "round": {"cohort": "100%"},  # the checks aggregate the updates of all clients
}


def tiny_scenario(kinds: Sequence[str], needs: Mapping[str, Any]) -> Scenario:
    """The scenario of two clients of each of these kinds, with the sections that a method ``needs``."""
    data = {**_SETTING["data"], "clients": dict.fromkeys(kinds, 2), **needs.get("data", {})}
    return load({**_SETTING, **needs, "data": data})


def played_scenario(
    kind: str, name: str, kinds: Sequence[str], options: Mapping[str, object], overrides: Sequence[str]
) -> Scenario:
    """The scenario of a few rounds with this part: clients on two devices, of which each round draws some.

    Raises UnknownName if there is no such part, and ScenarioError for options that it doesn't take.
    """
    nouns = {"policy": "round policy"}
    noun = nouns.get(kind, kind)
    owner = registry.get(noun, name) if noun in registry.GROUPS else None
    needs: Mapping[str, Any] = getattr(owner, "needs", {})
    own = {"name": name, **options}
    sections: dict[str, Any] = {"round": {"cohort": 2}, "schedule": {"name": "end-to-end", "rounds": ROUNDS}}
    match kind:
        case "schedule":
            rounds = {"rounds": ROUNDS} if "rounds" in getattr(owner, "Options", Schedule.Options).model_fields else {}
            sections["schedule"] = {**rounds, **own}
        case "selection":
            sections["round"]["selection"] = own
        case "policy":
            # a round takes seconds here, so that one that never ends is found soon
            sections["round"] |= {"policy": name, "patience": "1 min", **options}
        case "aggregation":
            sections["aggregation"] = {"rule": name, **options}
        case _:
            sections["method"] = own
    training = {**_SETTING["training"], "epochs": 1, **needs.get("training", {})}
    fleet = {"devices": {"raspberry-pi-4-4gb": "50%", "raspberry-pi-3b-plus": "50%"}}
    sections = {"fleet": fleet, "executor": {"name": "inline", "device": "cpu"}, **needs, **sections}
    data = {**_SETTING["data"], "clients": dict.fromkeys(kinds, 4), **needs.get("data", {})}
    evaluation = {**_SETTING["evaluation"], "every": 1, **needs.get("evaluation", {})}
    return load({**_SETTING, **sections, "data": data, "training": training, "evaluation": evaluation}, overrides)


ROUNDS = 4
"""Rounds of a run that is checked; it is interrupted after half of them.

A choice: two rounds before it, so that what clients kept in the first is resumed, and two that read it afterwards.
"""


@dataclass(frozen=True)
class TinyFederation:
    """A method under check, the objects that run it, and the findings.

    ``new_method`` makes another instance of the method; ``measured`` has the keys of the costs that were compared with
    a measurement, and ``assignments`` the assignments to repeat in a worker process, each with its place and its
    report.
    """

    method: Method
    new_method: Callable[[], Method]
    scenario: Scenario
    setup: Setup
    findings: Findings
    node: Node
    predictor: Predictor
    measured: set[str] = field(default_factory=set)
    assignments: list[tuple[str, Assignment, Update]] = field(default_factory=list)
