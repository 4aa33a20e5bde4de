"""The stage that a client takes is the one that a loop over clients and stages finds by Python's own numbers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import inf
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from edgefl.devices.budgets import BUDGETS
from edgefl.errors import DeviceError
from edgefl.planning.judge import StageChoices, choose_stages

Table = list[list[float]]
"""A number for each client and budget."""


@st.composite
def questions(draw: st.DrawFn) -> tuple[dict[int, Table], Table]:
    """Stages in any order with each client's costs, and its budgets: small numbers, so that ties are frequent."""
    clients = draw(st.integers(1, 5))
    cost = st.sampled_from([0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 1e300])
    budget = st.sampled_from([0.0, 1e-308, 1.0, 2.0, 4.0, inf])

    def table(number: st.SearchStrategy[float]) -> Table:
        row = st.lists(number, min_size=len(BUDGETS), max_size=len(BUDGETS))
        return draw(st.lists(row, min_size=clients, max_size=clients))

    indices = draw(st.lists(st.integers(1, 9), min_size=1, max_size=4, unique=True))
    return {index: table(cost) for index in indices}, table(budget)


def share_left(cost: float, budget: float) -> float:
    """What is left of a budget as a share of it; a budget of nothing is used up or exceeded without measure."""
    if budget == inf:
        return inf
    if budget == 0:
        return -inf if cost else 0.0
    return (budget - cost) / budget


def by_hand(offers: Mapping[int, Table], client: int, budgets: list[float]) -> tuple[int, bool, int]:
    """Stage, whether it fits, and which budget binds there."""
    best: tuple[float, int] | None = None
    for index, costs in offers.items():
        shares = [share_left(c, b) for c, b in zip(costs[client], budgets, strict=True)]
        binding = -1 if budgets == [inf] * len(BUDGETS) else shares.index(min(shares))
        if all(c <= b for c, b in zip(costs[client], budgets, strict=True)):
            return index, True, binding
        if best is None or (min(shares), index) > best:
            best, refused_by = (min(shares), index), binding
    assert best is not None
    return best[1], False, refused_by


def chosen(
    offers: Mapping[int, Table], budgets: Table, *, why: bool = True, asked: dict[int, list[int]] | None = None
) -> StageChoices:
    """What ``choose_stages`` says; a row is 100 times the stage and the client."""

    def offer(index: int, clients: NDArray[Any]) -> tuple[NDArray[Any], dict[str, NDArray[Any]]]:
        if asked is not None:
            asked[index] = clients.tolist()
        costs = np.array(offers[index])[clients]
        return 100 * index + clients, {name: costs[:, i] for i, name in enumerate(BUDGETS)}

    columns = {name: np.array([row[i] for row in budgets]) for i, name in enumerate(BUDGETS)}
    return choose_stages({index: partial(offer, index) for index in offers}, columns, why=why)


@given(questions())
def test_every_client_takes_what_a_loop_finds(question: tuple[dict[int, Table], Table]) -> None:
    offers, budgets = question
    found = chosen(offers, budgets)
    for client, allowed in enumerate(budgets):
        stage, fits, binding = by_hand(offers, client, allowed)
        assert (found.stage[client], found.eligible[client], found.binding[client]) == (stage, fits, binding)
        assert found.row[client] == 100 * stage + client


@given(questions())
def test_without_why_whoever_fits_takes_the_same(question: tuple[dict[int, Table], Table]) -> None:
    offers, budgets = question
    found, fast = chosen(offers, budgets), chosen(offers, budgets, why=False)
    assert fast.eligible.tolist() == found.eligible.tolist()
    assert fast.stage[fast.eligible].tolist() == found.stage[found.eligible].tolist()
    assert fast.row[fast.eligible].tolist() == found.row[found.eligible].tolist()
    assert set(fast.stage[~fast.eligible].tolist()) <= {next(iter(offers))}
    assert set(fast.binding.tolist()) == {-1}


@given(questions(), st.booleans())
def test_a_stage_is_asked_about_those_alone_that_nothing_before_it_fits(
    question: tuple[dict[int, Table], Table], why: bool
) -> None:
    offers, budgets = question
    asked: dict[int, list[int]] = {}
    chosen(offers, budgets, why=why, asked=asked)
    left = list(range(len(budgets)))
    for index, costs in offers.items():
        assert asked.get(index, []) == left
        left = [c for c in left if any(cost > most for cost, most in zip(costs[c], budgets[c], strict=True))]


@given(questions(), st.floats(1, 8))
def test_with_larger_budgets_nobody_takes_a_later_offer(
    question: tuple[dict[int, Table], Table], factor: float
) -> None:
    offers, budgets = question
    order = list(offers)
    before, after = chosen(offers, budgets), chosen(offers, [[factor * b for b in row] for row in budgets])
    for client in np.flatnonzero(before.eligible):
        assert after.eligible[client]
        assert order.index(after.stage[client]) <= order.index(before.stage[client])


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_of_equally_near_stages_the_later_one_refuses(order: tuple[int, ...]) -> None:
    too_much = [[2.0, 0.0, 0.0, 0.0, 0.0]]
    found = chosen(dict.fromkeys(order, too_much), [[1.0] * len(BUDGETS)])
    assert (found.stage.tolist(), found.eligible.tolist(), found.binding.tolist()) == ([2], [False], [0])


def test_nobody_is_no_error_and_one_number_holds_for_all() -> None:
    costs = dict.fromkeys(BUDGETS, 1.0)
    for clients in (0, 3):
        for why in (True, False):
            found = choose_stages({4: lambda left: (left, costs)}, {"joules": np.full(clients, 2.0)}, why=why)
            assert found.stage.tolist() == [4] * clients and found.row.tolist() == list(range(clients))
            assert found.eligible.tolist() == [True] * clients


def test_what_is_no_cost_is_refused() -> None:
    with pytest.raises(DeviceError, match="cost of flops is negative"):
        chosen({1: [[0.0, -1.0, 0.0, 0.0, 0.0]]}, [[1.0] * len(BUDGETS)])
