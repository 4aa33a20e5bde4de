"""Rungs, who goes on, and the sizes of batches."""

from __future__ import annotations

from math import ceil
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.commands.tune.halving import ETA, LARGEST_BATCH, batches_of, going_on, pad_rungs, rungs_of


@pytest.mark.parametrize(
    ("rounds", "every", "rungs"),
    [
        (27, 1, (3, 9, 27)), (9, 1, (1, 3, 9)), (8, 1, (3, 8)), (3, 1, (1, 3)), (2, 1, (2,)), (1, 1, (1,)),
        (12, 2, (2, 4, 12)), (20, 5, (5, 10, 20)), (10, 10, (10,)), (10, 7, (7, 10)), (100, 1, (12, 34, 100)),
    ],
)  # fmt: skip
def test_the_rungs_of_some_schedules(rounds: int, every: int, rungs: tuple[int, ...]) -> None:
    assert rungs_of(rounds, every) == rungs


@given(st.integers(1, 5000), st.integers(1, 60))
def test_every_rung_is_a_round_with_an_evaluation(rounds: int, every: int) -> None:
    rungs = rungs_of(rounds, every)
    assert rungs[-1] == rounds and list(rungs) == sorted(set(rungs)) and 1 <= len(rungs) <= 3
    assert all(rung % every == 0 for rung in rungs[:-1])
    assert all(rung >= rounds / ETA ** (len(rungs) - 1 - i) for i, rung in enumerate(rungs[:-1]))
    for count in (1, 2, 3):
        other = pad_rungs(rounds, every, count)
        assert len(other) == count and other[-1] == rounds and list(other) == sorted(other)


@given(
    st.lists(st.none() | st.floats(-1, 1).map(lambda x: round(x, 1)), min_size=1, max_size=40), st.booleans(), st.data()
)
def test_the_best_third_goes_on(values: list[float | None], lower: bool, data: st.DataObject) -> None:
    scores = dict(enumerate(values))
    batch = sorted(data.draw(st.sets(st.sampled_from(list(scores)), min_size=1)))
    on = going_on(scores, batch, lower=lower)
    shuffled = list(scores.items())
    Random(1).shuffle(shuffled)
    assert going_on(dict(shuffled), batch, lower=lower) == on  # whatever order they ended in

    for number in batch:
        mine = scores[number]
        better = [
            x for x in scores.values() if x is not None and mine is not None and (x < mine if lower else x > mine)
        ]
        assert (number in on) == (mine is not None and len(better) < ceil(len(scores) / ETA))


@given(st.integers(1, 300), st.booleans())
def test_batches_add_up(trials: int, widens: bool) -> None:
    phases = batches_of(trials, widens=widens)
    sizes = [size for phase in phases for size in phase]
    assert sum(sizes) == trials and 0 < min(sizes) <= max(sizes) <= LARGEST_BATCH
    assert len(phases) <= (3 if widens else 1)
    assert all(max(phase) - min(phase) <= 1 for phase in phases)
    assert not widens or sum(phases[0]) == ceil(trials / 2)
