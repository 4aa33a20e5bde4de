"""Waiting for the server's device, against SimPy's own resource, closed forms and small cases by hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest
import simpy
from flight_toys import One, made
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from edgefl.simulation.closed_form import OUTCOMES, land_flights
from edgefl.simulation.server_turns import Visits, order_of, with_batteries


def visits(count: int, **columns: Any) -> Visits:
    """Clients that are ready at once, with four trips of 1 s of their own and .5 s of the server each."""
    usual = {"ready": 0.0, "seconds": 4.0, "served": 2.0, "trips": 4, "share": 1.0, "leaves": inf}
    return Visits(**{n: np.broadcast_to(np.asarray(v), (count,)) for n, v in {**usual, **columns}.items()})


@pytest.mark.parametrize("count", [1, 2, 3, 4, 20])
def test_equal_clients_have_the_cycle_of_the_server_or_their_own(count: int) -> None:
    """Exactly: a batch every max(N x service, think + service) seconds, after N services for the first of the last."""
    found = visits(count).wait_by_batch() + 6.0
    think, serve = 1.0, 0.5
    cycle = max(count * serve, think + serve)
    expected = think + serve * np.arange(1, count + 1) + 3 * cycle
    assert found.tolist() == expected.tolist()


def simulated(asked: Visits) -> tuple[list[float], list[float]]:
    """Seconds of waiting, and all times at which clients came, of SimPy's own resource."""
    env, came = simpy.Environment(), list[float]()
    server, waited = simpy.Resource(env), [0.0] * len(asked.ready)

    def client(i: int) -> Iterator[Any]:
        think, serve = asked.seconds[i] / asked.trips[i], asked.served[i] / asked.trips[i]
        yield env.timeout(asked.ready[i])
        work = asked.share[i] * asked.trips[i]
        while work > 0:
            if work < 1 and work * (think + serve) <= think:
                return  # it fails while it computes
            yield env.timeout(think)
            came.append(env.now)
            with server.request() as turn:
                before = env.now
                yield turn
                waited[i] += env.now - before
                if asked.leaves[i] < env.now:
                    return
                yield env.timeout(serve)
            work -= 1

    for i in range(len(asked.ready)):
        env.process(client(i))  # type: ignore[arg-type]
    env.run()
    return waited, came


numbers = st.floats(0.01, 10)


@given(
    st.lists(
        st.tuples(numbers, numbers, numbers, st.integers(1, 6), st.sampled_from([1.0, 1.0, 0.0]) | st.floats(0, 1),
                  st.just(inf) | st.floats(0, 60)),
        min_size=1, max_size=6,
    )
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_batches_wait_as_simpys_resource_says(rows: list[tuple[Any, ...]]) -> None:
    """Also where clients fail or leave, and free the server for others."""
    asked = Visits(*(np.array(column) for column in zip(*rows, strict=True)))
    expected, came = simulated(asked)
    assume(not came or np.diff(np.sort(came)).min(initial=1.0) > 1e-9)  # who comes first of two at once is arbitrary
    found = asked.wait_by_batch() * asked.share  # of a client that fails its share
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


def test_a_client_that_leaves_makes_room() -> None:
    """By hand: both come after 1 s; the second leaves while it waits for its second batch, or is gone before."""
    both = visits(2, seconds=[2.0, 2.0], served=[4.0, 4.0], trips=2)  # 1 s and 2 s for each of two batches
    # 1: served 1-3, 5-7; 2: served 3-5, comes at 6, served 7-9
    assert both.wait_by_batch().tolist() == [1.0, 3.0]
    gone = replace(both, leaves=np.array([inf, 2.0]))
    assert gone.wait_by_batch()[0] == 0.0  # 1-3, then comes at 4, served 4-6
    served = replace(both, leaves=np.array([inf, 3.5]))  # in its turn: the server computes it to its end
    assert served.wait_by_batch()[0] == 1.0


def test_whole_clients_wait_for_those_before_them() -> None:
    """By hand: 6 s each, in the order 2, 0, 1, ready at 0, 1 and 10 s."""
    asked = visits(3, ready=[0.0, 1.0, 10.0])
    # 2: 10-16; 0: 16-22; 1: 22-28
    assert asked.wait_in_turn([2, 0, 1]).tolist() == [16.0, 21.0, 0.0]
    # 0 fails after half of its work, of which its wait is then half; so 1 begins at 19
    failing = replace(asked, share=np.array([0.5, 1.0, 1.0]))
    assert failing.wait_in_turn([2, 0, 1]).tolist() == [32.0, 18.0, 0.0]
    # 2 is gone at 4 s, before it is ready: the server has waited for it until then
    leaving = replace(asked, leaves=np.array([inf, inf, 4.0]))
    assert leaving.wait_in_turn([2, 0, 1])[:2].tolist() == [4.0, 9.0]


def test_the_order_is_drawn_anew_for_each_dispatch() -> None:
    clients = np.array([3, 5, 8, 13, 21, 34])
    orders = {tuple(order_of(1, dispatch, clients).tolist()) for dispatch in range(40)}
    assert len(orders) > 30 and all(sorted(order) == list(range(6)) for order in orders)
    # of those that are left it is the same without the others
    whole, part = order_of(1, 7, clients), order_of(1, 7, clients[1:])
    assert [each - 1 for each in whole if each] == part.tolist()


def test_an_empty_battery_while_it_waits_frees_the_server() -> None:
    """By hand: two clients of 1 + 2 s a batch for two batches; the second's battery is empty after 2.4 s."""
    split = One(down_bytes=0, up_bytes=0, cool_seconds=2.0, idle_watts=1.0, compute_watts=4.0, server_seconds=4.0)
    asked = visits(2, seconds=2.0, served=4.0, trips=2)
    whole = with_batteries(made([split, split]), asked, None)
    assert np.asarray(whole.waits).tolist() == [1.0, 3.0]
    # in 9 s it computes 2 s at 4 W and idles 7 s at 1 W: 15 J, so that 4 J last for 2.4 s
    empty = with_batteries(made([split, replace(split, joules=4.0)]), asked, None)
    landed = land_flights(empty)
    assert [OUTCOMES[outcome] for outcome in landed.outcome] == ["finished", "battery empty"]
    assert landed.ended.tolist() == pytest.approx([6.0, 2.4])  # the first: 1-3, then 4-6
    assert landed.energy_joules.tolist() == pytest.approx([2 * 4 + 4 * 1, 4.0])
    assert landed.server_wait_seconds.tolist() == pytest.approx([0.0, 3 * 2.4 / 9])
