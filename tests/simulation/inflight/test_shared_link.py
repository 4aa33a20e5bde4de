"""The shared link against hand calculation, a reference in fractions, and queueing theory."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from math import inf, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgefl import seeds
from edgefl.simulation.inflight.shared_link import SHARING, FairShare, Fifo, SharedLink

BOTH = pytest.mark.parametrize("make", [FairShare, Fifo])


def play(link: SharedLink) -> dict[int, float]:
    """When each flow that is under way ends if nobody else comes."""
    ends: dict[int, float] = {}
    while (found := link.next()) is not None:
        at, first = found
        flows = link.finish(at)
        assert first in flows and flows == sorted(flows) and not ends.keys() & set(flows)
        ends |= dict.fromkeys(flows, at)
    assert len(link) == 0
    return ends


# by hand -------------------------------------------------------------------------------------------------------------


def test_three_flows_share_what_the_smallest_leaves():
    link = FairShare(10)
    link.add_all(0.0, [1, 2, 3], [20, 40, 40], [2, inf, 5])
    # 2 is less than a third of 10; the 8 that are left are halved, which is less than 5
    assert link.rates() == {1: 2.0, 2: 4.0, 3: 4.0}
    # all end at 10 s, on a full link
    assert play(link) == {1: 10.0, 2: 10.0, 3: 10.0}


def test_a_leaving_flow_gives_its_share_to_those_who_can_take_it():
    link = FairShare(9)
    link.add(0.0, 1, 90, inf)
    link.add(0.0, 2, 90, 4)
    link.add(2.0, 3, 3, inf)
    # 5 + 4 for 2 s, then 3 + 3 + 3 for 1 s, then 5 + 4 again: 90 - 8 - 3 = 79 at 4, 90 - 10 - 3 = 77 at 5
    assert link.rates() == {1: 3.0, 2: 3.0, 3: 3.0}
    assert link.next() == (3.0, 3)
    assert link.finish(3.0) == [3]
    assert link.rates() == {1: 5.0, 2: 4.0}
    assert link.left(3.0, 1) == 77 and link.left(4.0, 2) == 75
    assert play(link) == {1: 3 + 77 / 5, 2: 3 + 79 / 4}


def test_a_flow_alone_takes_its_bits_over_its_cap_to_the_last_bit():
    for make in (FairShare, Fifo):
        link = make(1e9)
        link.add(0.1, 7, 8 * 12_345_677, 72.2e6 / 1.0371)
        assert link.next() == (0.1 + 8 * 12_345_677 / (72.2e6 / 1.0371), 7)


def test_one_after_another():
    link = Fifo(10)
    link.add_all(1.0, [3, 1], [50, 20], [inf, 4])
    link.add(2.0, 0, 10, inf)
    assert link.rates() == {0: 0.0, 1: 4.0, 3: 0.0}
    assert link.left(4.0, 1) == 8 and link.left(4.0, 3) == 50
    assert play(link) == {1: 6.0, 3: 11.0, 0: 12.0}


def test_breaking_off_the_first_lets_the_next_begin():
    link = Fifo(10)
    link.add_all(0.0, [1, 2, 3], [100, 100, 100], [inf] * 3)
    assert link.remove(4.0, 1) == 60
    assert link.remove(5.0, 3) == 100
    assert play(link) == {2: 14.0}


def test_a_background_takes_the_shares_of_its_flows():
    link = FairShare(12, (2, inf))
    link.add_all(3.0, [1, 2], [30, 30], [inf, 2])
    # 2 is less than a quarter of 12; the 10 that are left are divided by the third flow and the background's two
    assert link.rates() == {1: 10 / 3, 2: 2.0}
    assert link.next() == (12.0, 1)
    assert link.finish(12.0) == [1] and link.left(12.0, 2) == 12
    # nobody leaves anything to it alone: at most 4, a third of the line
    link.add(20.0, 3, 8, inf)
    assert link.rates() == {3: 4.0} and link.finish(20.0) == [2] and play(link) == {3: 22.0}


def test_a_background_below_its_share_leaves_the_rest():
    link = FairShare(10, (3, 2.0))
    link.add(1e6, 1, 40, inf)
    assert link.rates() == {1: 4.0}
    link.add(1e6 + 5, 2, 20, inf)
    # 10 by five is 2, as much as each of the background takes
    assert link.rates() == {1: 2.0, 2: 2.0}
    assert play(link) == {1: 1e6 + 15, 2: 1e6 + 15}


@BOTH
def test_what_ends_between_two_calls_ends_at_its_own_time(make: Callable[[float], SharedLink]):
    # flow 1 ends at 2 s; a caller that sleeps until 5 s must not find flow 2 slower for it
    link = make(10)
    link.add_all(0.0, [1, 2], [10 if make is FairShare else 20, 100], [inf, inf])
    assert link.left(5.0, 2) == (60 if make is FairShare else 70)
    assert link.left(5.0, 1) == 0 and link.finish(5.0) == [1]
    assert play(link) == {2: 11.0 if make is FairShare else 12.0}


@BOTH
def test_nothing_to_carry_is_done_at_once(make: Callable[[float], SharedLink]):
    link = make(10)
    link.add(3.0, 1, 0, 5)
    assert link.next() == (3.0, 1) and link.finish(3.0) == [1] and link.next() is None


@BOTH
def test_a_flow_that_is_complete_has_nothing_left_to_break_off(make: Callable[[float], SharedLink]):
    link = make(10)
    link.add(0.0, 1, 10, inf)
    assert link.remove(1.0, 1) == 0 and link.finish(1.0) == [] and link.next() is None


@BOTH
def test_refused(make: Callable[[float], SharedLink]):
    for rate in (0, -1, inf, float("nan")):
        with pytest.raises(ValueError, match="must be finite and above 0 bit"):
            make(rate)
    link = make(10)
    link.add(1.0, 1, 10, 5)
    with pytest.raises(ValueError, match="flow 1 is under way"):
        link.add(1.0, 1, 10, 5)
    with pytest.raises(ValueError, match="must be above 0 bit/s, not"):
        link.add(1.0, 2, 10, 0)
    with pytest.raises(ValueError, match="must be finite and 0 or more, not"):
        link.add(1.0, 2, -1, 5)
    with pytest.raises(ValueError, match="must be finite and not before"):
        link.add(0.5, 2, 10, 5)
    with pytest.raises(KeyError):
        link.remove(1.0, 9)


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


def played(
    make: Callable[[float], SharedLink], capacity: float, calls: list[Call], impatient: bool = False
) -> tuple[dict[int, float], dict[int, float]]:
    """As ``reference``, by the link; ``impatient`` asks after every call what comes next."""
    link = make(capacity)
    ends: dict[int, float] = {}
    broken: dict[int, float] = {}
    for at, what, flow, bits, cap in calls:
        while (found := link.next()) is not None and found[0] <= at:
            ends |= dict.fromkeys(link.finish(found[0]), found[0])
        if what == "add":
            link.add(at, flow, bits, cap)
        elif flow not in ends:
            broken[flow] = link.remove(at, flow)
        if impatient:
            link.next()
            assert sum(link.rates().values()) <= capacity * (1 + 1e-12)
    return ends | play(link), broken


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


@pytest.mark.parametrize(("make", "share"), [(FairShare, water), (Fifo, queue)])
@settings(max_examples=25, deadline=None)
@given(given_traffic=traffic())
def test_equal_to_the_reference(make, share, given_traffic):
    capacity, calls = given_traffic
    ends, broken = reference(share, capacity, calls)
    got_ends, got_broken = played(make, capacity, calls, impatient=True)
    if got_ends.keys() != ends.keys():  # one may break off at the very moment at which the other has just ended
        for flow in got_ends.keys() ^ ends.keys():
            assert {**broken, **got_broken}[flow] == pytest.approx(0, abs=1e-6)
    for flow in got_ends.keys() & ends.keys():
        assert got_ends[flow] == pytest.approx(ends[flow], rel=1e-12, abs=1e-9)
    for flow in got_broken.keys() & broken.keys():
        assert got_broken[flow] == pytest.approx(broken[flow], rel=1e-9, abs=1e-6)


@BOTH
@settings(max_examples=25, deadline=None)
@given(given_traffic=traffic(), data=st.data())
def test_calls_of_one_time_may_come_in_any_order(make, given_traffic, data):
    capacity, calls = given_traffic
    known = played(make, capacity, calls)
    by_time: dict[float, list[Call]] = {}
    for call in calls:
        by_time.setdefault(call[0], []).append(call)
    shuffled = []
    for together in by_time.values():
        first: dict[int, str] = {}
        for call in data.draw(st.permutations(together)):
            # a flow must be there before it can be broken off
            if call[2] in first and first[call[2]] == "remove":
                shuffled.insert(next(i for i, c in enumerate(shuffled) if c[1:3] == ("remove", call[2])), call)
            else:
                shuffled.append(call)
            first.setdefault(call[2], call[1])
    assert played(make, capacity, shuffled, impatient=data.draw(st.booleans())) == known


@BOTH
@settings(max_examples=25, deadline=None)
@given(given_traffic=traffic(), data=st.data())
def test_a_link_goes_on_from_its_rows_to_the_last_bit(make, given_traffic, data):
    capacity, calls = given_traffic
    cut = data.draw(st.integers(0, len(calls)))

    class Cut(make):
        calls = 0

        def next(self):
            if type(self).calls == cut:
                held = json.loads(json.dumps(self.rows(), allow_nan=False))
                fresh = make.from_rows(held)
                assert json.loads(json.dumps(fresh.rows())) == held
                self.__dict__ = fresh.__dict__
            type(self).calls += 1
            return super().next()

    assert played(Cut, capacity, calls) == played(make, capacity, calls)


backgrounds = st.tuples(st.integers(1, 4), st.sampled_from([inf, 10.0, 500.0, 1e4]) | st.floats(1, 1e5))


@settings(max_examples=50, deadline=None)
@given(given_traffic=traffic(), background=backgrounds, data=st.data())
def test_with_a_background_equal_to_the_reference_and_resumed_to_the_last_bit(given_traffic, background, data):
    capacity, calls = given_traffic
    cut = data.draw(st.integers(0, len(calls)))

    class Cut(FairShare):
        calls = 0

        def next(self):
            if type(self).calls == cut:
                held = json.loads(json.dumps(self.rows(), allow_nan=False))
                fresh = FairShare.from_rows(held)
                assert json.loads(json.dumps(fresh.rows())) == held
                self.__dict__ = fresh.__dict__
            type(self).calls += 1
            return super().next()

    ends, broken = reference(water, capacity, calls, background)
    got_ends, got_broken = played(lambda rate: FairShare(rate, background), capacity, calls)
    assert played(lambda rate: Cut(rate, background), capacity, calls) == (got_ends, got_broken)
    for flow in got_ends.keys() ^ ends.keys():
        assert {**broken, **got_broken}[flow] == pytest.approx(0, abs=1e-6)
    for flow in got_ends.keys() & ends.keys():
        assert got_ends[flow] == pytest.approx(ends[flow], rel=1e-12, abs=1e-9)
    for flow in got_broken.keys() & broken.keys():
        assert got_broken[flow] == pytest.approx(broken[flow], rel=1e-9, abs=1e-6)


# at length -----------------------------------------------------------------------------------------------------------


def _churn(make: Callable[[float], SharedLink], flows: int, concurrent: int, caps: int) -> None:
    """Flows come, go and break off on a link that is now full and now not: what its rates carry is what it carried."""
    draw = seeds.generator(1, "churn", flows)
    capacity = 1e8
    link = make(capacity)
    sizes = draw.uniform(1e5, 1e7, flows)
    most = draw.choice(draw.uniform(0.5, 8, caps) * capacity / concurrent, flows)
    arrivals = draw.exponential(5e6 / capacity, flows).cumsum()
    now, carried, left = 0.0, 0.0, 0.0
    under_way: set[int] = set()
    ended = 0
    for flow in [*range(flows), -1]:
        coming = arrivals[flow] if flow >= 0 else inf
        while (found := link.next()) is not None and found[0] <= coming:
            rates = sum(link.rates().values())
            assert rates <= capacity * (1 + 1e-12)
            carried += rates * (found[0] - now)
            now = found[0]
            done = set(link.finish(now))
            assert done and done <= under_way
            under_way -= done
            ended += len(done)
        if flow >= 0:
            carried += sum(link.rates().values()) * (coming - now)
            now = coming
            if len(under_way) >= concurrent:
                victim = int(draw.choice(sorted(under_way)))
                left += link.remove(now, victim)
                under_way -= {victim}
                ended += 1
            link.add(now, flow, sizes[flow], most[flow])
            under_way.add(flow)
    assert ended == flows and not under_way and left > 0
    assert carried + left == pytest.approx(sizes.sum(), rel=1e-11)


@BOTH
def test_conservation(make: Callable[[float], SharedLink]):
    _churn(make, 2_000, 30, 9)


@pytest.mark.slow
@pytest.mark.parametrize("caps", [3, 100_000])
def test_conservation_over_many_events(caps: int):
    _churn(FairShare, 50_000, 200, caps)
    _churn(Fifo, 50_000, 200, caps)


@pytest.mark.parametrize("make", SHARING.values(), ids=list(SHARING))
def test_a_full_link_is_never_idle(make: Callable[[float], SharedLink]):
    link = make(1e6)
    link.add_all(0.0, range(1000), [8e3 * (1 + f % 7) for f in range(1000)], [1e6] * 1000)
    total = sum(8e3 * (1 + f % 7) for f in range(1000))
    assert max(play(link).values()) == pytest.approx(total / 1e6, rel=1e-12)


# queueing theory -----------------------------------------------------------------------------------------------------


def _sojourns(link: SharedLink, load: float, flows: int, seed: int) -> np.ndarray:
    """Seconds from arrival to end of Poisson arrivals that take 1 s each on an empty link of 1 Mbit/s."""
    arrivals = seeds.generator(seed, "arrivals").exponential(1 / load, flows).cumsum()
    ends = np.zeros(flows)
    for flow, at in enumerate(arrivals):
        while (found := link.next()) is not None and found[0] <= at:
            ends[link.finish(found[0])] = found[0]
        link.add(float(at), flow, 1e6, inf)
    for flow, end in play(link).items():
        ends[flow] = end
    return ends - arrivals


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
def test_a_queue_at_the_server_waits_as_long_as_pollaczek_and_khinchine_say(flows: int, load: float, within: float):
    """M/D/1: the mean wait is load x S / 2 (1 - load)."""
    waits = _sojourns(Fifo(1e6), load, flows, 1) - 1.0
    assert waits.min() > -1e-6
    _agrees(waits, load / (2 * (1 - load)), within)


@pytest.mark.parametrize(
    ("flows", "load", "within"),
    [(20_000, 0.5, 0.05), *(pytest.param(400_000, load, 0.03, marks=pytest.mark.slow) for load in (0.3, 0.7, 0.9))],
)
def test_a_shared_server_takes_as_long_as_processor_sharing(flows: int, load: float, within: float):
    """M/G/1 processor sharing: the mean sojourn is S / (1 - load), whatever the sizes are."""
    _agrees(_sojourns(FairShare(1e6), load, flows, 2), 1 / (1 - load), within)
