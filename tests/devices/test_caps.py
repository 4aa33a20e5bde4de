"""Caps: the table of what was spent against sums by hand, day by day."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest

from edgefl.devices.caps import DAY, JOB, ROUND, Caps

HOUR = 3600.0
CAPS = Caps(
    {"bytes_per_day": np.array([100.0, inf]), "bytes_total": np.array([250.0, inf]), "energy_per_day": np.full(2, 9.0)},
    begins=22 * HOUR,
)
BOTH = np.array([0, 1])


def test_a_day_begins_at_midnight_of_the_fleets_clock() -> None:
    """Two rounds before midnight, which is 2 h after the beginning, one that ends after it, and one a day later."""
    spent, rounds = CAPS.nothing_spent(), [(0.5, 60, 4), (1.9, 30, 4), (2.1, 40, 5), (27.0, 100, 1)]
    by_hand: dict[int, tuple[float, float]] = {}
    for hours, moved, joules in rounds:
        at, day = hours * HOUR, int((22 + hours) // 24)
        took = {"bytes": np.array([moved]), "joules": np.array([joules])}
        CAPS.spend(spent, np.array([0]), took, np.array([at]))
        before = by_hand.get(day, (0, 0))
        by_hand[day] = before[0] + moved, before[1] + joules
        assert CAPS.remainder("bytes_per_day", BOTH, spent, at).tolist() == [100 - by_hand[day][0], inf]
        assert CAPS.remainder("energy_per_day", BOTH, spent, at).tolist() == [9 - by_hand[day][1], 9]
        # whatever was spent is back at midnight
        assert CAPS.remainder("bytes_per_day", BOTH, spent, CAPS.midnight(at)).tolist() == [100, inf]
    assert [CAPS.midnight(hours * HOUR) / HOUR for hours in (0.5, 1.9, 2.1, 27.0)] == [2, 2, 26, 50]
    assert CAPS.remainder("bytes_total", BOTH, spent).tolist() == [250 - 230, inf]


@pytest.mark.parametrize(("at", "moved", "ready"), [(1.0, 40, True), (1.0, 41, False), (3.0, 100, True)])
def test_a_round_must_fit_what_is_left_of_the_day(at: float, moved: float, ready: bool) -> None:
    spent, costs = CAPS.nothing_spent(), {"bytes": np.full(2, moved), "joules": np.ones(2)}
    CAPS.spend(spent, BOTH, {"bytes": np.full(2, 60.0), "joules": np.ones(2)}, np.zeros(2))
    assert CAPS.ready(spent, BOTH, costs, at * HOUR).tolist() == [ready, True]
    assert CAPS.ready(spent, BOTH, {**costs, "joules": np.full(2, 9.5)}, at * HOUR).tolist() == [False, False]


def test_a_round_is_judged_by_the_tightest() -> None:
    spent, granted = CAPS.nothing_spent(), np.array([120.0, 50.0])
    assert [each.tolist() for each in CAPS.tightest("bytes", granted, BOTH, spent)] == [[100, 50], [DAY, ROUND]]
    CAPS.spend(spent, BOTH, {"bytes": np.full(2, 200.0), "joules": np.ones(2)}, np.zeros(2))
    assert [each.tolist() for each in CAPS.tightest("bytes", granted, BOTH, spent)] == [[50, 50], [JOB, ROUND]]
    assert CAPS.rounds(0, {"bytes": 30.0, "joules": 2.0}) == {"bytes_per_day": 3, "bytes_total": 8, "energy_per_day": 4}
    assert CAPS.rounds(1, {"bytes": 30.0, "joules": 0.0}) == {}
