"""Rounds in which attackers are more than a rule withstands: refused where all are so, told where one is, and held."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from edgefl_games import Games

from edgefl.errors import DivergedError, ScenarioError
from edgefl.scenario import load
from edgefl.setup.compose import compose

HUGE = 1e30


@pytest.fixture(scope="module")
def games(tiny: Callable[..., dict[str, Any]]) -> Games:
    return Games(tiny)


def attacked(games: Games, aggregation: object, **round: object) -> dict[str, Any]:
    """A scenario of ten clients, two of which send huge finite updates."""
    data = {**games.tiny()["data"], "clients": {"image": 10}, "samples": 16}
    attack = {"name": "scaling", "share": "20%", "factor": HUGE}
    return games.tiny(
        data=data, fleet={"failures": {"attack": attack}}, round={"cohort": 10, **round}, aggregation=aggregation
    )


@pytest.mark.parametrize(
    ("aggregation", "round", "message"),
    [
        ("median", {"cohort": 2}, r"median withstands no attacker in .* at most 2 updates \(round.cohort\).* needs 3"),
        ("multi-krum", {"policy": "buffered", "buffer": 4}, r"multi-krum .* at most 4 updates \(round.buffer\).* 5"),
        ({"rule": "trimmed-mean"}, {"cohort": 9}, "trimmed-mean .* at most 9 .* it needs 10"),
        ({"rule": "krum", "attackers": 0}, {}, "krum withstands no attacker in rounds of at most 10 .* has some$"),
    ],
)  # fmt: skip
def test_rounds_that_never_withstand_one_are_refused(
    games: Games, aggregation: object, round: dict[str, object], message: str
) -> None:
    with pytest.raises(ScenarioError, match=message):
        load(attacked(games, aggregation, **round))
    honest = attacked(games, aggregation, **round)
    del honest["fleet"]
    load(honest)


def finite_and_near(games: Games, scenario: dict[str, Any]) -> bool:
    """Whether the model of a run stays within 100 of its first values, which are below 3."""
    setup = compose(load(scenario))
    try:
        whole, _ = games.real(setup)
    except DivergedError:
        return False
    start = setup.method.initial(setup.seed).tensors
    return all(
        bool(t.isfinite().all()) and float((t - start[a]).abs().max()) < 100
        for a, t in whole.state.tensors.items()
        if t.is_floating_point()
    )


@pytest.mark.parametrize("aggregation", ["median", "multi-krum"])
def test_a_round_with_too_many_attackers_is_told_and_ruins_the_model(games: Games, aggregation: str) -> None:
    """Each client's flight ends in a window of its own, so that some have an attacker's update alone."""
    scenario = attacked(games, aggregation, policy="semi-synchronous", window="2 ms")
    scenario["schedule"] = {"name": "end-to-end", "rounds": 30}
    with pytest.warns(
        RuntimeWarning, match=rf"{aggregation} of \d updates of image clients, \d of them .* withstands 0"
    ):
        assert not finite_and_near(games, scenario)


@pytest.mark.slow(smaller="test_rounds_that_never_withstand_one_are_refused")
@pytest.mark.parametrize("aggregation", ["median", "krum", "multi-krum"])
@pytest.mark.parametrize("kind", ["scaling", "sign-flip"])
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(
    "round",
    [
        {},
        {"cohort": 7},
        {"policy": "buffered", "buffer": 10},
        {"policy": "semi-synchronous", "window": "1 s"},
        {"policy": "semi-synchronous", "window": "2 ms", "quorum": 7, "below_quorum": "wait"},
    ],
    ids=["all", "seven", "buffer", "window", "quorum"],
)
def test_rounds_large_enough_hold(
    games: Games, aggregation: str, kind: str, seed: int, round: dict[str, object]
) -> None:
    """A warning would be an error: no round has more attackers than the rule withstands.

    While a round waits for its quorum, a client that has sent may be sent the model again, and have two updates in it.
    Of seven updates a rule withstands the two of one attacker, not the four of two.
    """
    scenario = attacked(games, aggregation, **round)
    attack = {"name": kind} | ({"share": "10%"} if "quorum" in round else {})
    scenario["seed"] = seed
    scenario["fleet"]["failures"]["attack"].update(attack)
    scenario["schedule"] = {"name": "end-to-end", "rounds": 4}
    assert finite_and_near(games, scenario)
