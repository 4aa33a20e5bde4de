"""Flights over a shared link: by hand, against a plain reference, in any order, and cut off in the middle."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest
from flight_toys import One, assert_same, made, over_lines, permuted, played
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgefl.devices.failures import DOWNLOAD, NONE, TRAINING, TRUNCATED, UPLOAD
from edgefl.devices.options import BackgroundOptions, ServerLinkOptions
from edgefl.simulation import lines
from edgefl.simulation.client import Flight, flights_from, landings
from edgefl.simulation.clock import LAST, SPARE, Clock
from edgefl.simulation.closed_form import AT_DOWNLOAD, AT_UPLOAD, OUTCOMES, Flights, Landings, land_flights

QUICK = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
LONG = settings(QUICK, max_examples=3000)
Make = Callable[[float], Any]


def FairShare(rate: float) -> Any:
    return lambda clock: lines.FairShare(clock, rate)


def Fifo(rate: float) -> Any:
    return lambda clock: lines.Fifo(clock, rate)


def wires_of(line: Any) -> Any:
    return tuple((lambda clock, way=way: lines.lines_of(clock, line)[way]) for way in (AT_DOWNLOAD, AT_UPLOAD))


BOTH = pytest.mark.parametrize("make", [FairShare, Fifo])


def seconds(landed: Landings) -> list[tuple[float, ...]]:
    return list(zip(landed.download_seconds.tolist(), landed.upload_seconds.tolist(), strict=True))


# by hand --------------------------------------------------------------------------------------------------------


def test_two_clients_halve_the_servers_uplink() -> None:
    # 1000 bytes each at 80 bit/s of their own, over 100 bit/s: 50 each
    landed = played(made([One(), One()]), wires=(None, FairShare(100)))
    assert seconds(landed) == [(1, 160), (1, 160)]
    # the second comes 60 s later: 60 s x 80, then 50 each until the first has its 8000 bits, then 80 again
    landed = played(made([One(), One(cool_seconds=70.0)]), wires=(None, FairShare(100)))
    assert seconds(landed) == [(1, 60 + 3200 / 50), (1, 64 + (8000 - 3200) / 80)]


def test_the_traffic_of_others_takes_its_share_of_each_direction() -> None:
    line = ServerLinkOptions.model_validate(
        {"download": "8000 bit/s", "upload": "100 bit/s", "background": {"flows": 3}}
    )
    landed = played(made([One(), One()]), wires=wires_of(line))
    # five share 8000 bit/s and then 100
    assert seconds(landed) == [(5, 400), (5, 400)]
    slow = line.model_copy(update={"background": BackgroundOptions(flows=1, rate=40)})
    # one of the others takes 40 of 8000, and of 100 its third
    landed = played(made([One(), One()]), wires=wires_of(slow))
    assert landed.download_seconds.tolist() == pytest.approx([8000 / 3980] * 2, rel=1e-15)
    assert landed.upload_seconds.tolist() == pytest.approx([240] * 2, rel=1e-15)


def test_a_slow_client_leaves_the_rest_to_the_fast_one() -> None:
    # 8000 bit/s and 2000 bit/s over 8000 bit/s down: 6000 and 2000
    flights = made([One(down_bytes=6000), One(down_bytes=2000, down_goodput=2000.0, latency=0.5)])
    landed = played(flights, wires=(FairShare(8000), None))
    # alone for half a second, 44,000 bits left at 6000
    assert landed.download_seconds.tolist() == pytest.approx([0.5 + 44_000 / 6000, 0.5 + 8], rel=1e-15)
    assert landed.upload_seconds.tolist() == [100, 100.5]


def test_one_after_the_other() -> None:
    flights = made([One(cool_seconds=20.0), One(cool_seconds=10.0), One(cool_seconds=15.0)])
    landed = played(flights, wires=(None, Fifo(100)))
    # each at its own 80 bit/s, in order of arrival: 11..111, 111..211, 211..311
    assert landed.ended.tolist() == [311, 111, 211]
    assert landed.upload_seconds.tolist() == [290, 100, 195]


@BOTH
def test_who_leaves_makes_room(make: Make) -> None:
    flights = made([One(leaves=51.0), One()])
    landed = played(flights, wires=(None, make(80)))
    assert [OUTCOMES[o] for o in landed.outcome] == ["offline", "finished"]
    # 40 s at 40 bit/s, or at 80 as the first in the queue
    assert landed.carried_upload_bytes[0] == (200 if make is FairShare else 400) == landed.lost_upload_bytes[0]
    assert landed.ended[1] == (51 + (8000 - 1600) / 80 if make is FairShare else 51 + 100)


@BOTH
def test_a_battery_pays_for_waiting(make: Make) -> None:
    """The radio is on while others are served: what lasts alone doesn't last in a crowd."""
    flights = made([One(joules=483.0), One(joules=483.0)])
    assert land_flights(flights).finished_mask.all()
    landed = played(flights, wires=(None, make(80)))
    assert OUTCOMES[landed.outcome[1]] == "battery empty" and landed.energy_joules[1] == pytest.approx(483)


@BOTH
def test_who_is_cut_off_as_the_last_bit_arrives_is_in(make: Make) -> None:
    flights = made([One(leaves=111.0), One(up_bytes=0)])
    assert played(flights, wires=(None, make(1e6))).finished_mask.all()
    assert played(flights, 111.0, wires=(None, make(1e6))).finished_mask.all()


# any flights ----------------------------------------------------------------------------------------------------

ones = st.builds(
    One,
    down_bytes=st.sampled_from([0, 1000, 4321]),
    up_bytes=st.sampled_from([0, 1000, 4321]),
    latency=st.sampled_from([0.0, 0.5]),
    down_goodput=st.sampled_from([800.0, 8000.0, 3e5]),
    up_goodput=st.sampled_from([80.0, 800.0, 3e5]),
    cool_seconds=st.sampled_from([0.0, 1.0, 10.0]) | st.floats(0, 100),
    factors=st.tuples(*[st.sampled_from([1.0, 0.731])] * 3),
    phase=st.sampled_from([NONE] * 4 + [DOWNLOAD, TRAINING, UPLOAD, TRUNCATED]),
    fraction=st.sampled_from([0.0, 0.5, 1.0]) | st.floats(0, 1),
    leaves=st.sampled_from([inf, inf, 1.0, 10.0]) | st.floats(0, 500),
    joules=st.sampled_from([inf, inf, 0.0, 100.0]) | st.floats(0, 1000),
)
crowds = st.lists(ones, min_size=1, max_size=8)
rates = st.sampled_from([80.0, 500.0, 8000.0]) | st.floats(50, 1e5)
makes = st.sampled_from([FairShare, Fifo])
overs = st.just(inf) | st.floats(0, 300)
wanteds = st.none() | st.integers(1, 4)


@QUICK
@given(crowds, st.sampled_from([0.0, 7e8]), wanteds)
def test_a_link_with_room_for_all_is_as_none(crowd: list[One], at: float, wanted: int | None) -> None:
    flights = made([replace(one, leaves=inf, joules=inf) for one in crowd], at)
    one, other = (
        land_flights(flights, wanted=wanted),
        played(flights, wanted=wanted, wires=(FairShare(1e9), FairShare(1e9))),
    )
    slack = 8 * np.spacing(max(at, 1.0))
    for field in ("ended", "download_seconds", "compute_seconds", "upload_seconds", "energy_joules"):
        np.testing.assert_allclose(getattr(one, field), getattr(other, field), rtol=1e-12, atol=20 * slack)
    for field in ("carried_download_bytes", "carried_upload_bytes"):
        np.testing.assert_allclose(getattr(one, field), getattr(other, field), rtol=0, atol=1 if wanted else 0)
    if wanted is None:  # else two that end within a rounding of each other may change places
        assert one.outcome.tolist() == other.outcome.tolist()


def reference(flights: Flights, capacity: tuple[float, float]) -> tuple[list[float], list[float]]:
    """When each flight ends and what it has carried up, under fair sharing: all rates anew at each event, in floats."""
    ends, count = flights.ends, len(flights)
    bits, latency, caps = ends.bits, flights.phases.latency, flights.phases.rates
    watts = flights.phases.watts
    # what is left of each of: wait, download, compute, wait, upload
    left = [
        [latency[0][i] if ends.last[i] >= 1 else 0.0, bits[0][i], ends.compute_seconds[i],
         latency[1][i] if ends.last[i] >= 3 else 0.0, bits[1][i]]
        for i in range(count)
    ]  # fmt: skip
    joules, now, ended = flights.joules.tolist(), 0.0, [inf] * count
    leaves = np.maximum(flights.leaves, 0.0)
    while True:
        step = [next((k for k in range(5) if left[i][k] > 0), 5) for i in range(count)]
        for i in range(count):
            if ended[i] == inf and step[i] == 5:
                ended[i] = now
        up = [i for i in range(count) if ended[i] == inf]
        if not up:
            return ended, [float(bits[1][i] - left[i][4]) for i in range(count)]
        pace = dict.fromkeys(up, 1.0)
        for way, k in ((0, 1), (1, 4)):
            room, flows = capacity[way], sorted((i for i in up if step[i] == k), key=lambda i: caps[way][i])
            for place, i in enumerate(flows):
                pace[i] = min(caps[way][i], room / (len(flows) - place))
                room -= pace[i]
        power = {i: watts[0 if step[i] < 2 else 1 if step[i] == 2 else 2][i] for i in up}
        cuts = {i: min(leaves[i], now + joules[i] / power[i]) for i in up}
        after = min(min(left[i][step[i]] / pace[i] for i in up), min(cuts.values()) - now)
        for i in up:
            done = left[i][step[i]] / pace[i] <= after
            left[i][step[i]] = 0.0 if done else left[i][step[i]] - pace[i] * after
            joules[i] -= after * power[i]
        now += after
        for i in up:
            if cuts[i] <= now and any(left[i]):
                ended[i] = now


def as_a_plain_reference_says(crowd: list[One], down: float, up: float) -> None:
    flights = made(crowd)
    landed = played(flights, wires=(FairShare(down), FairShare(up)))
    ended, carried = reference(flights, (down, up))
    np.testing.assert_allclose(landed.ended, ended, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(landed.carried_upload_bytes, np.array(carried) // 8, atol=1)


@QUICK
@given(crowds, rates, rates)
def test_fair_sharing_is_as_a_plain_reference_says(crowd: list[One], down: float, up: float) -> None:
    as_a_plain_reference_says(crowd, down, up)


@pytest.mark.slow(smaller="test_fair_sharing_is_as_a_plain_reference_says")
@LONG
@given(crowds, rates, rates)
def test_fair_sharing_is_as_a_plain_reference_says_of_many_more(crowd: list[One], down: float, up: float) -> None:
    as_a_plain_reference_says(crowd, down, up)


@BOTH
@QUICK
@given(crowds, rates, rates, overs, wanteds)
def test_conservation(make: Make, crowd: list[One], down: float, up: float, over: float, wanted: int | None) -> None:
    flights = made(crowd)
    landed = played(flights, over, wanted, (make(down), make(up)))
    fetched, sums = landed.download_seconds, landed.download_seconds + landed.compute_seconds
    for way, rate, began, ended in ((0, down, 0 * sums, fetched), (1, up, sums, landed.ended)):
        name = ("download", "upload")[way]
        carried = getattr(landed, f"carried_{name}_bytes")
        lost = getattr(landed, f"lost_{name}_bytes")
        whole = flights.phases.bits[way] / 8
        arrived = (landed.downloaded_mask, landed.finished_mask)[way]
        assert np.all(np.where(arrived, carried == whole, carried <= whole))
        assert np.array_equal(carried - lost, np.where(arrived, whole, 0))
        # no flow is faster than its own link, nor are all that move within any span together faster than the server's
        taken = ended - began - flights.phases.latency[way]
        assert np.all((8 * carried <= flights.phases.rates[way] * taken * (1 + 1e-9) + 1e-6) | (carried == 0))
        for first in began:
            for last in ended:
                inside = (began >= first) & (ended <= last)
                assert 8 * carried[inside].sum() <= max(rate * (last - first), 0) * (1 + 1e-9) + 1e-6
    spent = np.stack([landed.download_seconds, landed.compute_seconds, landed.upload_seconds])
    assert np.all(spent >= 0) and np.allclose(spent.sum(0), landed.ended, rtol=1e-12) and np.all(landed.ended <= over)
    idle, receiving, sending, most, busy = flights.numbers.T[8:13]  # the watts of edgefl.cost.phases.NUMBERS
    computing = idle * (1 - busy) + most * busy
    joules = spent[0] * (idle + receiving) + spent[1] * computing + spent[2] * (idle + sending)
    np.testing.assert_allclose(landed.energy_joules, joules, rtol=1e-12)
    assert np.all(landed.energy_joules <= flights.joules * (1 + 1e-12))
    if over == inf and wanted is None and np.isinf(flights.joules).all() and np.isinf(flights.leaves).all():
        # nobody gains by company
        assert np.all(landed.virtual_seconds >= land_flights(flights).virtual_seconds * (1 - 1e-12))


# orders -----------------------------------------------------------------------------------------------------------


@BOTH
@QUICK
@given(crowds, rates, rates, overs, wanteds, st.integers(1, 3), st.randoms(use_true_random=False))
def test_no_order_of_events_at_one_time_matters(
    make: Make, crowd: list[One], down: float, up: float, over: float, wanted: int | None, twins: int, random: Any
) -> None:
    """The same clients, identical ones among them, told to the air in another order: the same to the last digit."""
    crowd = crowd * twins
    clients = list(range(len(crowd)))
    order = random.sample(clients, len(clients))
    usual = played(made(crowd), over, wanted, (make(down), make(up)))
    other = played(made([crowd[i] for i in order], clients=order), over, wanted, (make(down), make(up)))
    assert_same(usual, other)


def test_with_fair_sharing_no_number_of_a_client_matters() -> None:
    """Of identical clients none is served first; one after the other, the smaller number is."""
    crowd = [One(), One(leaves=60.0), One(latency=0.5), One(), One(joules=200.0)] * 3
    order = np.random.default_rng(1).permutation(len(crowd))
    usual = played(made(crowd), wires=(FairShare(9000), FairShare(300)))
    other = played(made([crowd[i] for i in order]), wires=(FairShare(9000), FairShare(300)))
    assert_same(replace(permuted(usual, order), client=other.client), other)


# in the middle ----------------------------------------------------------------------------------------------------


def cut_and_gone_on(flights: Flights, at: float, wires: Any) -> Landings:
    """Landings of flights that were written as JSON at the time ``at``, and went on from there."""
    clock = Clock(initial_time=0.0)
    air = over_lines(clock, wires)
    air.launch(flights_from(flights))
    clock.run(clock.process(_until(clock, at)))  # type: ignore[arg-type]
    landed = air.take()
    text = json.dumps([[flight.to_data() for flight in air.flying.values()], air.to_data()], allow_nan=False)
    flying, lines = json.loads(text)
    clock = Clock(initial_time=at)
    air = over_lines(clock, wires)
    air.load_data(lines, [Flight.from_data(raw, None, flights.dispatch, None) for raw in flying])  # type: ignore[arg-type]
    clock.run()
    return landings(sorted([*landed, *air.take()], key=lambda flight: flight.client))


def _until(clock: Clock, at: float) -> Iterator[Any]:
    yield clock.at(at, LAST)


@BOTH
@QUICK
@given(crowds, rates, rates, st.sampled_from([0.0, 0.5, 1.0, 10.0]) | st.floats(0, 300))
def test_flights_go_on_from_any_time(make: Make, crowd: list[One], down: float, up: float, at: float) -> None:
    flights = made(crowd)
    whole = played(flights, wires=(make(down), make(up)))
    assert_same(cut_and_gone_on(flights, at, (make(down), make(up))), whole)


LINES: dict[str, Any] = {
    "alone": (None, None),
    "FIFO": (Fifo(8e6), Fifo(8e6)),
    "fair": (FairShare(8e6), FairShare(8e6)),
}
CUTS: dict[str, dict[str, float]] = {
    "deadline": {}, "quorum": {"leaves": 1e15}, "offline": {"leaves": 50.0}, "battery": {"joules": 300.0},
}  # fmt: skip
STUCK = [{}, {"cool_seconds": 1e9}, {"down_bytes": 10**12}, {"up_bytes": 10**12}, {"latency": 1e9}]
"""One that arrives, and those that are cut in each phase; on a line others wait behind the large transfers."""


@pytest.mark.parametrize("lines", LINES)
@pytest.mark.parametrize("cut", CUTS)
def test_who_is_cut_short_leaves_no_event_behind(cut: str, lines: str) -> None:
    """After each of 200 rounds nothing is waited for, and no more lies in the queue than one round leaves there."""
    clock = Clock()
    air = over_lines(clock, LINES[lines])
    counted: Counter[str] = Counter()

    def awaited() -> list[Any]:
        return [entry for entry in clock._queue if entry[3].callbacks is not clock._of_idle]

    def rounds() -> Iterator[Any]:
        for number in range(200):
            start = 1e10 * number
            yield clock.at(start, LAST)
            ones = [One(**{**stuck, **CUTS[cut]}) for stuck in STUCK]  # type: ignore[arg-type]
            ones = [replace(one, leaves=start + one.leaves) for one in ones]
            air.launch(flights_from(made(ones, at=start), start + 200.0 if cut == "deadline" else inf))
            if cut == "quorum":
                yield clock.at(start + 200.0, LAST)
                assert len(awaited()) <= len(air.flying) + 2  # a line has an event of its own
                yield from air.cut()
            else:
                yield air.landing_event(len(ones))
            counted.update(OUTCOMES[flight.outcome] for flight in air.take())
            assert awaited() == [] and len(clock._queue) <= len(ones) + SPARE

    clock.run(clock.process(rounds()))  # type: ignore[arg-type]
    name = {"deadline": "late", "quorum": "late", "offline": "offline", "battery": "battery empty"}[cut]
    assert counted[name] >= 800 and sum(counted.values()) == 1000


def test_a_cancelled_event_happens_to_nobody() -> None:
    clock, happened = Clock(), list[int]()
    events = [clock.at(float(number)) for number in range(1000)]
    for number, event in enumerate(events):
        event.callbacks.append(lambda _, number=number: happened.append(number))
    for number, event in enumerate(events):
        if number % 10:
            clock.cancel(event)
            clock.cancel(event)  # once is enough
            waiting = 1000 - number + number // 10
            assert len(clock._queue) <= 2 * waiting + SPARE
    clock.run()
    assert happened == list(range(0, 1000, 10)) and clock._idle == 0
