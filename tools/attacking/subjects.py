"""Small scenarios that train in a second or two, and the commands that start them and go on with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from random import Random
from typing import Any

_TOWER = {"blocks": 2, "width": 16, "heads": 2}


def _scenario(rounds: int = 3, **sections: Any) -> dict[str, Any]:
    return {
        "edgefl": 1, "name": "small", "seed": 3,
        "data": {"source": "glyphs", "clients": {"image": 3, "text": 2}, "samples": 16, "validation": 20, "test": 20},
        "model": {"image": {"tower": "vit", **_TOWER}, "text": {**_TOWER, "tokens": 12}}, "method": "fedavg",
        "schedule": {"name": "end-to-end", "rounds": rounds}, "training": {"batch": 8}, "round": {"cohort": 1.0},
        "executor": {"name": "inline", "device": "cpu"}, "evaluation": {"every": 10},
    } | sections  # fmt: skip


@dataclass(frozen=True)
class Subject:
    """A scenario, and what is typed beside it; a command other than ``run`` has no ``--resume``: the same goes on."""

    scenario: dict[str, Any]
    command: str = "run"
    options: tuple[str, ...] = ()

    @property
    def repeats(self) -> bool:
        """Whether the command that began goes on when it is repeated."""
        return self.command != "run"

    def start(self, folder: str) -> list[str]:
        """The command that begins in ``folder``."""
        return [self.command, "scenario.yaml", *self.options, "-o", folder]

    def resume(self, folder: str) -> list[str]:
        """The command that goes on there."""
        return self.start(folder) if self.repeats else ["run", "--resume", folder]


_ASYNC = {"policy": "asynchronous"}
_BEST = {"every": 10, "best": "image.accuracy"}
ON_RAY = {"name": "ray", "workers": 2, "device": "cpu"}
SUBJECTS = {
    "end-to-end": Subject(_scenario(4)),
    "layerwise": Subject(_scenario(schedule={"name": "layerwise", "stages": 2, "rounds": 4}, method="fedcola")),
    "asynchronous": Subject(_scenario(round={"cohort": 1.0, **_ASYNC})),
    "buffered": Subject(_scenario(round={"cohort": 1.0, "policy": "buffered"})),
    "kept": Subject(_scenario(method={"name": "fedavg", "personal": ["norm"]})),
    "scaffold": Subject(_scenario(method="scaffold", training={"batch": 8, "optimizer": "sgd"})),
    "best": Subject(_scenario(evaluation={"every": 1, "best": "image.accuracy"})),
    "workers": Subject(_scenario(2, executor={"name": "processes", "workers": 2, "device": "cpu"})),
    "compare": Subject(_scenario(2, compare={"seed": [1, 2]})),
    "sweep": Subject(_scenario(1), "sweep", ("--vary", "seed=1,2", "--train")),
    "tune": Subject(_scenario(2), "tune", ("--search", "training.lr=1e-3,1e-2", "--metric", "image.accuracy",
                                           "--trials", "2")),
    "bench": Subject(_scenario(1, compare={"method": ["fedavg", "fedprox"], "seed": [1, 2]}, evaluation=_BEST),
                     "bench"),
} | ({"ray": Subject(_scenario(2, executor=ON_RAY))} if find_spec("ray") else {})  # fmt: skip
COSTLY = ("workers", "ray")
"""Drawn a third as often as the others: their processes import torch anew."""

_POLICIES: tuple[dict[str, Any], ...] = (
    {"policy": "synchronous"}, {"policy": "synchronous", "over_selection": 0.3, "cohort": 0.5},
    {"policy": "asynchronous"}, {"policy": "buffered"}, {"policy": "semi-synchronous"},
)  # fmt: skip
_SCHEDULES = ("end-to-end", "layerwise", "progressive", "elastic", "heterofl", "split")
_EXCHANGES = ("creamfl", "reamfl-mean", "reamfl-avg", "reamfl-iot", "fedmd", "fedet", "fedgems")
"""Methods that need public data."""


def drawn(random: Random, methods: Sequence[str]) -> Subject:
    """A scenario of a drawn method, schedule and policy, which may not go together."""
    method, schedule = random.choice(methods), random.choice(_SCHEDULES)
    options = {"pairs": 10, "public_batch": 4} if method in _EXCHANGES else {}
    stages = {"split": {"after": 1}, "end-to-end": {}, "heterofl": {}}.get(schedule, {"stages": 2})
    scenario = _scenario(
        method={"name": method, **options}, schedule={"name": schedule, **stages, "rounds": 4},
        round={"cohort": 1.0, **random.choice(_POLICIES)}, seed=random.randrange(3),
        executor={"name": "inline", "clock": random.choice(("auto", "events")), "device": "cpu"},
        data={"source": "glyphs", "clients": {"image": 2, "text": 1, "image-text": 2}, "samples": 16, "validation": 20,
              "test": 20, "public": 20},
    )  # fmt: skip
    return Subject(scenario)
