"""Reading records: what a file holds is told with its place, field and type where it isn't what the class says."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from edgefl.errors import EdgeflError, RunError
from edgefl.records.record import Record, meanings, types_of

R = TypeVar("R", bound=Record)

_AT = re.compile(r"(?P<what>.*?)(?: - at `(?P<path>.*)`)?", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<field>.*)`", re.DOTALL)


_DECODERS: dict[type, msgspec.json.Decoder[Any]] = {}


def _decoder(cls: type[R]) -> msgspec.json.Decoder[R]:
    if cls not in _DECODERS:
        _DECODERS[cls] = msgspec.json.Decoder(cls)
    return _DECODERS[cls]


def decode(cls: type[R], text: bytes, where: object, error: type[EdgeflError] = RunError) -> R:
    """The record in this JSON; fields that the class hasn't are ignored.

    ``where`` is the file, with the line's number in a table.  Raises ``error`` for text that isn't JSON, and for a
    field that is missing or of another type, with the field's path.
    """
    try:
        return _decoder(cls).decode(text)
    except msgspec.ValidationError as wrong:
        raise error(f"{where}: {_message_with_path(str(wrong))}") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise error(f"{where}: it isn't JSON: {text[:60]!r}") from None
    except RecursionError:
        raise error(f"{where}: it is nested too deeply: {text[:60]!r}") from None


def from_data(cls: type[R], data: object, where: object, error: type[EdgeflError] = RunError) -> R:
    """The record in this JSON data.  Raises ``error`` as ``decode`` does."""
    try:
        return msgspec.convert(data, cls)
    except msgspec.ValidationError as wrong:
        raise error(f"{where}: {_message_with_path(str(wrong))}") from None


def _message_with_path(message: str) -> str:
    """msgspec's message with the path first, as edgefl's errors have it."""
    match = _AT.fullmatch(message)
    what, path = (match["what"], match["path"] or "$") if match else (message, "$")
    path = path.removeprefix("$").removeprefix(".")
    if missing := _MISSING.fullmatch(what):
        return f"field {'.'.join(filter(None, (path, missing['field'])))!r} is missing"
    field = f"field {path!r:.80}: " if path else ""
    return field + what[:1].lower() + what[1:]


def each(path: Path, cls: type[R]) -> Iterator[R]:
    """The records of a table, one after the other, without loading the whole.

    An incomplete last line is ignored, because a run may be writing it.  Raises RunError, with the line's number, for a
    line that isn't a record of this class, and if the file can't be read.
    """
    return (record for record, _ in located_records(path, cls))


def located_records(path: Path, cls: type[R]) -> Iterator[tuple[R, str]]:
    """The same with the place of each record, ``clients.jsonl:3``."""
    decode_line, name, file = _decoder(cls).decode, str(path), path.name
    for number, line, last in lines(path):
        try:
            yield decode_line(line), f"{file}:{number}"
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as wrong:
            if last and not isinstance(wrong, msgspec.ValidationError):
                return
            if not isinstance(wrong, msgspec.ValidationError | RecursionError):
                raise RunError(f"{name}:{number}: this line is damaged: {line[:60]!r}") from None
            decode(cls, line, f"{name}:{number}")
            raise


def data(text: bytes) -> Any:
    """JSON data, with whole numbers of any size.  Raises ValueError."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:  # no ValueError in msgspec 0.20
        raise ValueError(str(error)) from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def lines(path: Path) -> Iterator[tuple[int, bytes, bool]]:
    """The number, from 1, and the bytes of each complete line of a table, and whether it is the last.

    Nothing for a file that isn't there.  Raises RunError if it can't be read.
    """
    try:
        if not path.exists():
            return
        with path.open("rb") as file:
            remaining = file.seek(0, os.SEEK_END)
            file.seek(0)
            for number, line in enumerate(file, start=1):
                remaining -= len(line)
                if not line.endswith(b"\n"):
                    return
                yield number, line, not remaining
    except OSError as error:
        raise RunError(f"can't read {path}: {error.strerror or error}") from error


def schema(cls: type[Record]) -> dict[str, Any]:
    """The JSON Schema of a record, with the meaning of each field as its description."""
    (reference,), components = msgspec.json.schema_components(
        [cls], schema_hook=_anything, ref_template="#/$defs/{name}"
    )
    classes = {each.__name__: each for each in _records_in(cls)}
    for name, component in components.items():
        told = meanings(classes[name]) if name in classes else {}
        for field, entry in component.get("properties", {}).items():
            if field in told:
                entry["description"] = told[field]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **reference, "$defs": components}


def _anything(hint: type) -> dict[str, str]:
    """The schema of values that may be anything."""
    if hint is object:
        return {"title": "any value"}
    raise NotImplementedError


def _records_in(cls: type[Record]) -> Iterator[type[Record]]:
    """The class and those of the records in it."""
    waiting: list[Any] = [cls]
    seen: set[type[Record]] = set()
    while waiting:
        hint = waiting.pop()
        waiting += getattr(hint, "__args__", ())
        if isinstance(hint, type) and issubclass(hint, Record) and hint not in seen:
            seen.add(hint)
            yield hint
            waiting += types_of(hint).values()
