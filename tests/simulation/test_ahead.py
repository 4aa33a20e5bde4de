"""Choices that are drawn beforehand give the records of choices that are made one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from edgefl_games import Games, changed
from edgefl_toys import declared

from edgefl.planning import Setup
from edgefl.simulation.ahead import Ahead
from edgefl.simulation.learning.untrained import Raised
from edgefl.simulation.selection.base import Random

HALF = {"markov": {"on": 0.5, "off": 0.5}}
"""Clients that switch as often as they fly."""
FAILURES = {"before_download": 0.1, "training": 0.1, "corrupted": 0.1, "slow_down": {"share": 0.3, "factor": "2..4"}}

FLEETS: dict[str, dict[str, Any]] = {
    "always": {},
    "switching": {"availability": HALF},
    "rarely there": {"availability": {"markov": {"on": 2.0, "off": 3.0}}},
    "days": {"availability": {"diurnal": {"hours": 8, "start": "spread", "jitter": "2 h"}}},
    "failures": {"failures": FAILURES, "availability": HALF},
    "batteries": {"battery": {"capacity": "1..4 J", "reserve": "20%", "charge_watts": 2.0}, "availability": HALF},
    "joules for all rounds": {"budgets": {"energy_total": "0.2..4 J"}, "availability": HALF},
    "shared line": {"server_link": {"download": "2 Mbit/s", "upload": "1 Mbit/s"}, "failures": FAILURES},
}
ROUNDS: dict[str, dict[str, Any]] = {
    "asynchronous": {"policy": "asynchronous", "cohort": 30, "concurrency": 12, "deadline": 2.0},
    "buffered": {"policy": "buffered", "buffer": 9, "cohort": 20, "stratify": False},
    "everyone": {"policy": "asynchronous", "cohort": 30, "concurrency": 12, "gate": "everyone"},
}


@pytest.fixture(scope="module")
def games(tiny: Callable[..., dict[str, Any]]) -> Games:
    return Games(tiny)


@pytest.fixture(scope="module")
def setup(games: Games) -> Setup:
    tower = {"blocks": 1, "width": 16, "heads": 2}
    data = {**games.tiny()["data"], "clients": {"image": 40, "text": 20}, "samples": 16}
    model = {"image": tower, "text": {**tower, "tokens": 12}}
    return games.setup(**declared({"data": data, "model": model}), schedule={"name": "end-to-end", "rounds": 4})


@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize("fleet", FLEETS)
def test_records_are_those_of_choices_one_by_one(
    games: Games, setup: Setup, fleet: str, rounds: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    links = {"devices": {"raspberry-pi-4-4gb": 1.0}, "links": {"wifi-5": 0.5, "lte": 0.5}}
    asked = changed(setup, round=ROUNDS[rounds], fleet={**links, **FLEETS[fleet]}, jitter=0.3)
    dispatched: list[Any] = []
    dispatch = Ahead.dispatch

    def noting(*given: Any) -> Any:
        dispatched.append(dispatch(*given))
        return dispatched[-1]

    with monkeypatch.context() as patch:
        patch.setattr(Ahead, "dispatch", noting)
        _, ahead = games.none(asked)
    with monkeypatch.context() as patch:
        patch.setattr(Random, "upcoming", lambda *given: [])
        _, one_by_one = games.none(asked)
    assert ahead.tables["clients"] == one_by_one.tables["clients"]
    assert ahead.tables["rounds"] == one_by_one.tables["rounds"]
    used = sum(flight is not None for flight in dispatched)
    assert used >= (10 if fleet == "always" else 1)  # the comparison is of two ways


def test_a_selection_that_picks_in_another_way_is_asked_each_time(games: Games, setup: Setup) -> None:
    class Last(Random):
        def pick(self, share: Any) -> Any:
            return super().pick(share)

    options = changed(setup, round=ROUNDS["asynchronous"]).round
    groups = {"image": np.arange(10), "text": np.arange(10, 15)}
    candidates: Any = type("Any", (), {"groups": groups, "population": {"image": 10, "text": 5}})
    assert Last(options, 1).upcoming(candidates, 1, 3, 1) == []
    assert [len(clients) for clients in Random(options, 1).upcoming(candidates, 1, 3, 1)] == [1, 1, 1]


def test_raised_versions_are_those_of_a_dictionary() -> None:
    rng = np.random.default_rng(0)
    names = [f"a{i}" for i in range(7)]
    steps = [{name: None for name in names if rng.random() < 0.5} for _ in range(12)]
    expected, raised = dict.fromkeys(names, 0), Raised(dict.fromkeys(names, 0), {})
    for number in rng.integers(0, len(steps), 300).tolist():
        before, was = raised, dict(expected)
        raised = raised.raised(steps[number])
        for name in steps[number]:
            expected[name] += 1
        assert dict(raised) == expected and list(raised) == names
        assert dict(before) == was  # an earlier state stays as it is


def test_a_resumed_run_draws_ahead_as_the_whole_one(games: Games, setup: Setup) -> None:
    asked = changed(setup, round=ROUNDS["asynchronous"], fleet={"availability": HALF}, jitter=0.3)
    _, whole = games.none(asked)
    for round in (1, 2, 3):
        _, rest = games.none(asked, since=(round, *whole.states[round]))
        count = len(rest.tables["clients"])
        assert rest.tables["clients"] == whole.tables["clients"][-count:]
