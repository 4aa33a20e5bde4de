"""Who is drawn: exact numbers, only the eligible, a function of seed and round."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edgefl.simulation import RoundOptions
from edgefl.simulation.selection import places, random

POPULATION = {"image": 12, "text": 10, "image-text": 8}
EVERYONE = {"image": list(range(12)), "text": list(range(12, 22)), "image-text": list(range(22, 30))}


def test_a_share_gives_each_kind_at_least_one() -> None:
    """FedCola: max(int(r N), 1) of each type."""
    assert places(0.25, POPULATION) == {"image": 3, "text": 2, "image-text": 2}
    assert places(0.01, POPULATION) == {"image": 1, "text": 1, "image-text": 1}
    assert places(1.0, POPULATION) == POPULATION


@given(st.integers(1, 60), st.integers(1, 80), st.booleans())
def test_a_number_is_met_exactly(cohort: int, clients: int, stratify: bool) -> None:
    eligible = {"image": list(range(clients)), "text": list(range(clients, clients + 7))}
    population = {kind: len(found) for kind, found in eligible.items()}
    options = RoundOptions(cohort=cohort, stratify=stratify)
    chosen = random(eligible, population, options, 1, 1)
    assert len(chosen) == min(cohort, clients + 7) == len(set(chosen))


@given(st.floats(0.01, 1), st.integers(0, 2**31), st.integers(1, 50), st.booleans(), st.data())
def test_only_the_eligible_are_drawn_and_nobody_twice(
    share: float, seed: int, round: int, stratify: bool, data: st.DataObject
) -> None:
    eligible = {k: data.draw(st.lists(st.sampled_from(c), unique=True)) for k, c in EVERYONE.items()}
    options = RoundOptions(cohort=share, stratify=stratify)
    chosen = random(eligible, POPULATION, options, seed, round)
    assert chosen == sorted(set(chosen)) and set(chosen) <= {c for found in eligible.values() for c in found}
    if stratify:
        for kind, found in eligible.items():
            assert len(set(chosen) & set(found)) == min(max(int(share * POPULATION[kind]), 1), len(found))
    reordered = {k: sorted(found, reverse=True) for k, found in eligible.items()}
    assert random(reordered, POPULATION, options, seed, round) == chosen


def test_rounds_and_seeds_draw_differently() -> None:
    options = RoundOptions(cohort=0.5)
    draws = {tuple(random(EVERYONE, POPULATION, options, seed, round)) for seed in (1, 2) for round in range(1, 6)}
    assert len(draws) == 10


def test_nobody_to_draw_from() -> None:
    assert random({}, {}, RoundOptions(cohort=3), 1, 1) == []
    assert random({"image": []}, {"image": 4}, RoundOptions(), 1, 1) == []
