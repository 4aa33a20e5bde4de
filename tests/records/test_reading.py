"""Files of strangers: what is wrong is told in one line with file, line and field."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from records_of_tests import TRIP, Shown, Step, Trip

from edgefl.errors import EdgeflError, RunError
from edgefl.records.reading import decode, each


def test_a_record_is_read_as_it_was_written_and_unknown_fields_are_ignored() -> None:
    text = json.dumps({**TRIP.to_data(), "of_a_later_version": [1]}).encode()
    assert decode(Trip, text, "file") == TRIP
    assert decode(Shown, text, "file") == Shown(client=7)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"client": "7"}, "trips.jsonl:1: field 'client': expected `int`, got `str`"),
        ({"client": True}, "trips.jsonl:1: field 'client': expected `int`, got `bool`"),
        ({"client": None}, "trips.jsonl:1: field 'client': expected `int`, got `null`"),
        ({"eligible": 1}, "trips.jsonl:1: field 'eligible': expected `bool`, got `int`"),
        ({"steps": [{"name": "a", "seconds": 1}, {"name": "b"}]}, "trips.jsonl:1: field 'steps[1].seconds' is missing"),
        ({"metrics": {"image": [0.5]}}, "trips.jsonl:1: field 'metrics[...]': expected `object`, got `array`"),
        ({"part": None}, "trips.jsonl:1: field 'part': expected `str`, got `null`"),
    ],
)
def test_a_wrong_field_is_told_with_its_path(change: dict[str, object], said: str, tmp_path: Path) -> None:
    table = tmp_path / "trips.jsonl"
    table.write_text(json.dumps({**TRIP.to_data(), **change}) + "\n")
    with pytest.raises(RunError) as error:
        list(each(table, Trip))
    assert str(error.value) == f"{tmp_path}/{said}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b'{"name": "a"', 'it isn\'t JSON: b\'{"name": "a"\''),
        (b'{"name": "\xff", "seconds": 1}', "it isn't JSON"),
        (b"[1]", "expected `object`, got `array`"),
        (b'{"seconds": 1}', "field 'name' is missing"),
        (b'{"name": "a", "seconds": 1e999}', "field 'seconds': number out of range"),
        (b'{"deep": ' + b"[" * 100_000, "it is nested too deeply"),
        (b"", "it isn't JSON"),
    ],
)
def test_any_text_is_a_record_or_refused_in_a_line(text: bytes, said: str) -> None:
    class Refused(EdgeflError):
        """What this caller raises."""

    with pytest.raises(Refused) as error:
        decode(Step, text, "folder/file.json", Refused)
    told = str(error.value)
    assert told.startswith(f"folder/file.json: {said}") and "\n" not in told and len(told) < 200


def test_a_last_line_that_is_being_written_is_ignored_and_no_other(tmp_path: Path) -> None:
    good = json.dumps({"name": "a", "seconds": 1}).encode() + b"\n"
    table = tmp_path / "table.jsonl"
    assert list(each(table, Step)) == []
    for end in (b'{"name": "b", "sec', b"\0\0\0\n", good[:-1]):
        table.write_bytes(good + end)
        assert [step.name for step in each(table, Step)] == ["a"]
    table.write_bytes(good + b"\0\0\0\n" + good)
    with pytest.raises(RunError, match=r"table.jsonl:2: this line is damaged"):
        list(each(table, Step))
    table.write_bytes(good + b"{}\n")  # whole, so somebody changed it
    with pytest.raises(RunError, match=r"table.jsonl:2: field 'name' is missing"):
        list(each(table, Step))
