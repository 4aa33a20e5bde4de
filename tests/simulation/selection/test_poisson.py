"""Poisson sampling: each client by itself, at the rate that accountants are told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

from edgefl.planning.round_options import RoundOptions
from edgefl.simulation.selection.base import Candidates, Random, Selection
from edgefl.simulation.selection.poisson import Poisson

GROUPS = {"image": list(range(20)), "text": list(range(20, 50))}
ROUNDS = 2000


def candidates(ready: Callable[[Any], Any] = lambda clients: np.ones(len(clients), bool)) -> Candidates:
    arrays = {kind: np.array(clients) for kind, clients in GROUPS.items()}
    sizes = {kind: len(clients) for kind, clients in GROUPS.items()}
    return Candidates(arrays, sizes, np.ones_like, np.ones_like, np.ones_like, list, ready)


def draws(among: Candidates, rounds: int = ROUNDS, **options: Any) -> Any:
    """Who was drawn: `[rounds, 50]`."""
    section = RoundOptions.model_validate({"selection": "poisson", **options})
    selection, found = Poisson(section.selection, section, 1), np.zeros((rounds, 50), bool)
    for round in range(rounds):
        found[round, selection.choose(among, round + 1).clients] = True
    return found


@pytest.mark.parametrize(
    ("options", "rates"),
    [
        ({"cohort": {"image": 0.25, "text": 6}}, {"image": 5 / 20, "text": 6 / 30}),
        ({"cohort": 10, "stratify": False}, {"image": 10 / 50, "text": 10 / 50}),
    ],
)
def test_clients_are_drawn_independently_at_the_rate_of_their_group(
    options: dict[str, Any], rates: dict[str, float]
) -> None:
    found = draws(candidates(), **options)
    for kind, clients in GROUPS.items():
        times, rate = found[:, clients].sum(0), rates[kind]
        square = ((times - ROUNDS * rate) ** 2).sum() / (ROUNDS * rate * (1 - rate))
        assert 1e-3 < stats.chi2(len(clients)).sf(square) < 1 - 1e-3
        sizes = np.bincount(
            found[:, clients].sum(1), minlength=len(clients) + 1
        )  # binomial, so nobody waits for others
        often = stats.binom(len(clients), rate).pmf(np.arange(len(clients) + 1)) * ROUNDS
        common = often > 5
        assert stats.chisquare(
            [*sizes[common], sizes[~common].sum()], [*often[common], often[~common].sum()]
        ).pvalue > 1e-3  # fmt: skip
    pairs = np.corrcoef(found.T)[np.triu_indices(50, 1)]
    assert abs(pairs.mean()) < 3 / (ROUNDS * len(pairs)) ** 0.5


def test_nobody_takes_the_place_of_a_client_that_is_not_ready() -> None:
    everyone = draws(candidates(), 50, cohort=0.5)
    ready = draws(candidates(lambda clients: np.asarray(clients) % 3 != 0), 50, cohort=0.5)
    assert (ready == everyone & (np.arange(50) % 3 != 0)).all() and (ready != everyone).any()


def test_who_says_nothing_of_sampling_is_not_covered() -> None:
    own = type("First", (Random,), {"pick": lambda self, share: Random.pick(self, share)})
    assert (Poisson.sampling, Random.sampling, Selection.sampling) == ("poisson", "without replacement", None)
    assert own.sampling is None and type("Same", (Random,), {}).sampling == "without replacement"
