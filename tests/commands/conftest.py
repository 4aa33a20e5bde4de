"""Runs without training whose rounds are explained and traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import edgefl
from edgefl.runs import Run

Tiny = Callable[..., dict[str, Any]]

UNEQUAL = {
    "devices": {"raspberry-pi-3b-plus": 1, "raspberry-pi-4-4gb": 3, "jetson-orin-nano-8gb": 3},
    "links": {"wifi-5": 4, "lte": 3},
    "budgets": {"memory": "400 kB..1.2 MB"},
    "availability": {"markov": {"on": "2 min", "off": "1 min"}},
    "failures": {"slow_down": {"share": "40%", "factor": "2..4"}},
}


@pytest.fixture(scope="session")
def untrained(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Run]:
    """A function that runs the tiny scenario without training, with these sections."""

    def play(**sections: Any) -> Run:
        scenario = tiny(training={"mode": "none", "batch": 8}, **sections)
        return edgefl.run(scenario, out=tmp_path_factory.mktemp("untrained") / "run")

    return play


@pytest.fixture(scope="session")
def unequal(untrained: Callable[..., Run]) -> Run:
    """A synchronous run of unequal devices, some over their budget, some offline."""
    return untrained(fleet=UNEQUAL, schedule={"name": "end-to-end", "rounds": 6}, evaluation={"every": 2})


@pytest.fixture(scope="session")
def asynchronous(untrained: Callable[..., Run]) -> Run:
    """A run whose rounds overlap."""
    return untrained(
        fleet={**UNEQUAL, "budgets": {}},
        schedule={"name": "end-to-end", "rounds": 6},
        round={"policy": "asynchronous", "cohort": 3, "concurrency": 4},
    )
