"""Numbers that say where they come from: one number of a profile, and a YAML file that knows its own lines."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from edgefl import units, yaml_lines
from edgefl.errors import DeviceError, UnitError, suggestion
from edgefl.yaml_lines import KeyPath, Place, spell

Confidence = Literal["measured", "datasheet", "estimated"]
SHAPE = "a number is {value, range, confidence, source: {title, date, quote}}"


class Source(BaseModel):
    """Where a number comes from."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: str = Field(min_length=1, description="Document, page or paper that holds the figure.")
    url: str | None = Field(default=None, description="Its address, where it has one.")
    date: datetime.date = Field(
        description="The day on which the figure was read or, with `read: false`, written down."
    )
    quote: str = Field(min_length=1, description="The figure with its unit and where it stands, and any derivation.")
    read: bool = Field(
        default=True, description="False: the figure is known to the writer, but the source wasn't opened on that day."
    )


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid")

    value: float | str
    range: str | float | list[float | str]
    confidence: Confidence
    source: Source


@dataclass(frozen=True)
class Fact:
    """One number of a profile, in the base unit: ``low <= value <= high`` is what is thought possible.

    ``measured`` means that the source measured this quantity on this device; ``datasheet`` that a maker states it
    or that it follows from stated figures; ``estimated`` that the quote gives a reasoning instead.
    """

    value: float
    low: float
    high: float
    confidence: Confidence
    source: Source


@dataclass(frozen=True)
class Written:
    """A profile's file: what it says, and the place of each path in it."""

    path: Path
    data: Mapping[str, Any]
    places: Mapping[KeyPath, Place]

    def error(self, message: str, *where: str | int) -> DeviceError:
        """``file:line: message``; the line of what stands at this path, or of what lies around it."""
        _, line = yaml_lines.nearest(self.places, where) or (None, None)
        return _error(self.path, line, message)

    def check_keys(self, needed: Iterable[str], optional: Iterable[str], noun: str) -> None:
        """Raise DeviceError, with the nearest name, for keys that are missing or that nobody knows."""
        needed, known = list(needed), [*needed, *optional]
        for key in self.data:
            if key not in known:
                near = suggestion(str(key), known).replace("; allowed:", "; a profile has")
                raise self.error(f"{key} is not a number of {noun}{near}", key)
        missing = [key for key in needed if key not in self.data]
        if missing:
            verb = "is" if len(missing) == 1 else "are"
            raise self.error(f"{', '.join(missing)} {verb} missing from {noun}; {SHAPE}")

    def text(self, key: str) -> str:
        """The plain text under this key."""
        value = self.data.get(key)
        if not isinstance(value, str) or not value.strip():
            raise self.error(f"{key} must be a text, not {value!r}", key)
        return value.strip()

    def fact(self, name: str, quantity: units.Quantity, *, may_be_zero: bool = False) -> Fact:
        """The number under this key.  Raises DeviceError for one without a source or outside its own range."""
        try:
            entry = _Entry.model_validate(self.data[name])
            value = quantity.parse(entry.value)
            low, high = quantity.parse_range(entry.range)
        except ValidationError as error:
            raise self._invalid(error, name, SHAPE) from None
        except UnitError as error:
            raise self.error(f"{name}: {error}", name) from None
        if not low <= value <= high:
            raise self.error(
                f"{name}: the value {entry.value} lies outside its range {entry.range}; widen the range or mend one",
                name,
            )
        if value == 0 and not may_be_zero:
            raise self.error(f"{name}: must be positive, not {entry.value}", name)
        if entry.confidence == "measured" and not entry.source.read:
            raise self.error(f"{name}: what its writer hasn't read can't be called measured; call it estimated", name)
        return Fact(value, low, high, entry.confidence, entry.source)

    def source(self) -> Source:
        """What stands under ``source``, for a file with one source."""
        try:
            return Source.model_validate(self.data.get("source"))
        except ValidationError as error:
            raise self._invalid(error, "source", "a source is {title, url, date, quote}") from None

    def _invalid(self, error: ValidationError, name: str, shape: str) -> DeviceError:
        first = error.errors()[0]
        keys = (name, *first["loc"])
        return self.error(f"{spell(keys)}: {first['msg']}; {shape}", *keys)


def read_written(path: Path, shape: str) -> Written:
    """The YAML mapping in this file.

    Raises DeviceError if there is none, if a key is written twice, or for no mapping with a title; ``shape`` says
    what it should have been.
    """

    def refuse(message: str, line: int | None, where: KeyPath) -> DeviceError:
        return _error(path, line, f"{spell(where)}: {message}" if where else message)

    try:
        raw = path.read_bytes()
    except OSError as error:
        raise DeviceError(f"{path}: can't be read: {error.strerror or error}") from None
    data, places = yaml_lines.read(yaml_lines.decode(raw, refuse), refuse, nouns="profiles", merge=True)
    if not isinstance(data, dict) or not isinstance(data.get("title"), str):
        raise DeviceError(f"{path}: {shape}")
    return Written(path, data, {where: place for where, place in places.items() if where})


def profile_keys(path: Path) -> set[str]:
    """The keys at the top of a profile's file.  Raises DeviceError as ``read_written`` does."""
    return set(read_written(path, "a profile is a mapping with a title").data)


def _error(path: Path, line: int | None, message: str) -> DeviceError:
    return DeviceError(f"{path}:{line}: {message}" if line else f"{path}: {message}")
