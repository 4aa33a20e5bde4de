"""The recorded answers of commands as records."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from jsonschema import Draft202012Validator

from edgefl.commands.fit.answer import Fit
from edgefl.commands.profile.answer import Profile
from edgefl.commands.sweep.answer import Sweep, read_cell
from edgefl.records.reading import decode, schema
from edgefl.records.record import Record

RECORDED = Path(__file__).parents[1] / "recorded" / "expected"


def recorded_profile(name: str = "profile") -> Profile:
    return decode(Profile, (RECORDED / f"{name}.json").read_bytes(), name)


def recorded_fit() -> Fit:
    return decode(Fit, (RECORDED / "fit.json").read_bytes(), "fit")


def recorded_sweep(name: str = "sweep") -> Sweep:
    return read_sweep((RECORDED / f"{name}.json").read_bytes(), name)


def read_sweep(text: bytes, name: str) -> Sweep:
    """A sweep from its JSON, in whose rows the varied fields stand under their paths."""
    sweep = decode(Sweep, text, name)
    return replace(sweep, rows=[read_cell(row, name) for row in json.loads(text)["rows"]])


def read_back(cls: type[Record], printed: str) -> None:
    """Check that the JSON of an answer is read as a record of this class, without a loss, and that its schema says so.

    AssertionError, RunError or ValidationError if it isn't.
    """
    found: Record = read_sweep(printed.encode(), "it") if cls is Sweep else decode(cls, printed.encode(), cls.__name__)
    data = json.loads(printed)
    assert type(found) is cls and found.to_data() == data
    Draft202012Validator(schema(cls)).validate(data)
