"""Who is drawn: exact numbers, only the ready, a function of seed and round, uniform."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from time import process_time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgefl import seeds
from edgefl.devices.fleet import apportion
from edgefl.errors import UnknownName
from edgefl.planning.round_options import RoundOptions, parse_selection, places
from edgefl.simulation.selection.base import (
    Candidates,
    GroupDraw,
    Random,
    RoundRobin,
    Selection,
    first_ready,
)
from edgefl.simulation.selection.orders import RandomOrder, by_weight

POPULATION = {"image": 12, "text": 10, "image-text": 8}
EVERYONE = {"image": list(range(12)), "text": list(range(12, 22)), "image-text": list(range(22, 30))}


def everyone(clients: Any) -> Any:
    return np.ones(len(clients), dtype=bool)


def candidates(
    groups: Mapping[str, Sequence[int]],
    ready: Callable[[Any], Any] = everyone,
    population: Mapping[str, int] | None = None,
) -> Candidates:
    arrays = {kind: np.array(clients, dtype=np.int64) for kind, clients in groups.items()}
    sizes = population or {kind: len(clients) for kind, clients in groups.items()}
    return Candidates(arrays, sizes, lambda c: 1 + c % 7, lambda c: 1.0 + c % 5, np.ones_like, list, ready)


def as_it_was_drawn(groups: Mapping[str, Sequence[int]], options: RoundOptions, seed: int, round: int) -> list[int]:
    """The plain draw that recorded figures come from: everyone is there, every client is listed."""
    lists = groups if options.stratify else {"": sorted(c for clients in groups.values() for c in clients)}
    seats = places(options.cohort, {group: len(clients) for group, clients in lists.items()})
    chosen: list[int] = []
    for index, (group, clients) in enumerate(lists.items()):
        draw = seeds.generator(seed, "cohort", round, index)
        chosen += draw.choice(sorted(clients), min(seats[group], len(clients)), replace=False).tolist()
    return sorted(chosen)


# places -------------------------------------------------------------------------------------------------------------


def test_a_share_gives_each_kind_at_least_one() -> None:
    """FedCola: max(int(r N), 1) of each type."""
    assert places(0.25, POPULATION) == {"image": 3, "text": 2, "image-text": 2}
    assert places(0.01, POPULATION) == {"image": 1, "text": 1, "image-text": 1}
    assert places(1.0, POPULATION) == POPULATION


@settings(max_examples=40)
@given(st.integers(1, 60), st.integers(1, 80), st.booleans(), st.sampled_from([Random, RoundRobin]))
def test_a_number_is_met_exactly(cohort: int, clients: int, stratify: bool, kind: type[Selection]) -> None:
    groups = {"image": list(range(clients)), "text": list(range(clients, clients + 7))}
    chosen = kind(kind.Options(), RoundOptions(cohort=cohort, stratify=stratify), 1).choose(candidates(groups), 1)
    assert len(chosen.clients) == min(cohort, clients + 7) == len(set(chosen.clients.tolist()))
    assert (chosen.asked, chosen.unready) == (len(chosen.clients), 0)


@settings(max_examples=40)
@given(st.integers(1, 40), st.booleans(), st.data(), st.sampled_from([Random, RoundRobin]))
def test_a_count_is_met_while_anyone_is_ready(
    count: int, stratify: bool, data: st.DataObject, kind: type[Selection]
) -> None:
    ready = np.array(data.draw(st.lists(st.booleans(), min_size=30, max_size=30)))
    selection = kind(kind.Options(), RoundOptions(stratify=stratify), 3)
    chosen = selection.choose(candidates(EVERYONE, lambda c: ready[c]), 1, count)
    assert len(chosen.clients) == min(count, ready.sum())
    assert ready[chosen.clients].all() and (np.diff(chosen.clients) > 0).all()
    assert chosen.asked - chosen.unready >= len(chosen.clients) and chosen.asked <= 30


def test_places_filled_one_at_a_time_are_shared_as_the_kinds_are() -> None:
    """A largest remainder would give each single place to the largest kind."""
    selection, drawn = Random(Random.Options(), RoundOptions(), 5), []
    for _ in range(3000):
        drawn += selection.choose(candidates(EVERYONE), 1, 1).clients.tolist()
    found = [sum(c in clients for c in drawn) for clients in EVERYONE.values()]
    assert sum(found) == 3000
    expected = np.array([1200, 1000, 800])
    assert ((np.array(found) - expected) ** 2 / expected).sum() < 13.8  # chi-square, 2 degrees, p = 0.001


def test_more_places_than_one_are_never_further_than_one_from_the_share() -> None:
    selection = Random(Random.Options(), RoundOptions(), 5)
    for round in range(1, 30):
        chosen = selection.choose(candidates(EVERYONE), round, 10).clients.tolist()
        for kind, clients in EVERYONE.items():
            assert abs(len(set(chosen) & set(clients)) - POPULATION[kind] / 3) < 1


# the random draw ----------------------------------------------------------------------------------------------------


@settings(max_examples=50)
@given(st.one_of(st.floats(0.01, 1), st.integers(1, 40)), st.integers(0, 2**31), st.integers(1, 50), st.booleans())
def test_where_everyone_is_ready_the_draw_is_the_one_of_recorded_figures(
    cohort: float, seed: int, round: int, stratify: bool
) -> None:
    options = RoundOptions(cohort=cohort, stratify=stratify)
    chosen = Random(Random.Options(), options, seed).choose(candidates(EVERYONE), round).clients
    assert chosen.tolist() == as_it_was_drawn(EVERYONE, options, seed, round)


def test_so_is_that_of_many() -> None:
    options = RoundOptions(cohort=700)
    many = {"image": list(range(0, 90_000, 3)), "text": list(range(1, 30_000, 3))}
    chosen = Random(Random.Options(), options, 7).choose(candidates(many), 4).clients
    assert chosen.tolist() == as_it_was_drawn(many, options, 7, 4)


@settings(max_examples=50)
@given(st.floats(0.01, 1), st.integers(0, 2**31), st.integers(1, 50), st.booleans(), st.data())
def test_only_the_ready_are_drawn_and_nobody_twice(
    share: float, seed: int, round: int, stratify: bool, data: st.DataObject
) -> None:
    able = {k: sorted(data.draw(st.lists(st.sampled_from(c), unique=True))) for k, c in EVERYONE.items()}
    ready = np.array(data.draw(st.lists(st.booleans(), min_size=30, max_size=30)))
    options = RoundOptions(cohort=share, stratify=stratify)
    given_ = candidates(able, lambda c: ready[c], POPULATION)
    chosen = Random(Random.Options(), options, seed).choose(given_, round)
    assert (np.diff(chosen.clients) > 0).all() and ready[chosen.clients].all()
    assert set(chosen.clients.tolist()) <= {c for found in able.values() for c in found}
    assert chosen.unready == chosen.asked - len(chosen.clients)
    if stratify:
        for kind, found in able.items():
            seats = max(int(share * POPULATION[kind]), 1)
            assert len(set(chosen.clients.tolist()) & set(found)) == min(seats, ready[found].sum() if found else 0)


@pytest.mark.parametrize("there", [1.0, 0.9, 0.5, 0.04])
def test_every_ready_client_is_as_likely_as_another(there: float) -> None:
    """Chi-square over 3,000 draws of 5 of some 60 ready ones; p = 0.001 at most."""
    clients = int(60 / there)
    ready = np.zeros(clients, dtype=bool)
    ready[np.random.default_rng(1).permutation(clients)[:60]] = True
    counts = np.zeros(clients)
    selection = Random(Random.Options(), RoundOptions(cohort=5), 11)
    given_ = candidates({"image": range(clients)}, lambda c: ready[c])  # type: ignore[dict-item]
    for round in range(1, 3001):
        counts[selection.choose(given_, round).clients] += 1
    assert counts[~ready].sum() == 0
    expected = 3000 * 5 / 60
    # without replacement the statistic is smaller by (60 - 5) / (60 - 1)
    assert ((counts[ready] - expected) ** 2 / expected).sum() * 59 / 55 < 98.3  # 59 degrees


def test_rounds_seeds_and_calls_draw_differently() -> None:
    options = RoundOptions(cohort=0.5)
    draws = set()
    for seed in (1, 2):
        selection = Random(Random.Options(), options, seed)
        for round in (1, 1, 2, 3, 4):
            draws.add(tuple(selection.choose(candidates(EVERYONE), round).clients.tolist()))
    assert len(draws) == 10


@pytest.mark.parametrize("kind", [Random, RoundRobin])
def test_nobody_to_draw_from(kind: type[Selection]) -> None:
    nobody = candidates(EVERYONE, lambda c: np.zeros(len(c), dtype=bool))
    for options in (RoundOptions(cohort=3), RoundOptions(), RoundOptions(stratify=False)):
        for count in (None, 4):
            assert not len(kind(kind.Options(), options, 1).choose(candidates({}), 1, count).clients)
            assert not len(
                kind(kind.Options(), options, 1)
                .choose(candidates({"image": []}, population={"image": 4}), 1, count)
                .clients
            )
            chosen = kind(kind.Options(), options, 1).choose(nobody, 1, count)
            assert len(chosen.clients) == 0 and chosen.asked == chosen.unready == 30


def test_a_random_order_has_everyone_once() -> None:
    for sums in (None, np.arange(1, 501).cumsum().astype(float)):
        order = RandomOrder(np.random.default_rng(3), 500, sums)
        pieces = []
        while len(found := order.take(20)):
            pieces.append(found)
        assert sorted(np.concatenate(pieces).tolist()) == list(range(500))


def test_chances_go_by_weight_whichever_way_they_are_drawn() -> None:
    """First and second of three with weights 1, 2, 5: P(2 then 1) = 5/8 x 2/3, from running sums and at once."""
    weights = np.array([1.0, 2.0, 5.0])
    exact = {(i, j): weights[i] / 8 * weights[j] / (8 - weights[i]) for i in range(3) for j in range(3) if i != j}
    draw, sparse, dense, times = np.random.default_rng(5), dict.fromkeys(exact, 0), dict.fromkeys(exact, 0), 4000
    # many clients without weight leave room for drawing one after the other
    sums = np.concatenate([weights, np.zeros(40)]).cumsum()
    for _ in range(times):
        order = RandomOrder(draw, 43, sums)
        first = order.take(1).tolist() + order.take(1).tolist()
        sparse[first[0], first[1]] += 1
        found = by_weight(draw, weights).tolist()
        dense[found[0], found[1]] += 1
    for counts in (sparse, dense):
        assert sum((counts[p] - times * exact[p]) ** 2 / (times * exact[p]) for p in exact) < 20.5  # 5 degrees


def test_what_was_asked_ends_with_the_last_place() -> None:
    class Listed:
        left = np.arange(100)

        def take(self, wanted: int) -> Any:
            found, self.left = self.left[:wanted], self.left[wanted:]
            return found

    share = GroupDraw("", np.arange(100), 10, 1, candidates({}, lambda c: c % 3 == 0), np.random.default_rng)
    chosen = first_ready(Listed(), share)
    assert chosen.clients.tolist() == list(range(0, 30, 3)) and (chosen.asked, chosen.unready) == (28, 18)
    chosen = first_ready(Listed(), share, 100)
    assert len(chosen.clients) == 34 and (chosen.asked, chosen.unready) == (100, 66)
    chosen = first_ready(Listed(), share, 3, known=np.array([3, 4, 6]))
    assert chosen.clients.tolist() == [0, 9, 12] and chosen.asked == 10


@pytest.mark.parametrize("here", [[], [7], [7, 1234, 4999]])
def test_where_many_are_away_the_few_are_found_in_their_order(here: list[int]) -> None:
    times_asked = np.zeros(5000, int)

    def few(clients: Any) -> Any:
        times_asked[clients] += 1
        return np.isin(clients, here)

    share = GroupDraw("", np.arange(5000), 2, 1, candidates({}, few), np.random.default_rng)
    chosen = first_ready(RandomOrder(np.random.default_rng(3), 5000), share)
    assert set(chosen.clients.tolist()) <= set(here) and len(chosen.clients) == min(len(here), 2)
    assert chosen.asked - chosen.unready == len(chosen.clients) and times_asked.max() <= 2
    assert chosen.asked == 5000 or len(here) > 2


def test_a_million_clients_cost_what_the_cohort_costs() -> None:
    """Nobody but those asked is touched: 1,000 of 1,000,000 take about as long as 1,000 of 10,000."""
    asked = 0

    def half(clients: Any) -> Any:
        nonlocal asked
        asked += len(clients)
        return clients % 2 == 0

    spent = {}
    for size in (10_000, 1_000_000):
        given_ = candidates({"image": np.arange(size)}, half)  # type: ignore[dict-item]
        selection = Random(Random.Options(), RoundOptions(cohort=1000), 1)
        asked, started = 0, process_time()
        for round in range(1, 21):
            assert len(selection.choose(given_, round).clients) == 1000
        spent[size] = process_time() - started
        assert asked < 20 * 3000
    assert spent[1_000_000] < 5 * spent[10_000] + 0.05


# round-robin --------------------------------------------------------------------------------------------------------


def test_round_robin_goes_on_where_it_stopped_and_passes_over_the_unready() -> None:
    selection = RoundRobin(RoundRobin.Options(), RoundOptions(cohort=0.25), 1)
    given_ = candidates(EVERYONE)
    assert selection.choose(given_, 1).clients.tolist() == [0, 1, 2, 12, 13, 22, 23]
    away = candidates(EVERYONE, lambda c: c != 4)
    second = selection.choose(away, 2)
    assert second.clients.tolist() == [3, 5, 6, 14, 15, 24, 25] and (second.asked, second.unready) == (8, 1)
    # who has left the candidates is no gap to fall into
    fewer = candidates({**EVERYONE, "image": [0, 6, 9]}, population=POPULATION)
    assert selection.choose(fewer, 3).clients.tolist()[:3] == [0, 6, 9]
    assert selection.choose(given_, 4).clients.tolist() == [7, 8, 9, 18, 19, 28, 29]


def test_round_robin_serves_everyone_equally() -> None:
    selection, counts = RoundRobin(RoundRobin.Options(), RoundOptions(cohort=6, stratify=False), 1), np.zeros(30)
    for round in range(1, 11):
        counts[selection.choose(candidates(EVERYONE), round).clients] += 1
    assert (counts == 2).all()


# over-selection, checkpoints, options ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Random, RoundRobin])
def test_a_checkpoint_goes_on_with_the_same_choices(kind: type[Selection]) -> None:
    options, given_ = RoundOptions(cohort=4), candidates(EVERYONE)
    whole = kind(kind.Options(), options, 2)
    for round in (1, 2, 2):
        whole.choose(given_, round)
    resumed = kind(kind.Options(), options, 2)
    resumed.load_data(json.loads(json.dumps(whole.to_data())))
    for round, count in ((2, 3), (2, None), (3, None)):
        expected = whole.choose(given_, round, count).clients.tolist()
        assert resumed.choose(given_, round, count).clients.tolist() == expected
    assert resumed.to_data() == whole.to_data()


@pytest.mark.parametrize(
    ("cohort", "more", "seats"), [(10, 0.1, 11), (10, 0.31, 14), (0.25, 0.3, 4 + 3 + 3), (30, 0.5, 30), (0.25, 0, 7)]
)
def test_over_selection_is_rounded_up(cohort: float, more: float, seats: int) -> None:
    """A number as a whole, a share in each kind: ceil(1.3 x 3), ceil(1.3 x 2) and ceil(1.3 x 2)."""
    options = RoundOptions(cohort=cohort, over_selection=more)
    assert len(Random(Random.Options(), options, 1).choose(candidates(EVERYONE), 1).clients) == seats


def test_a_selection_of_ones_own_says_whom_it_picks() -> None:
    class Lowest(Selection):
        def pick(self, share: GroupDraw) -> Any:
            class Ascending:
                left = np.arange(len(share.clients))

                def take(self, wanted: int) -> Any:
                    found, self.left = self.left[:wanted], self.left[wanted:]
                    return found

            return first_ready(Ascending(), share)

    lowest = Lowest(Lowest.Options(), RoundOptions(cohort=0.25), 1)
    assert lowest.choose(candidates(EVERYONE, lambda c: c > 0), 1).clients.tolist() == [1, 2, 3, 12, 13, 22, 23]
    assert json.dumps(lowest.to_data())


def test_a_name_stands_for_its_options() -> None:
    assert parse_selection("random") == Random.Options()
    assert parse_selection({"name": "oort", "exploration": "10%"}).exploration == 0.1  # type: ignore[attr-defined]
    assert RoundOptions.model_validate({"selection": "power-of-choice"}).selection.choices == 2  # type: ignore[attr-defined]
    assert parse_selection(options := Random.Options()) is options
    assert Random.is_blind(options)
    with pytest.raises(UnknownName, match="did you mean 'random'"):
        parse_selection("randon")
    with pytest.raises(ValueError, match="a name or a mapping"):
        parse_selection(3)


@pytest.mark.parametrize(
    ("cohort", "expected"),
    [
        ({"image": "34%", "text": "25%", "image-text": "25%"}, (4, 3, 2)),
        ({"image": "25%", "text": "34%", "image-text": "25%"}, (3, 4, 2)),
        ({"image": "25%", "text": "25%", "image-text": "12.5%"}, (3, 3, 1)),
        ({"image": 5, "text": "100%"}, (5, 12, 0)),
    ],
)
def test_a_size_by_kind_is_met_by_each_kind(cohort: dict[str, Any], expected: tuple[int, ...]) -> None:
    """FedCola's settings with more image clients, more text clients and fewer pair clients, of 12, 12 and 8."""
    population = {"image": 12, "text": 12, "image-text": 8}
    options = RoundOptions.model_validate({"cohort": cohort})
    assert tuple(places(options.cohort, population).values()) == expected
    groups = {"image": range(12), "text": range(12, 24), "image-text": range(24, 32)}
    selection = Random(Random.Options(), options, 1)
    chosen = selection.choose(candidates({name: list(clients) for name, clients in groups.items()}), 1).clients
    assert tuple(sum(c in clients for c in chosen.tolist()) for clients in groups.values()) == expected


def test_free_places_are_shared_as_the_sizes_by_kind_are() -> None:
    selection = Random(Random.Options(), RoundOptions.model_validate({"cohort": {"image": 1, "text": 3}}), 1)
    everybody = candidates({"image": list(range(100)), "text": list(range(100, 120))})
    chosen = [selection.choose(everybody, 1, 1).clients.item() for _ in range(400)]
    assert 74 <= sum(client < 100 for client in chosen) <= 126  # 100 with three deviations; 333 by the kinds' sizes


def test_a_number_is_dealt_by_size() -> None:
    assert places(7, POPULATION) == apportion({k: float(n) for k, n in POPULATION.items()}, 7)
