"""Selections that learn: closed forms of what is preferred, checkpoints, and nothing left to the order of news."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import permutations
from math import log, sqrt
from time import process_time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from edgefl.planning.round_options import RoundOptions
from edgefl.simulation.selection.base import Candidates
from edgefl.simulation.selection.by_loss import LossSelection, Oort, PowerOfChoice, utility

BOTH = [PowerOfChoice, Oort]


def everyone(clients: Any) -> Any:
    return np.ones(len(clients), dtype=bool)


def candidates(
    clients: int, ready: Callable[[Any], Any] = everyone, samples: Callable[[Any], Any] = np.ones_like
) -> Any:
    seconds, everyone = (lambda c: 1.0 + c % 5), np.arange(clients)
    return Candidates({"image": everyone}, {"image": clients}, samples, seconds, np.ones_like, list, ready)


def selection(kind: type[LossSelection], seed: int = 1, cohort: float = 4, **own: Any) -> LossSelection:
    return kind(kind.Options(**own), RoundOptions(cohort=cohort), seed)


def record_landings(learner: LossSelection, clients: Any, losses: Any, round: int = 1, seconds: Any = None) -> None:
    clients = np.asarray(clients)
    seconds = np.ones(len(clients)) if seconds is None else np.asarray(seconds)
    learner.learn(clients, np.asarray(losses, dtype=float), seconds, np.full(len(clients), 10), round)


# power of choice ----------------------------------------------------------------------------------------------------


def test_with_every_client_as_a_choice_the_highest_losses_take_part() -> None:
    learner = selection(PowerOfChoice, cohort=3, choices=4)
    record_landings(learner, np.arange(12), [5, 1, 9, 2, 8, 3, 7, 4, 6, 0, 0.5, 0.25])
    assert learner.choose(candidates(12), 2).clients.tolist() == [2, 4, 6]
    # who was never heard from comes first, and who isn't ready doesn't come
    record_landings(learner, [2], [0.1])
    chosen = learner.choose(candidates(13, lambda c: c != 4), 3)
    assert 12 in chosen.clients and 4 not in chosen.clients


def test_one_choice_is_a_draw_by_samples() -> None:
    """With one place and one candidate, chances are the shares of the data."""
    learner, counts = selection(PowerOfChoice, cohort=1, choices=1), np.zeros(4)
    given_ = candidates(4, samples=lambda c: c + 1)
    for round in range(1, 4001):
        counts[learner.choose(given_, round).clients] += 1
    expected = 4000 * np.arange(1, 5) / 10
    assert ((counts - expected) ** 2 / expected).sum() < 16.3  # chi-square, 3 degrees, p = 0.001


def test_two_choices_of_equal_data() -> None:
    """The j-th highest of n losses wins one place among 2 candidates with chance (n - j) / C(n, 2)."""
    learner, counts, n, times = selection(PowerOfChoice, cohort=1, choices=2), np.zeros(6), 6, 4000
    record_landings(learner, np.arange(n), n - np.arange(n))
    for round in range(1, times + 1):
        counts[learner.choose(candidates(n), round).clients] += 1
    expected = times * (n - 1 - np.arange(n)) / 15
    assert counts[-1] == 0
    assert ((counts[:-1] - expected[:-1]) ** 2 / expected[:-1]).sum() < 18.5  # 4 degrees


# Oort ---------------------------------------------------------------------------------------------------------------


def test_utility_by_hand() -> None:
    """Three clients, T = 10 s, a = 2, R = 9: (U / max U + sqrt(0.1 ln 9 / L)) x (10 / t)^2 where t > 10."""
    found = utility(
        np.array([10, 20, 40]),
        np.array([2.0, 0.5, 1.0]),
        np.array([5.0, 20.0, 10.0]),
        np.array([4, 1, 9]),
        round=9,
        preferred=10.0,
        penalty=2.0,
    )
    clipped = 20 + 0.9 * 20  # 95 % between 10, 20 and 40: nine tenths of the way from the second to the third
    expected = [
        20 / clipped + sqrt(0.1 * log(9) / 4),
        (10 / clipped + sqrt(0.1 * log(9) / 1)) * (10 / 20) ** 2,
        1 + sqrt(0.1 * log(9) / 9),
    ]
    assert found == pytest.approx(expected, rel=1e-12)


def test_without_exploration_the_best_take_part() -> None:
    own = {"exploration": 0.0, "exploration_least": 0.0, "cutoff": 1.0}
    learner = selection(Oort, cohort=3, **own)
    record_landings(learner, np.arange(30), np.arange(30) + 1.0)
    # the quantile at 95 % clips the two highest, which leaves their order to nobody: three places, the three best
    assert learner.choose(candidates(40), 1).clients.tolist() == [27, 28, 29]
    # slow ones lose by (T / t)^2; who isn't ready is passed over
    record_landings(learner, [29], [30.0], seconds=[100.0])
    assert learner.choose(candidates(40, lambda c: c != 27), 1).clients.tolist() == [25, 26, 28]


def test_explored_places_go_to_the_unknown_and_mostly_to_the_fast() -> None:
    learner, seconds = selection(Oort, cohort=10, exploration=0.4, exploration_least=0.4), []
    record_landings(learner, np.arange(50), np.ones(50))
    for round in range(1, 201):
        chosen = learner.choose(candidates(1000), round).clients
        unknown = chosen[chosen >= 50]
        assert len(chosen) == 10 and len(unknown) in (4, 5)
        seconds += (1.0 + unknown % 5).tolist()
    assert np.mean(seconds) < 2.6  # 3 if speed didn't matter, 5 / (1 + 1/2 + ... + 1/5) = 2.19 if pools had no end


def test_exploration_falls_to_its_least() -> None:
    learner = selection(Oort, cohort=100, exploration=0.8, exploration_decay=0.5, exploration_least=0.3)
    record_landings(learner, np.arange(500), np.ones(500))
    explored = [int((learner.choose(candidates(2000), round).clients >= 500).sum()) for round in range(1, 6)]
    assert explored == [80, 40, 30, 30, 30]


def test_what_the_unknown_or_the_known_cannot_fill_goes_to_the_others() -> None:
    learner = selection(Oort, cohort=10, exploration=0.5, exploration_least=0.5)
    assert len(learner.choose(candidates(100), 1).clients) == 10  # nobody is known
    record_landings(learner, np.arange(98), np.ones(98))
    assert {98, 99} <= set(learner.choose(candidates(100), 2).clients.tolist())  # two are unknown
    chosen = learner.choose(candidates(100, lambda c: c >= 95), 3)  # five are ready
    assert chosen.clients.tolist() == [95, 96, 97, 98, 99]


def test_not_having_been_heard_from_for_long_counts() -> None:
    own = {"exploration": 0.0, "exploration_least": 0.0, "cutoff": 1.0}
    learner = selection(Oort, cohort=1, **own)
    record_landings(learner, np.arange(5), [1.0, 1.01, 1.01, 1.01, 1.01], round=1)
    record_landings(learner, [1, 2, 3, 4], [1.01] * 4, round=50)
    assert learner.choose(candidates(5), 51).clients.tolist() == [0]


# both ---------------------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(BOTH), st.integers(1, 20), st.booleans(), st.data())
def test_places_are_filled_with_ready_clients(
    kind: type[LossSelection], count: int, whole: bool, data: st.DataObject
) -> None:
    ready = np.array(data.draw(st.lists(st.booleans(), min_size=25, max_size=25)))
    known = data.draw(st.lists(st.integers(0, 24), unique=True))
    learner = selection(kind, cohort=count)
    record_landings(learner, known, data.draw(st.lists(st.floats(0, 10), min_size=len(known), max_size=len(known))))
    chosen = learner.choose(candidates(25, lambda c: ready[c]), 2, count if whole else None)
    assert len(chosen.clients) == min(count, ready.sum()) and ready[chosen.clients].all()
    assert (np.diff(chosen.clients) > 0).all() and chosen.unready <= (~ready).sum()


@pytest.mark.parametrize("kind", BOTH)
def test_the_order_of_news_decides_nothing(kind: type[LossSelection]) -> None:
    news = [([3, 1], [0.5, 2.0]), ([7], [1.0]), ([2, 9, 4], [3.0, 0.1, 0.2])]
    found = set()
    for order in permutations(news):
        learner = selection(kind)
        for clients, losses in order:
            record_landings(learner, clients, losses)
        found.add(json.dumps(learner.to_data()) + str(learner.choose(candidates(12), 2).clients))
    assert len(found) == 1


@pytest.mark.parametrize("kind", BOTH)
def test_a_checkpoint_goes_on_with_the_same_choices(kind: type[LossSelection]) -> None:
    def play(learner: LossSelection, rounds: range) -> list[list[int]]:
        drawn = []
        for round in rounds:
            clients = learner.choose(candidates(60), round).clients
            record_landings(learner, clients, 1 / (1.0 + clients + round), round, 1.0 + clients % 3)
            drawn.append(clients.tolist())
        return drawn

    whole, first, second = (selection(kind) for _ in range(3))
    expected = play(whole, range(1, 11))
    found = play(first, range(1, 5))
    second.load_data(json.loads(json.dumps(first.to_data())))
    assert found + play(second, range(5, 11)) == expected
    assert second.to_data() == whole.to_data()


def test_a_proxy_stands_for_power_of_choices_loss_and_for_oorts_utility() -> None:
    samples = np.array([10, 30])
    for proxy, expected in ((None, []), ("samples", [10.0, 30.0]), ("uniform", [1.0, 1.0])):
        for kind in (PowerOfChoice, Oort):
            assert kind.needs_loss and kind.is_blind(kind.Options(proxy=proxy)) == (proxy is not None)
            learner = selection(kind, proxy=proxy)
            learner.learn(np.array([4, 2]), np.full(2, np.nan), np.ones(2), samples, 1)
            found = learner.losses if kind is PowerOfChoice else learner.samples * learner.losses
            assert found.tolist() == pytest.approx(expected[::-1])


@pytest.mark.slow(smaller="test_one_choice_is_a_draw_by_samples")
def test_oort_draws_by_samples_and_not_by_their_square() -> None:
    """Two clients with 1 and 4 times the samples for one place, both within the cutoff: 1 to 4, not 1 to 16.

    The quantile at 95 % of the two utilities is 1/4 + 0.95 x 3/4, so that the draw is by 0.25 to 0.9625.
    """
    own = {"exploration": 0.0, "exploration_least": 0.0, "cutoff": 0.0, "proxy": "samples"}
    learner, counts, times = selection(Oort, cohort=1, **own), np.zeros(2), 4000
    learner.learn(np.arange(2), np.full(2, np.nan), np.ones(2), np.array([100, 400]), 1)
    for round in range(1, times + 1):
        learner.last[:] = 10**9  # no bonus for old reports
        counts[learner.choose(candidates(2), round).clients] += 1
    expected = times * np.array([0.25, 0.9625]) / 1.2125
    assert ((counts - expected) ** 2 / expected).sum() < 10.8  # chi-square, 1 degree, p = 0.001


def test_news_replace_news_and_no_loss_is_no_news() -> None:
    learner = selection(Oort)
    record_landings(learner, [5, 2], [1.0, 2.0], 1, [3.0, 4.0])
    record_landings(learner, [5, 3], [7.0, np.nan], 4, [8.0, 9.0])
    assert (learner.clients.tolist(), learner.losses.tolist()) == ([2, 5], [2.0, 7.0])
    assert (learner.seconds.tolist(), learner.last.tolist()) == ([4.0, 8.0], [1, 4])


@pytest.mark.parametrize(
    ("kind", "own", "message"),
    [
        (PowerOfChoice, {"choices": 0.5}, "greater than or equal to 1"),
        (Oort, {"exploration": "120%"}, "between 0 and 1"),
        (Oort, {"exploration": "10 %", "pacer": 5}, "Extra inputs"),
        (Oort, {"proxy": "loss"}, "'samples' or 'uniform'"),
    ],
)
def test_wrong_fields(kind: type[LossSelection], own: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        kind.Options(**own)


@pytest.mark.parametrize("kind", BOTH)
def test_a_million_clients(kind: type[LossSelection]) -> None:
    learner, given_ = selection(kind, cohort=1000, proxy="samples"), candidates(1_000_000, lambda c: c % 3 > 0)
    started = process_time()
    for round in range(1, 6):
        clients = learner.choose(given_, round).clients
        assert len(clients) == 1000
        record_landings(learner, clients, np.full(1000, np.nan), round)
    assert process_time() - started < 1.5
