"""Records: their rows on a page, parts for readers, and answers as JSON data."""

from __future__ import annotations

import dataclasses
import importlib
import json
import pkgutil
from typing import Any

import pytest
from records_of_tests import TRIP, Cost, Shown, Step, Trip

import edgefl.records
from edgefl.errors import RunError
from edgefl.records.clients import FlightRecord
from edgefl.records.reading import decode, schema
from edgefl.records.record import UNSET, FieldRow, Maybe, Record, fields_of, part_of
from edgefl.records.rounds import Round


def test_rows_have_the_path_type_unit_and_meaning_of_each_field() -> None:
    rows = {row.name: row for row in fields_of(Trip)}
    assert rows["download_bytes"] == FieldRow(
        "download_bytes", "integer", "bytes", "Tensors sent down, for the whole work", nullable=False, always=True
    )
    assert rows["upload_bytes_by_part.PART"][1:3] == ("integer", "bytes")
    assert rows["memory_error"] == FieldRow(
        "memory_error", "number", "share", "Null where nothing was measured", True, True
    )
    assert rows["part"] == FieldRow("part", "string", "", "Only in some runs", nullable=False, always=False)
    assert rows["of_kind.KIND"][1:3] == ("integer", "clients")
    assert rows["metrics.KIND.METRIC"] == FieldRow("metrics.KIND.METRIC", "number", "share", "Scores", True, True)
    assert rows["steps[].seconds"][1:4] == ("number", "s", "Its time")
    assert rows["eligible"][1:3] == ("boolean", "")
    assert rows["best.seconds"].always is False
    assert len(rows) == 13


def test_every_field_of_every_record_has_a_meaning() -> None:
    names = {module.name for module in pkgutil.iter_modules(edgefl.records.__path__)}
    known = [
        cls
        for name in names
        for cls in vars(importlib.import_module(f"edgefl.records.{name}")).values()
        if isinstance(cls, type) and issubclass(cls, Record) and cls is not Record
    ]
    assert {Round, FlightRecord} <= set(known) and len(set(known)) > 50
    for cls in known:
        assert all(row.meaning and row.type for row in fields_of(cls))


def test_a_field_without_a_meaning_is_refused() -> None:
    class Silent(Record):
        number: int

    with pytest.raises(TypeError, match=r"number has no meaning"):
        fields_of(Silent)


def test_a_record_is_frozen_and_takes_no_positions() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        TRIP.client = 8  # type: ignore[misc]
    with pytest.raises(TypeError):
        Step("a", 1.5)  # type: ignore[misc]


def test_an_answer_is_plain_data_without_what_is_unset() -> None:
    answer = Step(name="a", seconds=float("inf"))
    assert answer.to_data() == {"name": "a", "seconds": None}
    assert TRIP.to_data()["steps"] == [{"name": "a", "seconds": 1.5}]
    assert not {"part", "best"} & set(TRIP.to_data())


def test_an_answer_is_read_as_a_dictionary_was() -> None:
    assert TRIP["client"] == 7 and TRIP["steps"][0]["seconds"] == 1.5
    for missing in ("part", "nothing", "to_data"):
        with pytest.raises(KeyError, match=missing):
            TRIP[missing]


def test_a_part_has_fields_of_the_whole_with_their_types() -> None:
    with pytest.raises(TypeError, match=r"Trip has no field 'clients'; did you mean 'client'"):

        @part_of(Trip)
        class Wrong(Record):
            clients: int

    for wrong in (str, float | None, int | Maybe):
        with pytest.raises(TypeError, match=r"client is .*, but Trip's is <class 'int'>"):
            part_of(Trip)(_one_field(wrong))
    # a reader that takes a field for granted, which only some records have
    with pytest.raises(TypeError, match="part is <class 'str'>"):
        part_of(Trip)(_one_field(str, "part"))
    assert Shown(client=1).part is UNSET


def _one_field(kind: Any, name: str = "client") -> type[Record]:
    return type("Read", (Record,), {"__annotations__": {name: kind}})


def test_the_schema_says_what_the_class_says() -> None:
    import jsonschema

    found = schema(Trip)
    jsonschema.Draft202012Validator.check_schema(found)
    jsonschema.validate(TRIP.to_data(), found)
    for name, value in (("client", "7"), ("steps", [{"name": "a"}]), ("metrics", {"image": {"accuracy": "high"}})):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**TRIP.to_data(), name: value}, found)
    properties = found["$defs"]["Trip"]["properties"]
    assert properties["memory_error"]["description"] == "Null where nothing was measured"
    assert found["$defs"]["Step"]["properties"]["seconds"]["description"] == "Its time"
    assert set(found["$defs"]["Trip"]["required"]) == {f.name for f in dataclasses.fields(Trip)} - {"part", "best"}
    assert issubclass(Trip, Cost)


def test_some_records_lack_all_fields_of_a_class() -> None:
    import jsonschema

    class Flown(Step, Shown, maybe=(Step,)):
        """A client, with its step if it flew."""

    flew, stayed = Flown(client=1, name="a", seconds=2.0), Flown(**vars(Shown(client=2)))
    assert stayed.seconds is UNSET and stayed.to_data() == {"client": 2}
    assert flew.to_data() == {"client": 1, "name": "a", "seconds": 2.0}
    for each in (flew, stayed):
        assert decode(Flown, json.dumps(each.to_data()).encode(), "it") == each
        jsonschema.validate(each.to_data(), schema(Flown))
    with pytest.raises(RunError, match="field 'seconds': expected `float`, got `str`"):
        decode(Flown, b'{"client": 1, "name": "a", "seconds": "2"}', "it")
    assert {row.name: row.always for row in fields_of(Flown)}["seconds"] is False
    assert {row.name: row.always for row in fields_of(Step)}["seconds"] is True
