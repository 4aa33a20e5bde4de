"""Traces of links: integrals against a hand's loop over spans in fractions, and files that are refused."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import cos, inf, pi
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgefl.devices import library_folder, load_link
from edgefl.devices.link_trace import LinkTrace, read_link_trace
from edgefl.errors import DeviceError

OWN = (13e6, 6e6)
Rows = Sequence[tuple[float, float, float]]
"""(start, download, upload)."""
HEAD = "start,download,upload\n"


def trace_of(folder: Path, rows: Rows, period: float = inf) -> LinkTrace:
    lines = [f"{start!r},{down!r},{up!r}" for start, down, up in rows]
    (path := folder / "rates.csv").write_text(HEAD + "\n".join(lines) + "\n")
    return read_link_trace(path, period, OWN)


def bits_by_hand(rows: Rows, period: float, way: int, since: Fraction, until: Fraction) -> Fraction:
    """The integral of the rate, span by span and period by period, in fractions."""
    total, length = Fraction(0), Fraction(period if period < inf else 0)
    for lap in range(int(until // length) + 1) if length else (0,):
        for place, row in enumerate(rows):
            end = rows[place + 1][0] if place + 1 < len(rows) else period
            first = max(lap * length + Fraction(row[0]), since)
            last = until if end == inf else min(lap * length + Fraction(end), until)
            total += max(last - first, Fraction(0)) * Fraction(row[1 + way])
    return total


rates = st.sampled_from([0.0, 1e3, 6e6]) | st.floats(1e3, 1e8)
times = st.lists(st.integers(1, 86_399), max_size=6, unique=True).map(lambda some: [0.0, *map(float, sorted(some))])


@st.composite
def record(draw: st.DrawFn) -> list[tuple[float, float, float]]:
    rows = [(start, draw(rates), draw(rates)) for start in draw(times)]
    return [*rows[:-1], (rows[-1][0], draw(st.floats(1e3, 1e8)), draw(st.floats(1e3, 1e8)))]


@settings(max_examples=60, deadline=None)
@given(
    record(), st.sampled_from([inf, 86_400.0]), st.integers(0, 1),
    st.lists(st.tuples(st.floats(0, 3e5), st.floats(1, 1e12)), min_size=1, max_size=5),
)  # fmt: skip
def test_a_transfer_ends_when_the_integral_of_the_rate_is_all_its_bits(
    tmp_path_factory: pytest.TempPathFactory, rows: Rows, period: float, way: int, transfers: Any
) -> None:
    trace = trace_of(tmp_path_factory.mktemp("trace"), rows, period)
    at, bits = (np.array(column) for column in zip(*transfers))
    taken = trace.seconds(way, at, bits / OWN[way])
    half = trace.integral(way, at, taken / 2)
    rate = max(row[1 + way] for row in rows)
    for began, wanted, seconds, carried in zip(at.tolist(), bits.tolist(), taken.tolist(), half.tolist()):
        end, until = Fraction(began) + Fraction(seconds), Fraction(began) + Fraction(seconds / 2)
        if end > 3e6 and period < inf:  # hundreds of days are slow by hand
            continue
        found = bits_by_hand(rows, period, way, Fraction(began), end)
        # the clock's own resolution at that time is worth some bits
        assert abs(found - Fraction(wanted)) <= 1e-12 * (wanted + rate * float(end))
        found = bits_by_hand(rows, period, way, Fraction(began), until) / Fraction(OWN[way])
        assert carried == pytest.approx(float(found), rel=1e-12, abs=1e-12 * rate / OWN[way] * float(until))


def test_an_afternoon_by_hand(tmp_path: Path) -> None:
    """10 Mbit/s until 100 s, 2 Mbit/s until 200 s, nothing until 300 s, then 5 Mbit/s: 1 Gbit from 50 s on."""
    trace = trace_of(tmp_path, [(0.0, 10e6, 1e6), (100.0, 2e6, 1e6), (200.0, 0.0, 0.0), (300.0, 5e6, 1e6)])
    # 500 Mbit by 100 s, 700 Mbit by 200 s, the other 300 Mbit from 300 to 360 s
    assert trace.seconds(0, np.array([50.0]), np.array([1e9 / OWN[0]])) == pytest.approx([310.0], rel=1e-12)
    # a transfer within one span is a division
    assert trace.seconds(0, np.array([10.0]), np.array([3e6 / OWN[0]])) == pytest.approx([0.3], rel=1e-15)
    # what ends with a span doesn't wait for the next rate
    assert trace.seconds(0, np.array([50.0]), np.array([700e6 / OWN[0]])) == pytest.approx([150.0], rel=1e-12)
    assert trace.seconds(1, np.array([50.0]), np.array([0.0])) == [0.0]
    on, until = trace.state(np.array([50.0, 200.0, 250.0, 300.0]))
    assert on.tolist() == [True, False, False, True] and until.tolist() == [200, 300, 300, inf]


def test_a_trace_that_ends_at_zero_carries_no_more(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, [(0.0, 1e6, 1e6), (10.0, 0.0, 1e6)])
    assert trace.seconds(0, np.array([0.0]), np.array([10e6 / OWN[0]])) == pytest.approx([10.0], rel=1e-15)
    assert trace.seconds(0, np.array([0.0]), np.array([11e6 / OWN[0]])) == [inf]
    assert trace.integral(0, np.array([0.0]), np.array([1e6])) * OWN[0] == pytest.approx([10e6], rel=1e-12)
    on, until = trace.state(np.array([9.0, 10.0]))
    assert on.tolist() == [True, False] and until.tolist() == [10, inf]


def test_a_link_is_online_while_both_rates_are_above_zero(tmp_path: Path) -> None:
    rows = [(0.0, 1.0, 1.0), (5.0, 0.0, 1.0), (7.0, 2.0, 0.0), (8.0, 2.0, 2.0)]
    trace, at = trace_of(tmp_path, rows, 10.0), np.arange(0, 45, 0.5)
    on, until = trace.state(at)
    steady = trace_of(tmp_path, rows[:1], 10.0)
    assert trace.may_be_offline and not steady.may_be_offline
    assert steady.state(at)[0].all() and set(steady.state(at)[1]) == {inf}
    for time, there, end in zip(at.tolist(), on.tolist(), until.tolist()):
        lap, rest = divmod(time, 10)
        assert there == (rest < 5 or rest >= 8)
        assert end == 10 * lap + (5 if rest < 5 else 8 if rest < 8 else 15)


def test_the_shipped_trace_follows_its_formula() -> None:
    link = load_link("lte-daily")
    lines = (library_folder() / "networks" / "lte-daily.csv").read_text().splitlines()[1:]
    for hour, line in enumerate(lines):
        share = 1 + 0.5 * cos(2 * pi * (hour - 5) / 24)
        assert line == f"{3600 * hour},{round(13e6 * share)},{round(6e6 * share)}"
    assert len(lines) == 24 and link.trace is not None and link.trace.period == 86_400
    # over whole days it is the profile's own rate
    days = link.trace.seconds(0, np.array([12_345.0]), np.array([3 * 86_400.0]))
    assert days == pytest.approx([3 * 86_400.0], rel=1e-7)


@pytest.mark.parametrize(
    ("text", "period", "said"),
    [
        ("start,download\n0,1\n", inf, r"rates.csv:1: 'upload' is missing, there are 'start', 'download'"),
        (HEAD, inf, "at no time are both rates above 0; a link's trace has a row for each time at which its rates"),
        (HEAD + "0,-1,1\n", inf, "rates.csv:2: download: '-1' is not a rate of bits per second; it must be finite"),
        (HEAD + "0,5 furlongs,1\n", inf, "rates.csv:2: download: '5 furlongs': unknown unit"),
        (HEAD + "0,1,1\n0,2,2\n", inf, "rates.csv:3: the rows aren't sorted by start: 0 s, 0 s before"),
        (HEAD + "0,1,1\n86400,1,1\n", 86_400.0, "rates.csv:3: the rates start at 86400 s, after the period of"),
        (HEAD + "1700000000,1,1\n", inf, "rates.csv:2: the rates start at 1.7e\\+09 s, after 32 years; subtract"),
        (HEAD + "0,1,0\n9,0,1\n", inf, "rates.csv: at no time are both rates above 0"),
    ],
)  # fmt: skip
def test_a_wrong_trace_is_refused_with_its_line(tmp_path: Path, text: str, period: float, said: str) -> None:
    (path := tmp_path / "rates.csv").write_text(text)
    with pytest.raises(DeviceError, match=said) as caught:
        read_link_trace(path, period, OWN)
    assert len(str(caught.value).splitlines()) == 1


def test_rates_have_units_and_lines_may_be_json(tmp_path: Path) -> None:
    (csv := tmp_path / "rates.csv").write_text(HEAD + "1 h,13 Mbit/s,6 Mbit/s\n")
    (lines := tmp_path / "rates.jsonl").write_text('{"start": 3600, "download": 13e6, "upload": 6e6}\n')
    one, other = read_link_trace(csv, inf, OWN), read_link_trace(lines, inf, OWN)
    # before its first row a link is offline
    assert one == other and one.rates.tolist() == [[0.0, 1.0], [0.0, 1.0]] and one.starts.tolist() == [0, 3600]
    assert one != read_link_trace(csv, 86_400.0, OWN)
