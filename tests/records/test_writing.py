"""Lines of records: strict JSON, and the fast way for many lines that can't leave the class."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from records_of_tests import TRIP, Cost, Measured, Step, Trip

from edgefl.records.reading import decode
from edgefl.records.record import to_data
from edgefl.records.writing import RecordTemplate, inner, line, texts


def test_a_line_is_strict_json_and_read_back_equal() -> None:
    written = line(TRIP)
    assert written.endswith(b"}\n") and written.count(b"\n") == 1
    assert decode(Trip, written, "line") == TRIP
    assert json.loads(written, parse_constant=pytest.fail) == TRIP.to_data()


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_null(number: float) -> None:
    assert json.loads(line(Step(name="a", seconds=number))) == {"name": "a", "seconds": None}


def test_large_numbers_and_numpys_are_written_exactly() -> None:
    assert to_data({"many": 2**80, "few": np.float64(0.1), "each": np.arange(3), "one": np.int64(5)}) == {
        "many": 2**80, "few": 0.1, "each": [0, 1, 2], "one": 5
    }  # fmt: skip
    with pytest.raises(TypeError, match="a record can't hold a value of type set"):
        line({"wrong": {1}} | {"wrong": object.__new__(type("set", (), {}))})


def test_columns_write_the_lines_of_the_records() -> None:
    # the slow way is the witness: json's text of each field
    records = [
        Trip(**{**{f: TRIP[f] for f in TRIP.to_data()}, "client": client, "eligible": client % 2 == 0})
        for client in range(5)
    ]
    own = ["round", "client", "eligible", "of_kind", "metrics", "steps"]
    columns = RecordTemplate(Trip, own, [Measured, Cost])
    found = columns.lines(
        {name: [json.dumps(record.to_data()[name]).encode() for record in records] for name in own},
        [inner(Measured(memory_error=None))] * 5,
        [inner(Cost(download_bytes=10, upload_bytes_by_part={"head": 4}))] * 5,
    )
    assert [decode(Trip, each, "line") for each in found] == records
    with pytest.raises(ValueError):
        columns.lines({name: [b"1"] for name in own}, [b""], [b"", b""])


def test_columns_are_exactly_the_fields_of_the_class() -> None:
    own = ["round", "client", "eligible", "of_kind", "metrics", "steps"]
    RecordTemplate(Trip, [*own, "part"], [Measured, Cost])  # only some records have it
    with pytest.raises(TypeError, match=r"Trip: nothing writes eligible"):
        RecordTemplate(Trip, [name for name in own if name != "eligible"], [Measured, Cost])
    with pytest.raises(TypeError, match=r"nothing writes memory_error"):
        RecordTemplate(Trip, own, [Cost])
    with pytest.raises(TypeError, match=r"Trip has no field 'rounds'; did you mean 'round'"):
        RecordTemplate(Trip, [*own, "rounds"], [Measured, Cost])
    with pytest.raises(TypeError, match=r"client would be written twice"):
        RecordTemplate(Trip, [*own, "client"], [Measured, Cost])


def test_numbers_of_a_column_are_json() -> None:
    numbers = np.array([1.0, np.nan, 1e300, 0.1])
    assert [json.loads(text) for text in texts(numbers)] == [1.0, None, 1e300, 0.1]
    assert texts(np.array([], dtype=np.int64)) == []
    assert texts(range(3)) == [b"0", b"1", b"2"]
