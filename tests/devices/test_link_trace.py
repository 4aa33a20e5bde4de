"""Traces of links: integrals against a hand's loop over spans in fractions, and files that are refused."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import cos, inf, pi
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgefl.devices import library_folder, load_link
from edgefl.devices.link_trace import LinkTrace, read_link_trace
from edgefl.errors import DeviceError

OWN = (13e6, 6e6)
Rows = Sequence[tuple[float, float, float]]
"""(start, download, upload) of one device."""


def trace_of(folder: Path, records: Sequence[Rows], period: float | None) -> LinkTrace:
    lines = [f"{n},{start!r},{down!r},{up!r}" for n, rows in enumerate(records) for start, down, up in rows]
    (path := folder / "rates.csv").write_text("device,start,download,upload\n" + "\n".join(lines) + "\n")
    return read_link_trace(path, period, OWN)


def bits_by_hand(rows: Rows, period: float | None, way: int, since: Fraction, until: Fraction) -> Fraction:
    """The integral of the rate, span by span and period by period, in fractions."""
    total, length = Fraction(0), Fraction(period or 0)
    for lap in range(int(until // length) + 1) if period else (0,):
        for place, row in enumerate(rows):
            end = rows[place + 1][0] if place + 1 < len(rows) else period
            first = max(lap * length + Fraction(row[0]), since)
            last = until if end is None else min(lap * length + Fraction(end), until)
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
    st.lists(record(), min_size=1, max_size=3), st.sampled_from([None, 86_400.0]), st.integers(0, 1),
    st.lists(st.tuples(st.integers(0, 9), st.floats(0, 3e5), st.floats(1, 1e12)), min_size=1, max_size=5),
)  # fmt: skip
def test_a_transfer_ends_when_the_integral_of_the_rate_is_all_its_bits(
    tmp_path_factory: pytest.TempPathFactory, records: list[Rows], period: float | None, way: int, transfers: list
) -> None:
    trace = trace_of(tmp_path_factory.mktemp("trace"), records, period)
    clients, at, bits = (np.array(column) for column in zip(*transfers))
    taken = trace.seconds(way, clients, at, bits / OWN[way])
    for client, began, wanted, seconds in zip(clients.tolist(), at.tolist(), bits.tolist(), taken.tolist()):
        if wanted > 1e11 and period:  # thousands of laps are slow by hand
            continue
        rows, end = records[client % len(records)], Fraction(began) + Fraction(seconds)
        found = bits_by_hand(rows, period, way, Fraction(began), end)
        # the clock's own resolution at that time is worth some bits
        rate = max(row[1 + way] for row in rows)
        assert abs(found - Fraction(wanted)) <= 1e-12 * (wanted + rate * (float(end) % (period or inf) + seconds))
    half = trace.integral(way, clients, at, taken / 2)
    for client, began, seconds, carried in zip(clients.tolist(), at.tolist(), taken.tolist(), half.tolist()):
        rows, until = records[client % len(records)], Fraction(began) + Fraction(seconds / 2)
        if period and until > 3e6:
            continue
        found = bits_by_hand(rows, period, way, Fraction(began), until) / Fraction(OWN[way])
        assert carried == pytest.approx(float(found), rel=1e-12, abs=1e-12 * float(until))


def test_an_afternoon_by_hand(tmp_path: Path) -> None:
    """10 Mbit/s until 100 s, 2 Mbit/s until 200 s, nothing until 300 s, then 5 Mbit/s: 1 Gbit from 50 s on."""
    trace = trace_of(tmp_path, [[(0.0, 10e6, 1e6), (100.0, 2e6, 1e6), (200.0, 0.0, 0.0), (300.0, 5e6, 1e6)]], None)
    one = np.array([0])
    # 500 Mbit by 100 s, 700 Mbit by 200 s, the other 300 Mbit from 300 to 360 s
    assert trace.seconds(0, one, np.array([50.0]), np.array([1e9 / OWN[0]])) == pytest.approx([310.0], rel=1e-12)
    # a transfer within one span is a division
    assert trace.seconds(0, one, np.array([10.0]), np.array([3e6 / OWN[0]])) == pytest.approx([0.3], rel=1e-15)
    # what ends with a span doesn't wait for the next rate
    assert trace.seconds(0, one, np.array([50.0]), np.array([700e6 / OWN[0]])) == pytest.approx([150.0], rel=1e-12)
    assert trace.seconds(1, one, np.array([50.0]), np.array([0.0])) == [0.0]
    assert trace.online is not None
    assert trace.online.end(one, np.array([50.0])) == [200.0] and trace.online.next(one, np.array([250.0])) == [300.0]


def test_a_trace_that_ends_at_zero_carries_no_more(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, [[(0.0, 1e6, 1e6), (10.0, 0.0, 1e6)]], None)
    one = np.array([0])
    assert trace.seconds(0, one, np.array([0.0]), np.array([10e6 / OWN[0]])) == pytest.approx([10.0], rel=1e-15)
    assert trace.seconds(0, one, np.array([0.0]), np.array([11e6 / OWN[0]])) == [inf]
    assert trace.integral(0, one, np.array([0.0]), np.array([1e6])) * OWN[0] == pytest.approx([10e6], rel=1e-12)
    assert trace.online is not None and trace.online.next(one, np.array([10.0])) == [inf]


def test_the_shipped_trace_follows_its_formula() -> None:
    link = load_link("lte-daily")
    lines = (library_folder() / "networks" / "lte-daily.csv").read_text().splitlines()[1:]
    for hour, line in enumerate(lines):
        share = 1 + 0.5 * cos(2 * pi * (hour - 5) / 24)
        assert line == f"cell,{3600 * hour},{round(13e6 * share)},{round(6e6 * share)}"
    assert len(lines) == 24 and link.trace is not None and link.trace.period == 86_400
    # over whole days it is the profile's own rate
    days = link.trace.seconds(0, np.array([7]), np.array([12_345.0]), np.array([3 * 86_400.0]))
    assert days == pytest.approx([3 * 86_400.0], rel=1e-7)


HEAD = "device,start,download,upload\n"


@pytest.mark.parametrize(
    ("text", "period", "said"),
    [
        ("device,start,download\na,0,1\n", None, r"rates.csv:1: 'upload' is missing, there are 'device', 'start'"),
        (HEAD, None, "this trace is empty; a link's trace has a row for each time at which its rates change"),
        (HEAD + "a,0,-1,1\n", None, "rates.csv:2: download: '-1' is not a rate of bits per second; it must be finite"),
        (HEAD + "a,0,5 furlongs,1\n", None, "rates.csv:2: download: '5 furlongs': unknown unit"),
        (HEAD + "a,0,1,1\na,0,2,2\n", None, "rates.csv:3: the rows of device a aren't sorted: this one starts at 0 s"),
        (HEAD + "a,0,1,1\na,86400,1,1\n", 86_400.0, "rates.csv:3: the rates begin at 86400 s, after the period of"),
        (HEAD + "a,1700000000,1,1\n", None, "after the year 2001; subtract the time at which the run begins"),
        (HEAD + "a,0,1,1\nb,0,1,0\nb,9,0,1\n", None, "device b never has a rate above 0 down and up at a time"),
    ],
)  # fmt: skip
def test_a_wrong_trace_is_refused_with_its_line(tmp_path: Path, text: str, period: float | None, said: str) -> None:
    (path := tmp_path / "rates.csv").write_text(text)
    with pytest.raises(DeviceError, match=said) as caught:
        read_link_trace(path, period, OWN)
    assert len(str(caught.value).splitlines()) == 1


def test_rates_have_units_and_lines_may_be_json(tmp_path: Path) -> None:
    (csv := tmp_path / "rates.csv").write_text(HEAD + "a,1 h,13 Mbit/s,6 Mbit/s\n")
    (lines := tmp_path / "rates.jsonl").write_text('{"client": "a", "start": 3600, "download": 13e6, "upload": 6e6}\n')
    one, other = read_link_trace(csv, None, OWN), read_link_trace(lines, None, OWN)
    # before its first row a device is offline
    assert one == other and one.rates.tolist() == [[0.0, 1.0], [0.0, 1.0]] and one.spans.starts.tolist() == [0, 3600]
    assert one != read_link_trace(csv, 86_400.0, OWN)
