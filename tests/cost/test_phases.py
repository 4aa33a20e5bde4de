"""Phases of rounds: seconds, joules and bits by hand, and many rounds at once as each by itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.cost.phases import NUMBERS, Phases, carried_bits, joules_of, numbers_of
from edgefl.devices import Device, Link

DEVICE = Device(
    name="toy", title="Toy", ram_bytes=2**30, usable_memory_bytes=2**29, flops_per_second=1e9,
    peak_flops_per_second=2e9, memory_bytes_per_second=1e8, seconds_per_operator=1e-5, runtime_overhead_bytes=2**20,
    compute_watts=4.0, idle_watts=1.0, jitter=0.0,
)  # fmt: skip
LINK = Link("toy", "Toy", 8e6, 4e6, 0.05, 0.5, 0.8, 0.0)


def test_one_round_by_hand() -> None:
    hot = replace(DEVICE, throttle_after_seconds=2.0, throttled_share=0.5)
    numbers = np.array([numbers_of(1_000_000, 0, 3.0, hot, replace(LINK, loss=0.2))])
    assert numbers.shape == (1, len(NUMBERS))
    # 1 MB at 80 % of 8 Mbit/s after 50 ms; 2 s at the full rate and 1 s at half of it; nothing to send
    for throttling, busy in ((False, 3.0), (True, 4.0)):
        phases = Phases(numbers.T, throttling)
        assert sum(phases.seconds) == pytest.approx([0.05 + 1.25 + busy])
        assert phases.energy_joules == pytest.approx([1.3 * 1.5 + busy * 4])
    phases = Phases(numbers.T, True, np.array([[2.0], [3.0], [5.0]]), np.array([2.0]))
    assert [float(s[0]) for s in phases.seconds] == pytest.approx([2.6, 2 + (18 - 2) / 0.5, 0.0])


def test_a_gpu_that_waits_draws_its_idle_power_and_its_peak_stays() -> None:
    numbers = np.array([numbers_of(0, 1_000_000, 3.0, DEVICE, LINK, busy) for busy in (1.0, 0.25, 0.0)])
    up = 0.05 + 8e6 / 4e6
    phases, sending = Phases(numbers.T), up * 1.8
    assert phases.energy_joules == pytest.approx([3 * 4 + sending, 3 * (1 + 3 * 0.25) + sending, 3 + sending])
    assert phases.peak_watts.tolist() == [4.0] * 3


def test_without_a_link_only_computing_takes_time() -> None:
    phases = Phases(numbers_of(0, 0, 3.0, DEVICE, None))
    assert (phases.seconds, phases.energy_joules) == ((0.0, 3.0, 0.0), 12.0)
    assert [spent.shape for spent in Phases(np.empty((len(NUMBERS), 0)), throttling=True).seconds] == [(0,)] * 3


def test_a_cut_transfer_has_carried_what_fits_after_its_latency() -> None:
    spent = np.array([0.0, 0.5, 1.0, 1.5, 9.0])
    assert carried_bits(spent, np.full(5, 0.5), np.full(5, 8.0), np.full(5, 12.0)).tolist() == [0, 0, 4, 8, 12]
    assert float(carried_bits(1.0, 0.5, 8.0, 12.0)) == 4


AMOUNTS = st.tuples(
    st.integers(0, 10**10), st.integers(0, 10**10), st.floats(0, 1e6), st.floats(0.1, 1e3), st.floats(0.01, 1)
)


@given(st.lists(AMOUNTS, min_size=1, max_size=6), st.booleans())
def test_rounds_together_are_rounds_alone(rounds: list[Any], throttling: bool) -> None:
    devices = [replace(DEVICE, throttle_after_seconds=after, throttled_share=share) for *_, after, share in rounds]
    rows = [numbers_of(down, up, cool, d, LINK) for (down, up, cool, *_), d in zip(rounds, devices, strict=True)]
    phases = Phases(np.array(rows).T, throttling)
    seconds, spent = sum(phases.seconds), phases.energy_joules
    for index, (row, (down, up, cool, after, share)) in enumerate(zip(rows, rounds, strict=True)):
        alone = Phases(row, throttling)
        assert (seconds[index], spent[index]) == (sum(alone.seconds), alone.energy_joules)
        busy = cool if not throttling or cool <= after else after + (cool - after) / share
        ways = [0.05 + 8 * moved / rate if moved else 0.0 for moved, rate in ((down, 8e6), (up, 4e6))]
        assert seconds[index] == pytest.approx(ways[0] + busy + ways[1])
        assert spent[index] == pytest.approx(ways[0] * 1.5 + busy * 4 + ways[1] * 1.8)


def test_joules_by_phase() -> None:
    one = (np.array([1.0]), np.array([2.0]), np.array([3.0]))
    assert [phase.tolist() for phase in joules_of(one, (np.array([5.0]), np.array([7.0]), np.array([11.0])))] == [
        [5.0], [14.0], [33.0]
    ]  # fmt: skip
