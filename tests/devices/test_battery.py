"""Batteries: levels by hand, always between nothing and full, and a checkpoint that holds all there is."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from edgefl.devices import Batteries, BatteryOptions, Fleet, FleetOptions, load_device

MAINS = replace(load_device("raspberry-pi-4-4gb"), idle_watts=2.0, battery_joules=None)
PHONE = replace(MAINS, battery_joules=1000.0)


def _made(seed=1, clients=10, devices=(PHONE,), **written):
    index = (np.arange(clients) % len(devices)).astype(np.uint8)
    return Batteries(BatteryOptions.model_validate(written), devices, index, seed)


def test_a_device_brings_its_battery_and_mains_is_endless():
    made = _made(devices=(PHONE, MAINS), initial="40%", reserve="50%", idle=True)
    assert made.capacity([0, 1]).tolist() == [1000, inf]
    assert made.level([0, 1], 0).tolist() == [400, inf]
    assert made.ready([0, 1], 0).tolist() == [False, True]
    assert made.charge([0, 1], 0).tolist() == [0.4, 1]
    made.spend([0, 1], [100, 1e9], 0)
    assert made.level([0, 1], 50).tolist() == [200, inf]
    assert made.charge([0, 1], 50).tolist() == [0.2, 1]
    assert made.ready([0, 1], 7).tolist() == [False, True]


def test_a_level_by_hand():
    made = _made(initial="50%", charge_watts="5 W", idle=True)  # +3 W while it rests
    assert made.level([0], 100).tolist() == [800]
    assert made.level([0], 1000).tolist() == [1000]  # full is full
    made.spend([0], [250], at=160, seconds=60)  # 800 J at the start of the work, no charge during it
    assert made.level([0], 160).tolist() == [550]
    assert made.level([0], 170).tolist() == [580]
    assert made.level([0], 100).tolist() == [550]  # of the past the last that is known
    made.spend([0], [600], at=180)
    assert made.level([0], 180).tolist() == [10]
    assert made.level([1], 180).tolist() == [1000]


def test_nothing_falls_below_nothing():
    made = _made()
    made.spend([3], [5000], at=10)
    assert made.level([3], [10]).tolist() == [0]
    assert made.ready([3], 1e9).tolist() == [False]
    drained = _made(idle=True)
    assert drained.level([0], [499, 500, 501]).tolist() == [2, 0, 0]


def test_a_battery_that_is_empty_from_the_start():
    made = _made(initial="0%")
    assert made.level([0], 0).tolist() == [0]
    assert made.ready([0], 0).tolist() == [False]
    charged = _made(initial="0%", reserve="30%", charge_watts=3)
    assert [charged.ready([0], at).all() for at in (0, 99.9, 100.1)] == [False, False, True]


def test_capacities_and_first_levels_are_drawn():
    made = _made(clients=20_000, devices=(PHONE, MAINS), capacity="10..20 Wh", initial="20..100%")
    full, held = made.capacity(np.arange(20_000)), made.level(np.arange(20_000), 0)
    assert 36_000 <= full.min() < 36_100
    assert 71_900 < full.max() <= 72_000
    assert full.mean() == pytest.approx(54_000, rel=0.01)
    assert (held / full).mean() == pytest.approx(0.6, rel=0.01)
    assert np.array_equal(made.level([5, 19_999], 0), held[[5, 19_999]])
    assert not np.array_equal(_made(2, 20_000, capacity="10..20 Wh").capacity(np.arange(20_000)), full)


works = st.lists(
    st.tuples(st.integers(0, 9), st.floats(0, 1000), st.floats(0, 500), st.floats(0, 800)), min_size=1, max_size=20
)


@settings(max_examples=25, deadline=None)
@given(works, st.floats(0, 10), st.booleans(), st.floats(0, 1), st.floats(0, 0.9))
def test_levels_stay_between_nothing_and_full(works, watts, idle, initial, reserve):
    made = _made(capacity="500..900 J", charge_watts=watts, idle=idle, initial=initial, reserve=reserve)
    everybody, now = np.arange(10), np.zeros(10)
    for client, rest, seconds, joules in works:
        before = made.level([client], now[client] + rest)[0]
        now[client] += rest + seconds
        made.spend([client], [joules], now[client], seconds)
        after = made.level([client], now[client])[0]
        assert after == pytest.approx(max(before - joules, 0), rel=1e-9, abs=1e-6)  # what it had, less what it gave
        level = made.level(everybody, now)
        assert np.all((level >= 0) & (level <= made.capacity(everybody)))
        held = (level > 0) & (level >= reserve * made.capacity(everybody))
        assert np.array_equal(made.ready(everybody, now), held)
    kept = json.loads(json.dumps(made.to_data()))
    assert set(kept) == {str(client) for client, *_ in works}
    again = made.fresh()
    assert again.to_data() == {}
    again.load_data(kept)
    assert np.array_equal(again.level(everybody, now + 5), made.level(everybody, now + 5))
    again.load_data({})
    assert np.array_equal(again.level(everybody, 3), made.fresh().level(everybody, 3))


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ({"capacity": "0 Wh"}, "for one that is empty at the start write initial: 0%"),
        ({"capacity": "10 W"}, "unknown unit 'W'"),
        ({"initial": "120%"}, "between 0 and 1"),
        ({"initial": "80..20%"}, "empty range"),
        ({"reserve": -1}, "negative"),
        ({"charge_watts": "-5 W"}, "negative"),
        ({"charge": 5}, "Extra inputs"),
    ],
)
def test_what_a_person_is_told(written, said):
    with pytest.raises(ValidationError) as caught:
        FleetOptions.model_validate({"battery": written})
    assert any(said in error["msg"] for error in caught.value.errors())


def test_a_fleet_draws_its_batteries():
    assert Fleet.draw(FleetOptions(), 5, 1).battery is None
    options = FleetOptions.model_validate({"battery": {"capacity": "10..20 Wh", "charge_watts": "5 W"}})
    assert FleetOptions.model_validate(json.loads(options.model_dump_json())) == options
    one, other = (Fleet.draw(options, 5, 1).battery for _ in range(2))
    assert np.array_equal(one.capacity(np.arange(5)), other.capacity(np.arange(5)))
