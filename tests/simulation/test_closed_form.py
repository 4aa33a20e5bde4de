"""The two clocks: all flights of a cohort at once, and event by event, are one and the same to the last digit."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest
from flight_toys import One, assert_same, made, permuted, played
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgefl.devices.failures import BEFORE, CORRUPTED, DOWNLOAD, NONE, TRAINING, TRUNCATED, UPLOAD
from edgefl.simulation.clock import Clock
from edgefl.simulation.closed_form import OUTCOMES, PHASES, Flights, Landings, land_flights
from edgefl.simulation.lines import FairShare

QUICK = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
LONG = settings(QUICK, max_examples=5000)
FAILURES = (BEFORE, DOWNLOAD, TRAINING, UPLOAD, CORRUPTED, TRUNCATED)

Case = tuple[Flights, float, int | None]
"""Flights, the time until which they are waited for, the updates that are waited for."""

# few round numbers beside any others, so that much happens at one time
amounts = st.sampled_from([0, 1, 1000, 12_345_677])
paces = st.sampled_from([8.0, 8000.0, 72.2e6 / 1.0371])
spans = st.sampled_from([0.0, 1.0, 10.0]) | st.floats(0, 1e4)
powers = st.sampled_from([0.0, 1.0, 2.7])
ones = st.builds(
    One,
    down_bytes=amounts,
    up_bytes=amounts,
    latency=st.sampled_from([0.0, 1.0, 0.013]),
    down_goodput=paces,
    up_goodput=paces,
    cool_seconds=spans,
    throttle_after=st.sampled_from([inf, 0.0, 5.0]),
    throttled_share=st.sampled_from([1.0, 0.4]),
    idle_watts=powers,
    download_watts=powers,
    upload_watts=powers,
    compute_watts=powers,
    busy_share=st.sampled_from([1.0, 0.25]),
    exchange_down_bytes=st.just(0) | amounts,
    exchange_up_bytes=st.just(0) | amounts,
    exchange_down_seconds=st.sampled_from([0.0, 3.0]),
    exchange_up_seconds=st.sampled_from([0.0, 0.7]),
    server_seconds=st.sampled_from([0.0, 2.0]),
    factors=st.tuples(*[st.sampled_from([1.0, 0.731, 2.9])] * 3),
    phase=st.sampled_from([NONE] * 6 + list(FAILURES)),
    fraction=st.sampled_from([0.0, 0.5, 1.0]) | st.floats(0, 1),
    slow=st.sampled_from([1.0, 3.0]),
    no_memory=st.sampled_from([False] * 5 + [True]),
)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Any flights; many leave, or are out of energy, or are cut off exactly when something else happens to them.

    Half of them begin later than they are dispatched, as behind relays, many after they have left or are waited for no
    longer.
    """
    at = draw(st.sampled_from([0.0, 1e5 + 0.1, 3e8]))
    flights = made(draw(st.lists(ones, min_size=1, max_size=6)), at, throttling=draw(st.booleans()))
    if draw(st.booleans()):
        waits = draw(st.lists(st.sampled_from([0.0, 1.0, 30.0]), min_size=len(flights), max_size=len(flights)))
        flights = replace(flights, begins=at + np.array(waits))
    if draw(st.booleans()):  # for the server's device, where the model is split
        waits = draw(st.lists(st.sampled_from([0.0, 2.0, 7.5]), min_size=len(flights), max_size=len(flights)))
        flights = replace(flights, waits=np.array(waits) * (flights.numbers[:, -1] > 0))
    alone = land_flights(flights)
    fetched = alone.began + alone.download_seconds
    computed = fetched + alone.compute_seconds
    moments = st.sampled_from([at, *alone.began, *fetched, *computed, *alone.ended]).map(float) | st.floats(
        at, at + 2e4
    )
    down, busy, up = (np.asarray(w) for w in _needs(flights, alone))
    joules = st.sampled_from([0.0, *down, *(down + busy), *(down + busy + up)]).map(float) | st.floats(0, 1e4)
    count = len(flights)
    flights = replace(
        flights,
        leaves=np.array(draw(st.lists(st.just(inf) | moments, min_size=count, max_size=count))),
        joules=np.array(draw(st.lists(st.just(inf) | joules, min_size=count, max_size=count))),
    )
    return flights, draw(st.just(inf) | moments), draw(st.none() | st.integers(1, count))


def _needs(flights: Flights, alone: Landings) -> tuple[Any, Any, Any]:
    # the watts and the exchanges of edgefl.cost.phases.NUMBERS
    cool, after, share, idle, receiving, sending, most, busy, _, _, down, up, served = flights.numbers.T[5:]
    down, up = down * flights.factors[0], up * flights.factors[2]
    own = cool * flights.factors[1] * flights.failures.slow
    if flights.throttling:
        own = np.minimum(own, after) + np.maximum(own - after, 0) / share
    whole = own + down + up + served + flights.waits
    power = own * (most - idle) * busy + down * receiving + up * sending
    computing = idle + np.divide(power, whole, out=np.zeros_like(whole), where=whole > 0)
    return (
        alone.download_seconds * (idle + receiving),
        alone.compute_seconds * computing,
        alone.upload_seconds * (idle + sending),
    )


# the closed form and the events -----------------------------------------------------------------------------------


def both_clocks_tell_the_same(case: Case) -> None:
    flights, over, wanted = case
    at_once = land_flights(flights, over, wanted)
    assert_same(at_once, played(flights, over, wanted))
    conserved(flights, at_once, over)


def conserved(flights: Flights, landed: Landings, over: float = inf) -> None:
    """What holds of all landings, whatever happened."""
    bits, at = flights.phases.bits, flights.dispatch.at
    exchanged = flights.phases.exchanged_bits
    # half of a split model is exchanged as long as it computes, and of no use without the update
    for carried, lost, model, more in (
        (landed.carried_download_bytes, landed.lost_download_bytes, bits[0] // 8, exchanged[0] // 8),
        (landed.carried_upload_bytes, landed.lost_upload_bytes, bits[1] // 8, exchanged[1] // 8),
    ):
        whole = model + more
        assert np.all((lost >= 0) & (lost <= carried) & (carried <= whole))
        assert np.all((carried - lost)[landed.finished_mask] == whole[landed.finished_mask])
        assert np.all((carried - lost == 0) | (carried - lost == model) | landed.finished_mask)
    there = landed.downloaded_mask
    assert np.all(landed.carried_download_bytes[there] >= bits[0][there] // 8)
    seconds = np.stack([landed.download_seconds, landed.compute_seconds, landed.upload_seconds])
    assert np.all(seconds >= 0) and np.all(landed.ended >= at) and np.all(landed.ended <= max(over, at))
    assert np.all((landed.phase == PHASES.index(None)) == landed.finished_mask)
    for place in range(3):  # nothing passes after the phase in which a flight ended
        assert np.all(seconds[place:].sum(0)[landed.phase <= place] == 0)
    assert np.all(landed.began >= at) and np.all(landed.began <= np.minimum(flights.start, max(over, at)))
    np.testing.assert_allclose(landed.began + landed.virtual_seconds, landed.ended, rtol=1e-15, atol=0)
    joules = sum(np.asarray(need) for need in _needs(flights, landed))
    np.testing.assert_allclose(landed.energy_joules, joules, rtol=1e-12, atol=0)
    # a second's rounding on a large clock is worth joules
    slack = 16 * np.spacing(max(float(landed.ended.max()), 1.0))
    assert np.all(landed.energy_joules <= flights.joules * (1 + 1e-12) + slack)


@QUICK
@given(cases())
def test_both_clocks_tell_the_same_of_any_flights(case: Case) -> None:
    both_clocks_tell_the_same(case)


@pytest.mark.slow(smaller="test_both_clocks_tell_the_same_of_any_flights")
@LONG
@given(cases())
def test_both_clocks_tell_the_same_of_many_more_flights(case: Case) -> None:
    both_clocks_tell_the_same(case)


# by hand -----------------------------------------------------------------------------------------------------------


def alone(one: One, over: float = inf, wanted: int | None = None, at: float = 0.0) -> dict[str, Any]:
    """What became of one flight, by both clocks."""
    flights = made([one], at)
    landed = land_flights(flights, over, wanted)
    assert_same(landed, played(flights, over, wanted))
    return told(landed, 0)


def told(landed: Landings, place: int) -> dict[str, Any]:
    seconds = landed.download_seconds[place], landed.compute_seconds[place], landed.upload_seconds[place]
    return {
        "outcome": OUTCOMES[landed.outcome[place]],
        "phase": PHASES[landed.phase[place]],
        "seconds": seconds,
        "ended": landed.ended[place],
        "down": (landed.carried_download_bytes[place], landed.lost_download_bytes[place]),
        "up": (landed.carried_upload_bytes[place], landed.lost_upload_bytes[place]),
        "joules": landed.energy_joules[place],
    }


WHOLE = {
    "outcome": "finished", "phase": None, "seconds": (1, 10, 100), "ended": 111, "down": (1000, 0), "up": (1000, 0),
    "joules": 3 * 1 + 8 * 10 + 4 * 100,
}  # fmt: skip


def test_one_client_alone() -> None:
    assert alone(One()) == WHOLE
    assert alone(One(), at=50.0) == {**WHOLE, "ended": 161}
    factored = alone(One(latency=0.5, factors=(2.0, 3.0, 0.5), slow=2.0))
    # latency and transfer are both jittered; computing is slowed down as well
    assert factored["seconds"] == (2 * (0.5 + 1), 3 * 2 * 10, 0.5 * (0.5 + 100))


def test_a_hot_device_goes_on_at_what_its_cooling_allows() -> None:
    hot = One(throttle_after=4.0, throttled_share=0.5)
    assert alone(hot)["seconds"] == (1, 4 + 6 / 0.5, 100)
    assert land_flights(made([hot], throttling=False)).compute_seconds == 10
    # a slow client is longer busy and so hotter
    assert alone(replace(hot, slow=2.0))["seconds"] == (1, 4 + 16 / 0.5, 100)


def test_nothing_to_send_takes_no_time() -> None:
    found = alone(One(down_bytes=0, up_bytes=0, latency=3.0))
    assert found["outcome"] == "finished" and found["seconds"] == (0, 10, 0)
    assert found["down"] == found["up"] == (0, 0)


# what ends the flight, and what is found then; of WHOLE what isn't said
NONE_OF_IT = {"seconds": (0, 0, 0), "ended": 0, "down": (0, 0), "up": (0, 0), "joules": 0}
FETCHED = {"phase": "compute", "up": (0, 0)}
ENDS: list[tuple[str, One, float, dict[str, Any]]] = [
    ("before the download", One(phase=BEFORE), inf, {**NONE_OF_IT, "outcome": "dropped", "phase": "start"}),
    (
        "while it downloads", One(phase=DOWNLOAD, fraction=0.25), inf,
        {**NONE_OF_IT, "outcome": "dropped", "phase": "download", "seconds": (0.25, 0, 0), "ended": 0.25,
         "down": (250, 250), "joules": 0.75},
    ),
    (
        "while it trains", One(phase=TRAINING, fraction=0.5), inf,
        {**FETCHED, "outcome": "dropped", "seconds": (1, 5, 0), "ended": 6, "joules": 43},
    ),
    (
        "while it uploads", One(phase=UPLOAD, fraction=0.5), inf,
        {"outcome": "dropped", "phase": "upload", "seconds": (1, 10, 50), "ended": 61, "up": (500, 500), "joules": 283},
    ),
    ("corrupted", One(phase=CORRUPTED), inf, {"outcome": "corrupted", "phase": "upload", "up": (1000, 1000)}),
    (
        "truncated", One(phase=TRUNCATED, fraction=0.75), inf,
        {"outcome": "truncated", "phase": "upload", "seconds": (1, 10, 75), "ended": 86, "up": (750, 750),
         "joules": 383},
    ),
    (
        "out of memory", One(no_memory=True), inf,
        {**FETCHED, "outcome": "out of memory", "seconds": (1, 0, 0), "ended": 1, "joules": 3},
    ),
    (
        "dropped before it could be out of memory", One(no_memory=True, phase=DOWNLOAD, fraction=0.5), inf,
        {**NONE_OF_IT, "outcome": "dropped", "phase": "download", "seconds": (0.5, 0, 0), "ended": 0.5,
         "down": (500, 500), "joules": 1.5},
    ),
    (
        "offline", One(leaves=6.0), inf,
        {**FETCHED, "outcome": "offline", "seconds": (1, 5, 0), "ended": 6, "joules": 43},
    ),
    (
        "offline as the download ends", One(leaves=1.0), inf,
        {**FETCHED, "outcome": "offline", "seconds": (1, 0, 0), "ended": 1, "joules": 3},
    ),
    ("offline as its update arrives", One(leaves=111.0), inf, {}),
    (
        "battery empty", One(joules=123.0), inf,
        {"outcome": "battery empty", "phase": "upload", "seconds": (1, 10, 10), "ended": 21, "up": (100, 100),
         "joules": 123},
    ),
    ("a battery for just this", One(joules=483.0), inf, {}),
    (
        "a battery that is empty from the start", One(joules=0.0), inf,
        {**NONE_OF_IT, "outcome": "battery empty", "phase": "download"},
    ),
    (
        "late", One(), 0.5,
        {**NONE_OF_IT, "outcome": "late", "phase": "download", "seconds": (0.5, 0, 0), "ended": 0.5,
         "down": (500, 500), "joules": 1.5},
    ),
    (
        "late in its latency", One(latency=2.0), 0.5,
        {**NONE_OF_IT, "outcome": "late", "phase": "download", "seconds": (0.5, 0, 0), "ended": 0.5, "joules": 1.5},
    ),
    ("in time to the second", One(), 111.0, {}),
]  # fmt: skip


@pytest.mark.parametrize(("one", "over", "expected"), [case[1:] for case in ENDS], ids=[case[0] for case in ENDS])
def test_each_end_by_hand(one: One, over: float, expected: dict[str, Any]) -> None:
    assert alone(one, over) == {**WHOLE, **expected}


def test_a_link_that_takes_years_ends_as_any_other() -> None:
    years = One(down_goodput=1e-6, up_goodput=1e-3)
    assert alone(years)["seconds"] == (8e9, 10, 8e6)
    assert alone(years, 60.0)["outcome"] == "late"

    def wire(clock: Clock) -> FairShare:
        return FairShare(clock, 1e9)

    assert told(played(made([years]), wires=(wire, wire)), 0)["seconds"][::2] == pytest.approx((8e9, 8e6), rel=1e-15)


def test_over_selection_ends_with_the_updates_that_are_wanted() -> None:
    flights = made([One(cool_seconds=s) for s in (40.0, 10.0, 30.0, 20.0)] + [One(phase=BEFORE)])
    landed = land_flights(flights, wanted=2)
    assert_same(landed, played(flights, wanted=2))
    assert [OUTCOMES[o] for o in landed.outcome] == ["late", "finished", "late", "finished", "dropped"]
    assert landed.ended.tolist() == [121, 111, 121, 121, 0]
    # of two at one time both are in; where too few arrive, everyone is waited for
    twins = made([One(), One(), One(cool_seconds=11.0)])
    assert [OUTCOMES[o] for o in land_flights(twins, wanted=1).outcome] == ["finished", "finished", "late"]
    assert_same(land_flights(twins, wanted=1), played(twins, wanted=1))
    failing = made([One(phase=UPLOAD), One()])
    assert_same(land_flights(failing, wanted=2), played(failing, wanted=2))
    assert land_flights(failing, wanted=2).ended.tolist() == [111, 111]


def test_a_battery_gives_what_it_holds() -> None:
    landed = land_flights(made([One(joules=483.0 - 1e-9), One()]))
    assert [OUTCOMES[o] for o in landed.outcome] == ["battery empty", "finished"]
    assert landed.energy_joules[0] == pytest.approx(483.0 - 1e-9, rel=1e-14)


# the formula ---------------------------------------------------------------------------------------------------------


def test_the_formula_in_numpy() -> None:
    """No failures, no contention: start + download + compute + upload of ten thousand drawn clients, to 1e-9."""
    rng = np.random.default_rng(6)
    count, at = 10_000, 12345.678
    down, up = rng.integers(1, 10**8, (2, count))
    latency, fast, slow, busy = rng.lognormal(0, 2, (4, count))
    jitter = rng.lognormal(0, 0.5, (3, count))
    flights = made(
        [
            One(*row[:2], row[2], row[3] * 1e6, row[4] * 1e5, row[5], factors=tuple(row[6:]))
            for row in zip(down.tolist(), up.tolist(), *(c.tolist() for c in (latency, fast, slow, busy, *jitter)))
        ],
        at,
    )
    landed = land_flights(flights)
    expected = (
        at
        + jitter[0] * (latency + 8 * down / (fast * 1e6))
        + jitter[1] * busy
        + jitter[2] * (latency + 8 * up / (slow * 1e5))
    )
    assert landed.finished_mask.all()
    np.testing.assert_allclose(landed.ended, expected, rtol=1e-9, atol=0)
    np.testing.assert_allclose(landed.virtual_seconds, expected - at, rtol=1e-9, atol=0)


# orders --------------------------------------------------------------------------------------------------------------


@QUICK
@given(cases(), st.randoms(use_true_random=False))
def test_no_order_of_clients_matters(case: Case, random: Any) -> None:
    flights, over, wanted = case
    order = list(range(len(flights)))
    random.shuffle(order)
    assert_same(
        permuted(land_flights(flights, over, wanted), order), land_flights(reordered(flights, order), over, wanted)
    )


def reordered(flights: Flights, order: list[int]) -> Flights:
    failures = flights.failures
    return replace(
        flights,
        client=flights.client[order],
        numbers=flights.numbers[order],
        factors=flights.factors[:, order],
        failures=replace(
            failures, phase=failures.phase[order], fraction=failures.fraction[order], slow=failures.slow[order]
        ),
        leaves=flights.leaves[order],
        joules=flights.joules[order],
        no_memory=flights.no_memory[order],
        begins=None if flights.begins is None else flights.begins[order],
        waits=np.broadcast_to(flights.waits, len(flights))[order],
    )
