"""The server's lines against hand calculation, a reference in fractions, and queueing theory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from math import inf, sqrt

import numpy as np
import pytest
from flight_toys import One, made, over_lines
from hypothesis import given, settings
from hypothesis import strategies as st

from edgefl import seeds
from edgefl.simulation.client import Flight, flights_from
from edgefl.simulation.clock import Clock
from edgefl.simulation.lines import FairShare, Fifo, SharedLine

Make = Callable[[Clock, float], SharedLine]
BOTH = pytest.mark.parametrize("make", [FairShare, Fifo])
WIDE = 1e300
"""The rate of a link that is never the limit."""


def downloads(
    make: Make, capacity: float, flows: Sequence[tuple[float, float, float]], leave: dict[int, float] | None = None
) -> list[Flight]:
    """The flights of clients that only download: when each comes, its bits and its own rate.

    Those in ``leave`` go offline at a time.
    """
    clock = Clock(initial_time=0.0)
    air = over_lines(clock, (lambda clock: make(clock, capacity), None))
    gone = leave or {}
    ones = [
        One(down_bytes=bits / 8, down_goodput=min(rate, WIDE), up_bytes=0, cool_seconds=0.0, leaves=gone.get(n, inf))  # type: ignore[arg-type]
        for n, (_, bits, rate) in enumerate(flows)
    ]
    air.launch(flights_from(replace(made(ones), begins=np.array([at for at, _, _ in flows], float))))
    clock.run()
    return sorted(air.take(), key=lambda flight: flight.client)


def ends(make: Make, capacity: float, *flows: tuple[float, float, float]) -> list[float]:
    """When each of these flows ends: when it comes, its bits and its own rate."""
    return [flight.ended for flight in downloads(make, capacity, flows)]


def background(count: int, rate: float) -> Make:
    """Fair sharing beside so many others."""
    return lambda clock, capacity: FairShare(clock, capacity, (count, rate))


# by hand -------------------------------------------------------------------------------------------------------------


def test_three_flows_share_what_the_smallest_leaves() -> None:
    # 2 is less than a third of 10; the 8 that are left are halved, which is less than 5: all end at 10 s
    assert ends(FairShare, 10, (0, 20, 2), (0, 40, inf), (0, 40, 5)) == [10.0, 10.0, 10.0]


def test_a_leaving_flow_gives_its_share_to_those_who_can_take_it() -> None:
    # 5 + 4 for 2 s, then 3 + 3 + 3 for 1 s, then 5 + 4 again: 90 - 10 - 3 = 77 at 5, 90 - 8 - 3 = 79 at 4
    flows = (0, 90, inf), (0, 90, 4), (2, 3, inf)
    assert ends(FairShare, 9, *flows) == pytest.approx([3 + 77 / 5, 3 + 79 / 4, 3.0], rel=1e-15)


@BOTH
def test_a_flow_alone_takes_its_bits_over_its_cap_to_the_last_bit(make: Make) -> None:
    assert ends(make, 1e9, (0.1, 8 * 12_345_677, 72.2e6 / 1.0371)) == [0.1 + 8 * 12_345_677 / (72.2e6 / 1.0371)]


def test_one_after_another() -> None:
    assert ends(Fifo, 10, (2, 10, inf), (1, 20, 4), (1, 50, inf)) == [12.0, 6.0, 11.0]


def test_breaking_off_the_first_lets_the_next_begin() -> None:
    first, second, third = downloads(Fifo, 10, [(0, 100, inf)] * 3, {0: 4.0, 2: 5.0})
    assert (first.carried[0], third.carried[0], second.ended) == (40, 0, 14.0)


def test_a_background_takes_the_shares_of_its_flows() -> None:
    # 2 is less than a quarter of 12; the 10 that are left are divided by the third flow and the background's two;
    # nobody leaves anything to the last one: at most 4, a third of the line
    flows = (3, 30, inf), (3, 30, 2), (20, 8, inf)
    assert ends(background(2, inf), 12, *flows) == pytest.approx([12.0, 18.0, 22.0], rel=1e-15)


def test_a_background_below_its_share_leaves_the_rest() -> None:
    # 4 beside three of 2; then 10 by five is 2, as much as each of the background takes
    flows = (1e6, 40, inf), (1e6 + 5, 20, inf)
    assert ends(background(3, 2.0), 10, *flows) == [1e6 + 15, 1e6 + 15]


# against a reference that works everything out again at each event, in fractions ------------------------------------

Call = tuple[float, str, int, float, float]
"""When, add or remove, the flow, its bits, its cap."""


def water(capacity: Fraction, caps: dict[int, Fraction]) -> dict[int, Fraction]:
    """Max-min fair rates."""
    rates, left, room = {}, sorted(caps, key=lambda f: caps[f]), capacity
    while left:
        flow = left.pop(0)
        rates[flow] = min(caps[flow], room / (len(left) + 1))
        room -= rates[flow]
    return rates


def queue(capacity: Fraction, caps: dict[int, Fraction]) -> dict[int, Fraction]:
    """The first has it all; ``caps`` are in the order of arrival."""
    return {flow: min(cap, capacity) if i == 0 else Fraction(0) for i, (flow, cap) in enumerate(caps.items())}


def reference(
    share: Callable[[Fraction, dict[int, Fraction]], dict[int, Fraction]],
    capacity: float,
    calls: list[Call],
    background: tuple[int, float] = (0, inf),
) -> tuple[dict[int, float], dict[int, float]]:
    """When each flow ends, and the bits left of those that were broken off."""
    others = {-1 - n: Fraction(min(background[1], capacity)) for n in range(background[0])}
    left: dict[int, Fraction] = {}
    caps: dict[int, Fraction] = {}
    ends: dict[int, float] = {}
    broken: dict[int, float] = {}
    now = Fraction(0)
    # flows that come together queue by their number
    for at, what, flow, bits, cap in [
        *sorted(calls, key=lambda c: (c[0], c[1] == "add", c[2])),
        (inf, "", 0, 0.0, 0.0),
    ]:
        while caps:
            rates = share(Fraction(capacity), {**caps, **others})
            soonest = min(now + left[f] / rates[f] for f in caps if rates[f])
            if soonest > at:
                break
            for f in list(caps):
                left[f] -= rates[f] * (soonest - now)
                if not left[f]:
                    ends[f] = float(soonest)
                    del caps[f]
            now = soonest
        if at == inf:
            break
        rates = share(Fraction(capacity), {**caps, **others})
        for f in caps:
            left[f] -= rates[f] * (Fraction(at) - now)
        now = Fraction(at)
        if what == "add":
            left[flow], caps[flow] = Fraction(bits), Fraction(cap)
        elif flow in caps:
            broken[flow] = float(left[flow])
            del caps[flow]
    return ends, broken


def played(make: Make, capacity: float, calls: list[Call]) -> tuple[dict[int, float], dict[int, float]]:
    """As ``reference``, by the line."""
    flows = [(at, bits, cap) for at, what, _, bits, cap in calls if what == "add"]
    flown = downloads(make, capacity, flows, {flow: at for at, what, flow, _, _ in calls if what == "remove"})
    ended = {flight.client: flight.ended for flight in flown if flight.phase > 1}
    return ended, {f.client: flows[f.client][1] - f.carried[0] for f in flown if f.client not in ended}


@st.composite
def traffic(draw: st.DrawFn) -> tuple[float, list[Call]]:
    number = st.floats(10, 1e5, allow_nan=False)
    capacity = draw(number)
    caps = st.sampled_from(draw(st.lists(number, min_size=1, max_size=5)))
    calls: list[Call] = []
    now = 0.0
    for flow in range(draw(st.integers(1, 25))):
        now += draw(st.sampled_from([0.0, 0.0, 0.5, 3.0]) | st.floats(0, 5))
        calls.append((now, "add", flow, draw(st.sampled_from([100.0, 6400.0, 1e5]) | number), draw(caps)))
        if draw(st.integers(0, 4)) == 0:
            now += draw(st.sampled_from([0.25, 1.0, 7.0]))
            calls.append((now, "remove", draw(st.integers(0, flow)), 0.0, 0.0))
    gone: set[int] = set()
    kept = []
    for call in calls:
        if call[1] == "add" or call[2] not in gone:
            kept.append(call)
            gone |= {call[2]} if call[1] == "remove" else set()
    return capacity, kept


def assert_as_the_reference(
    share: Callable[[Fraction, dict[int, Fraction]], dict[int, Fraction]],
    make: Make,
    capacity: float,
    calls: list[Call],
    others: tuple[int, float] = (0, inf),
) -> None:
    """Ends and bits left agree; one may be broken off at the very moment at which the other has just ended."""
    ended, broken = reference(share, capacity, calls, others)
    got_ended, got_broken = played(make, capacity, calls)
    for flow in got_ended.keys() ^ ended.keys():
        assert {**broken, **got_broken}[flow] == pytest.approx(0, abs=1e-6)
    for flow in got_ended.keys() & ended.keys():
        assert got_ended[flow] == pytest.approx(ended[flow], rel=1e-12, abs=1e-9)
    for flow in got_broken.keys() & broken.keys():
        assert got_broken[flow] == pytest.approx(broken[flow], rel=1e-9, abs=1e-6)


@pytest.mark.parametrize(("make", "share"), [(FairShare, water), (Fifo, queue)])
@settings(max_examples=25, deadline=None)
@given(given_traffic=traffic())
def test_equal_to_the_reference(
    make: Make, share: Callable[..., dict[int, Fraction]], given_traffic: tuple[float, list[Call]]
) -> None:
    assert_as_the_reference(share, make, *given_traffic)


backgrounds = st.tuples(st.integers(1, 4), st.sampled_from([inf, 10.0, 500.0, 1e4]) | st.floats(1, 1e5))


@settings(max_examples=25, deadline=None)
@given(given_traffic=traffic(), others=backgrounds)
def test_with_a_background_equal_to_the_reference(
    given_traffic: tuple[float, list[Call]], others: tuple[int, float]
) -> None:
    assert_as_the_reference(water, background(*others), *given_traffic, others)


@BOTH
def test_a_full_line_is_never_idle(make: Make) -> None:
    bits = [8e3 * (1 + number % 7) for number in range(1000)]
    assert max(ends(make, 1e6, *((0, each, 1e6) for each in bits))) == pytest.approx(sum(bits) / 1e6, rel=1e-12)


# queueing theory -----------------------------------------------------------------------------------------------------


def _sojourns(make: Make, load: float, flows: int, seed: int) -> np.ndarray:
    """Seconds from arrival to end of Poisson arrivals that take 1 s each on an empty line of 1 Mbit/s."""
    arrivals = seeds.generator(seed, "arrivals").exponential(1 / load, flows).cumsum().tolist()
    return np.array(ends(make, 1e6, *((at, 1e6, inf) for at in arrivals))) - arrivals


def _mean(values: np.ndarray, batches: int = 40) -> tuple[float, float]:
    """The mean in the long run and its standard error, by batches long enough to know nothing of each other."""
    means = values[len(values) // 20 :]
    means = means[: len(means) // batches * batches].reshape(batches, -1).mean(axis=1)
    return float(means.mean()), float(means.std(ddof=1) / sqrt(batches))


def _agrees(values: np.ndarray, theory: float, within: float) -> None:
    mean, error = _mean(values)
    assert abs(mean - theory) < 4 * error and error < within * theory, (mean, error, theory)


@pytest.mark.parametrize(
    ("flows", "load", "within"),
    [(20_000, 0.5, 0.05), *(pytest.param(400_000, load, 0.03, marks=pytest.mark.slow) for load in (0.3, 0.7, 0.9))],
)
def test_a_queue_at_the_server_waits_as_long_as_pollaczek_and_khinchine_say(
    flows: int, load: float, within: float
) -> None:
    """M/D/1: the mean wait is load x S / 2 (1 - load)."""
    waits = _sojourns(Fifo, load, flows, 1) - 1.0
    assert waits.min() > -1e-6
    _agrees(waits, load / (2 * (1 - load)), within)


@pytest.mark.parametrize(
    ("flows", "load", "within"),
    [(20_000, 0.5, 0.05), *(pytest.param(400_000, load, 0.03, marks=pytest.mark.slow) for load in (0.3, 0.7, 0.9))],
)
def test_a_shared_server_takes_as_long_as_processor_sharing(flows: int, load: float, within: float) -> None:
    """M/G/1 processor sharing: the mean sojourn is S / (1 - load), whatever the sizes are."""
    _agrees(_sojourns(FairShare, load, flows, 2), 1 / (1 - load), within)
