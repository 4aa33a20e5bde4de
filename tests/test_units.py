"""Quantities with units: known values, round trips and what a person is told."""

from __future__ import annotations

import json
from math import inf, isclose, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from edgefl import units
from edgefl.drawing.charts.chart import ChartAxis
from edgefl.drawing.text_tables import field_formatter, scale_of
from edgefl.errors import UnitError


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (units.BYTES.parse, "48 MiB", 48 * 2**20),
        (units.BYTES.parse, "20 MB", 20_000_000),
        (units.BYTES.parse, "1.5KiB", 1536),
        (units.FLOPS.parse, "1e3", 1000),
        (units.BYTES.parse, "9007199254740993", 2**53 + 1),
        (units.BYTES.parse, 12_000_000, 12_000_000),
        (units.FLOPS.parse, "2 TFLOP", 2e12),
        (units.RATE.parse, "236 GFLOP/s", 236e9),
        (units.BITS_PER_SECOND.parse, "20 Mbit/s", 20e6),
        (units.BITS_PER_SECOND.parse, "2.5 MB/s", 20e6),
        (units.BITS_PER_SECOND.parse, "1 MiB/s", 8 * 2**20),
        (units.BYTES_PER_SECOND.parse, "25.6 GB/s", 25.6e9),
        (units.SECONDS.parse, "10 min", 600),
        (units.SECONDS.parse, "2 ms", 0.002),
        (units.SECONDS.parse, "1.5 h", 5400),
        (units.JOULES.parse, "2 kJ", 2000),
        (units.JOULES.parse, "1.5 Wh", 5400),
        (units.WATTS.parse, "500 mW", 0.5),
        (units.SHARE.parse, "40%", 0.4),
        (units.SHARE.parse, 0.4, 0.4),
        (units.SHARE.parse, "33.3 %", 0.333),
    ],
)
def test_known_values(read, text, value):
    assert read(text) == value


WRONG = ["12 parsecs", "", "MiB", "1 2 MB", "-3 MB", -1, nan, inf, True, None, [1], "1e400", "9" * 5000]


@pytest.mark.parametrize("value", WRONG, ids=lambda value: str(value)[:12])
def test_refuses(value):
    with pytest.raises(UnitError):
        units.BYTES.parse(value)


@pytest.mark.parametrize(
    ("value", "said"), [("12 mb", "'MB'"), ("12 MIB", "'MiB'"), ("12 GBs", "'GB'"), ("12 bytess", "'bytes'")]
)
def test_names_the_nearest_unit(value, said):
    with pytest.raises(UnitError, match=f"did you mean {said}"):
        units.BYTES.parse(value)


def test_a_share_is_at_most_the_whole():
    assert units.SHARE.parse("100%") == 1
    with pytest.raises(UnitError, match="120%"):
        units.SHARE.parse("120%")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("12..48 MiB", (12 * 2**20, 48 * 2**20)),
        ("800 kB..1 MB", (800_000, 1_000_000)),
        ("0.5 .. 1.5 KiB", (512, 1536)),
        ("48 MiB", (48 * 2**20,) * 2),
        (["1 kB", 2000000], (1000, 2000000)),
        ("12..48 B", (12, 48)),
    ],
)
def test_ranges(value, expected):
    assert units.BYTES.parse_range(value) == expected


@pytest.mark.parametrize("value", ["48..12 MiB", "..12 MB", "12..", "1..2..3 MB", [1], [1, 2, 3], [2, 1], ".."])
def test_refuses_ranges(value):
    with pytest.raises(UnitError):
        units.BYTES.parse_range(value)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("12-48 MiB", "'12-48 MiB' is not a number of bytes; a range is written '12..48 MiB'"),
        ("12 MiB to 1 GiB", "a range is written '12 MiB..1 GiB'"),
        ("12 MiB..48", "the upper end has no unit; did you mean '12 MiB..48 MiB'?"),
        ("1e-3 foo", "unknown unit 'foo'"),
    ],
)
def test_what_is_meant_as_a_range_is_told_how_to_write_it(value, said):
    with pytest.raises(UnitError) as refused:
        units.BYTES.parse_range(value)
    assert said in str(refused.value)


def test_a_range_in_place_of_one_value_is_told_as_such():
    with pytest.raises(UnitError, match=r"'5..10 min' is a range, and one number of seconds is needed"):
        units.SECONDS.parse("5..10 min")


@given(st.one_of(st.integers(0, 2**63 - 1), st.integers(0, 2**21)))
def test_bytes_are_exact(count):
    assert units.BYTES.parse(f"{count} B") == units.BYTES.parse(units.BYTES.write(count)) == count
    if 0 < count < 2**20:
        for bare in (count, str(count), f"{count}..2000000", [count, 2000000], f" {count:_} "):
            with pytest.raises(UnitError, match=r"has no unit: write [\d_. ]+ B or [\d_. ]+ MiB"):
                units.BYTES.parse_range(bare)
    else:
        assert units.BYTES.parse(str(count)) == units.BYTES.parse(count) == count


@given(st.floats(1e-9, 1e15), st.sampled_from(sorted(units.RATE.factors)))
def test_a_unit_is_a_factor(number, unit):
    assert isclose(units.RATE.parse(f"{number!r} {unit}"), number * float(units.RATE.factors[unit]), rel_tol=1e-12)


@pytest.mark.parametrize(
    ("show", "read"),
    [
        (units.show_bytes, units.BYTES.parse),
        (units.show_flops, units.FLOPS.parse),
        (units.show_rate, units.RATE.parse),
        (units.show_bits_per_second, units.BITS_PER_SECOND.parse),
        (units.show_bytes_per_second, units.BYTES_PER_SECOND.parse),
        (units.show_seconds, units.SECONDS.parse),
        (units.show_joules, units.JOULES.parse),
        (units.show_watts, units.WATTS.parse),
        (units.show_share, units.SHARE.parse),
    ],
)
def test_what_is_shown_can_be_read_back(show, read):
    @given(st.floats(0, 1) if read == units.SHARE.parse else st.floats(1, 1e15))
    def round_trip(value):
        tolerance = 0.5 if show is units.show_bytes else 1e-9  # a byte is whole
        assert isclose(read(show(value)), value, rel_tol=0.006, abs_tol=tolerance)

    round_trip()


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (units.show_bytes(12.3 * 2**20), "12.3 MiB"),
        (units.show_bytes(2**20 - 1), "1 MiB"),
        (units.show_bytes(0), "0 B"),
        (units.show_bytes(inf), "unlimited"),
        (units.show_bytes(-2048), "-2 KiB"),
        (units.show_flops(1.24e12), "1.24 TFLOP"),
        (units.show_rate(236e9), "236 GFLOP/s"),
        (units.show_rate(999.96e9), "1 TFLOP/s"),
        (units.show_seconds(0.0042), "4.2 ms"),
        (units.show_seconds(83.5), "83.5 s"),
        (units.show_seconds(726), "12.1 min"),
        (units.show_seconds(12240), "3.4 h"),
        (units.show_seconds(216000), "2.5 d"),
        (units.show_joules(1200), "1.2 kJ"),
        (units.show_share(0.4), "40 %"),
    ],
)
def test_shown_for_people(shown, text):
    assert shown == text


class Plan(BaseModel):
    energy: units.JoulesRange
    pause: units.Seconds = 0.0


def test_field_types_read_units_and_round_trip():
    plan = Plan(energy="12..48 kJ", pause="10 min")
    assert plan.energy == (12_000, 48_000)
    assert plan.pause == 600
    assert Plan.model_validate(json.loads(plan.model_dump_json())) == plan


def test_field_errors_name_the_field():
    with pytest.raises(ValidationError) as caught:
        Plan(energy="12 parsecs")
    (error,) = caught.value.errors()
    assert error["loc"] == ("energy",)
    assert "parsecs" in error["msg"]


def test_field_types_have_a_schema():
    schema = Plan.model_json_schema()["properties"]["energy"]
    assert {"type": "string"} in schema["anyOf"]
    assert schema["examples"] == ["2 kJ"]


amounts = st.one_of(st.integers(0, 2**50), st.integers(0, 2**20).map(lambda n: n * 2**20), st.floats(1e-6, 1e15))


@given(
    st.sampled_from([units.BYTES, units.FLOPS, units.SECONDS, units.JOULES, units.BITS_PER_SECOND]), amounts, amounts
)
def test_what_is_written_is_read_as_the_same_amount(quantity: units.Quantity, first: float, second: float) -> None:
    low, high = sorted(round(each) if quantity.whole else float(each) for each in (first, second))
    assert quantity.parse(quantity.write(low)) == low
    assert quantity.parse_range(quantity.write(low, high)) == (low, high)


@pytest.mark.parametrize(
    ("quantity", "value", "text"),
    [
        (units.BYTES, [3 * 2**20, 3 * 2**20], "3 MiB"),
        (units.BYTES, [12 * 2**20, 48 * 2**20], "12..48 MiB"),
        (units.BYTES, [800 * 10**6, 10**9], "0.8..1 GB"),
        (units.BYTES, 3 * 2**20 + 1, "3145729 B"),
        (units.BYTES, {"6291456": 0.7, "unlimited": 0.3}, "{6 MiB: 70%, unlimited: 30%}"),
        (units.BYTES, "40% of device", "40% of device"),
        (units.BYTES, None, "unlimited"),
        (units.SECONDS, 600.0, "10 min"),
        (units.SECONDS, 90.0, "90 s"),
        (units.SHARE, 0.5, "50%"),
        (units.SHARE, 3, "3"),  # a count
        (units.SHARE, {"jetson": 0.25, "macbook": 0.75}, "{jetson: 25%, macbook: 75%}"),
        (units.BITS_PER_SECOND, 2e7, "20 Mbit/s"),
    ],
)
def test_a_setting_is_written_as_users_write_it(quantity: units.Quantity, value: object, text: str) -> None:
    assert units.setting_text(value, quantity) == text


WORDS = ("bytes", "flops", "seconds", "joules", "share")
MANTISSAS = (1, 1.0049, 1.28, 2.5, 5, 7.2, 9.9951, 9.996)
AMOUNTS = [mantissa * 10.0**power for power in range(-6, 19) for mantissa in MANTISSAS]
AMOUNTS += [0.0, 59.0, 119.0, 119.96, 7199.0, 7200.0, 172799.0, 172800.0, 1023.6, 128.5 * 1024, 2.0**60]
"""What all that prints amounts is asked to print, the page's script too (``tests/drawing/test_explore_page.py``)."""


@pytest.mark.parametrize("word", WORDS)
def test_tables_columns_and_figures_read_one_table_of_units(word):
    for amount in AMOUNTS:
        text = units.NAMED[word].show(amount)
        assert field_formatter(f"all_{word}")(amount) == text
        number, _, unit = text.partition(" ")
        factor, title = ChartAxis("", word).scale([amount])
        column_factor, column_unit, decimals = scale_of(f"all_{word}", amount)
        assert (title, column_unit, column_factor) == (unit, unit, factor), amount
        for shown in (f"{amount / factor:.3g}", f"{amount / column_factor:.{decimals}f}"):
            assert float(shown) == pytest.approx(float(number), rel=0.0051, abs=0.0051), amount


def test_five_terajoules_are_never_five_thousand_gigajoules():
    assert units.show_joules(5e12) == "5 TJ"
    assert scale_of("energy_joules", 5e12) == (1e12, "TJ", 2)
    assert ChartAxis("energy", "joules").scale([5e12]) == (1e12, "energy, TJ")
