"""Round policies of one's own: their options, their quorum, and what others ask of a policy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from edgefl_games import Games, changed
from pydantic import Field

import edgefl
from edgefl import registry
from edgefl.cells.needs import held_updates
from edgefl.errors import EdgeflError, ScenarioError
from edgefl.planning.round_options import RoundOptions
from edgefl.registry.registered import PARTS
from edgefl.results.recorded_rounds import one_run, window_of
from edgefl.scenario import load
from edgefl.simulation import Policy
from edgefl.simulation.policies import FedAsync, FedBuff, SemiSynchronous, Synchronous

SECTIONS: dict[str, Any] = {
    "data": {"source": "glyphs", "clients": {"image": 4}, "samples": 40, "validation": 20, "test": 20},
    "schedule": {"name": "end-to-end", "rounds": 4},
    "training": {"mode": "none", "batch": 8},
}


class Tide(SemiSynchronous):
    """Rounds of a fixed length, which is the policy's own field."""

    class Options(Policy.Options):
        name: Literal["tide"] = "tide"
        hours: float = Field(1.0, gt=0)

    def over(self, started: float) -> float:
        return started + 3600 * float(self.options.hours)


class Pairs(Policy):
    """Two updates end a round, and clients stay under way beyond it."""

    overlapping = True
    play = FedBuff.play

    def updates_needed(self, cohort: int, asked: int) -> int | None:
        return 2


@pytest.fixture(scope="module")
def games(tiny: Callable[..., dict[str, Any]]) -> Games:
    return Games(tiny)


@pytest.fixture(autouse=True)
def _own_policies() -> Iterator[None]:
    edgefl.register("round policy", "tide")(Tide)
    edgefl.register("round policy", "pairs")(Pairs)
    yield
    PARTS.clear()
    registry.forget()


def test_a_policy_of_ones_own_has_options_and_a_quorum(games: Games) -> None:
    """Records are those of the semi-synchronous policy with the same window and quorum."""
    setup = changed(games.setup(**SECTIONS), jitter=0.3)
    longest = max(c["virtual_seconds"] for c in games.none(setup)[1].tables["clients"])
    common = {"cohort": 3, "quorum": 2, "below_quorum": "wait", "retry": longest / 3}
    tide = {"policy": {"name": "tide", "hours": 0.7 * longest / 3600}, **common}
    _, own = games.none(changed(setup, tide))
    _, semi = games.none(changed(setup, {"policy": "semi-synchronous", "window": 0.7 * longest, **common}))
    assert own.tables == semi.tables
    assert all(record["finished"] >= 2 for record in own.tables["rounds"])


def test_what_a_scenario_says_of_a_policy(games: Games) -> None:
    plain, mapping = ({**SECTIONS, "round": {"policy": p}} for p in ("tide", {"name": "tide", "hours": 2}))
    assert load(games.tiny(**plain)).round.policy == Tide.Options(hours=1.0)
    scenario = load(games.tiny(**mapping), ["round.policy.hours=3"])
    assert scenario.round.policy_name == "tide"
    assert scenario.to_data()["round"]["policy"] == {"name": "tide", "hours": 3.0}
    assert load(scenario.to_data()) == scenario
    assert load(games.tiny(**plain), ["round.policy=buffered"]).to_data()["round"]["policy"] == "buffered"
    assert load(games.tiny(**plain), ["round.policy.hours=4"]).round.policy == Tide.Options(hours=4.0)
    with pytest.raises(ScenarioError, match=r"round\.policy\.hour: unknown key.*hours"):
        load(games.tiny(**SECTIONS, round={"policy": {"name": "tide", "hour": 2}}))
    with pytest.raises(ScenarioError, match=r"unknown round policy 'tied'; did you mean 'tide'\?"):
        load(games.tiny(**SECTIONS, round={"policy": {"name": "tied"}}))
    with pytest.raises(ScenarioError, match="quorum is only for rounds that end by time: a round of pairs ends with"):
        load(games.tiny(**SECTIONS, round={"policy": "pairs", "quorum": 2}))


@pytest.mark.parametrize(
    ("policy", "options", "held", "size"),
    [
        (Synchronous, {}, 7, "round.cohort"),
        (FedAsync, {"policy": "asynchronous", "concurrency": 3}, 0, "round.cohort"),
        (FedBuff, {"policy": "buffered", "buffer": 5}, 5, "round.buffer"),
        (SemiSynchronous, {"policy": "semi-synchronous", "concurrency": 3}, 3, "round.cohort"),
        (SemiSynchronous, {"policy": "semi-synchronous"}, 7, "round.cohort"),
        (Tide, {"policy": "tide", "concurrency": 4}, 4, "round.cohort"),
    ],
)
def test_updates_that_the_server_holds(policy: type[Policy], options: dict[str, Any], held: int, size: str) -> None:
    made = policy(policy.Options(), RoundOptions.model_validate(options))
    assert (made.holds(7), made.size) == (held, size)


def test_others_ask_the_policy_and_not_its_name(games: Games, tmp_path: Path) -> None:
    sections = {**SECTIONS, "round": {"policy": {"name": "tide", "hours": 0.5}, "cohort": 2, "concurrency": 3}}
    assert held_updates(games.setup(**sections)).updates == 3
    edgefl.run(games.tiny(**sections), out=tmp_path / "run")
    assert window_of(one_run(tmp_path / "run")) == 1800
    told = edgefl.explain(tmp_path / "run", round=1)
    assert told["policy"] == "tide"
    registry.forget()
    PARTS.clear()
    assert edgefl.explain(tmp_path / "run", round=1)["policy"] == "tide", "a run of a policy that isn't installed"
    with pytest.raises(EdgeflError, match="unknown round policy 'tide'"):
        load(games.tiny(**sections))
