"""Reading the numbers of a profile's YAML file: each has a range, a confidence and a source; errors have lines."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from edgefl import units, yaml_lines
from edgefl.errors import DeviceError, UnitError, list_errors, suggestion
from edgefl.files import read_regular
from edgefl.registry.part_fields import Fields
from edgefl.yaml_lines import KeyPath, KeyPosition, spell

Confidence = Literal["measured", "datasheet", "estimated"]
SHAPE = "a number is {value, range, confidence, source: {title, date, quote}}"
SOURCE_SHAPE = "a source is {title, url, date, quote}"


class FactSource(Fields):
    """The source of a number in a profile."""

    title: str = Field(min_length=1, description="Document, page or paper that has the figure.")
    url: str | None = Field(default=None, description="Its address, if it has one.")
    date: datetime.date = Field(
        description="The day on which the source was read; with `read: false`, on which the figure was written down."
    )
    quote: str = Field(
        min_length=1, description="The figure with its unit, its place in the source, and any derivation."
    )
    read: bool = Field(
        default=True, description="False: the writer knows the figure, but didn't open the source on that day."
    )


class _WrittenFact(BaseModel):
    model_config = ConfigDict(extra="forbid")

    value: float | str
    range: str | float | list[float | str]
    confidence: Confidence
    source: FactSource


@dataclass(frozen=True)
class Fact:
    """One number of a profile in the base unit; the true value is believed to lie in ``low`` to ``high``.

    The confidence is ``measured`` if the source measured this quantity on this device. It is ``datasheet`` if the
    manufacturer states the number, or if it follows from stated figures. It is ``estimated`` if the quote gives only
    a reasoning, and ``fitted`` if it is a share of a stated number that was fitted to published measurements of others.
    """

    value: float
    low: float
    high: float
    confidence: Confidence | Literal["fitted"]
    source: FactSource


class Faults:
    """Errors of one profile, which are raised together: whoever corrects the file sees all of them at once."""

    def __init__(self) -> None:
        self._errors: list[DeviceError] = []

    def note(self, error: DeviceError) -> None:
        """Keep an error until ``raise_all``."""
        self._errors += error.errors or (error,)

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Note the DeviceError that ends the block, in place of raising it."""
        try:
            yield
        except DeviceError as error:
            self.note(error)

    def raise_all(self) -> None:
        """Raise DeviceError with a line for each error, in the order of the file, if there are any."""
        if self._errors:
            raise _together(self._errors)


def _together(errors: Sequence[DeviceError]) -> DeviceError:
    """One error of several, in the order of the file."""
    errors = list({str(error): error for error in errors}.values())
    if len(errors) == 1:
        return errors[0]
    errors.sort(key=lambda error: (error.line is None, error.line or 0))
    together = DeviceError(list_errors(errors))
    together.errors = tuple(errors)
    return together


@dataclass(frozen=True)
class ProfileFile:
    """The content of a profile's file, and the position of each key in it."""

    path: Path
    data: Mapping[str, object]
    places: Mapping[KeyPath, KeyPosition]

    def error(self, message: str, *where: str | int) -> DeviceError:
        """A DeviceError ``file:line: message`` with the line of this key path, or of its nearest parent in the file."""
        _, line = yaml_lines.nearest(self.places, where) or (None, None)
        return _error(self.path, line, message)

    def check_keys(self, needed: Iterable[str], optional: Iterable[str], noun: str) -> None:
        """Raise DeviceError for missing keys, and for unknown keys with the nearest name."""
        needed, allowed, faults = list(needed), [*needed, *optional], Faults()
        for key in self.data:
            if key not in allowed:
                near = suggestion(str(key), allowed)
                faults.note(self.error(f"{key} is not a field of {noun}{near}", key))
        missing = [key for key in needed if key not in self.data]
        if missing:
            verb = "is" if len(missing) == 1 else "are"
            faults.note(self.error(f"{', '.join(missing)} {verb} missing from {noun}; {SHAPE}"))
        faults.raise_all()

    def section(self, *where: str) -> Mapping[str, object]:
        """The mapping at this key path; empty if there is none.  Raises DeviceError if it is anything else."""
        value: Any = self.data
        for key in where:
            value = value.get(key, {})
        if not isinstance(value, Mapping):
            raise self.error(f"{spell(where)} must be a mapping, not {value!r:.40}", *where)
        return value

    def over(self, data: Mapping[str, object], where: KeyPath) -> ProfileFile:
        """This content with other values for some keys, which stand in the file below ``where``."""
        moved = {keys[len(where) :]: place for keys, place in self.places.items() if keys[: len(where)] == where}
        return ProfileFile(self.path, {**self.data, **data}, {**self.places, **{k: p for k, p in moved.items() if k}})

    def text(self, key: str) -> str:
        """The text under this key, stripped.  Raises DeviceError if it is empty or not a text."""
        value = self.data.get(key)
        if not isinstance(value, str) or not value.strip():
            raise self.error(f"{key} must be a text, not {value!r}", key)
        return value.strip()

    def fact(self, name: str, quantity: units.Quantity, *, may_be_zero: bool = False) -> Fact:
        """The number under this key, in the base unit of ``quantity``.

        Raises DeviceError if its entry is incomplete, if it can't be read, if it lies outside its range or isn't
        positive, or if it is ``measured`` from a source that wasn't read.
        """
        try:
            entry = _WrittenFact.model_validate(self.data[name])
            value = quantity.parse(entry.value)
            low, high = quantity.parse_range(entry.range)
        except ValidationError as error:
            raise self.invalid(error, (name,), SHAPE) from None
        except UnitError as error:
            raise self.error(f"{name}: {error}", name) from None
        if not low <= value <= high:
            raise self.error(
                f"{name}: the value {entry.value} lies outside its range {entry.range}; correct one of them", name
            )
        if value == 0 and not may_be_zero:
            raise self.error(f"{name}: must be positive, not {entry.value}", name)
        if entry.confidence == "measured" and not entry.source.read:
            raise self.error(f"{name}: confidence measured requires a source with read: true; use estimated", name)
        return Fact(value, low, high, entry.confidence, entry.source)

    def source(self, entry: object, *where: str) -> FactSource:
        """The source written as ``entry`` at this key path.  Raises DeviceError if it is incomplete."""
        try:
            return FactSource.model_validate(entry)
        except ValidationError as error:
            raise self.invalid(error, where, SOURCE_SHAPE) from None

    def invalid(self, error: ValidationError, where: KeyPath, shape: str) -> DeviceError:
        """A DeviceError about each field of the value at ``where``, a ``shape``, that pydantic complains of."""
        found: dict[KeyPath, DeviceError] = {}
        for each in error.errors():
            # what follows is the name of a union's member; of those the first counts
            keys = (*where, *each["loc"][: 2 if each["loc"][:1] == ("source",) else 1])
            said = "must be a mapping" if each["type"] == "model_type" else each["msg"].removeprefix("Value error, ")
            said = said.replace("Field required", "is missing").replace("Input should be", "must be")
            found.setdefault(keys, self.error(f"{spell(keys)}: {said}; {shape}", *keys))
        return _together(list(found.values()))


def read_written(path: Path, shape: str) -> ProfileFile:
    """Read a profile's YAML file.

    Raises DeviceError if the file can't be read, if a key occurs twice, or if it isn't a mapping with a title.
    ``shape`` is the message for that last case; it describes what the file should contain.
    """

    def refuse(message: str, line: int | None, where: KeyPath) -> DeviceError:
        return _error(path, line, f"{spell(where)}: {message}" if where else message)

    try:
        raw = read_regular(path)
    except OSError as error:
        raise DeviceError(f"{path}: can't be read: {error.strerror or error}") from None
    data, places = yaml_lines.parse_yaml(yaml_lines.decode(raw, refuse), refuse, nouns="profiles", merge=True)
    if not isinstance(data, dict) or not isinstance(data.get("title"), str):
        raise DeviceError(f"{path}: {shape}")
    return ProfileFile(path, data, {where: place for where, place in places.items() if where})


def library_folder() -> Path:
    """The folder of edgefl's profiles (``devices/``, ``networks/`` and others): installed, or in the checkout."""
    package = Path(__file__).resolve().parents[1]
    shipped = package / "shipped" / "profiles"
    return shipped if shipped.is_dir() else package.parent / "profiles"


def profile_keys(path: Path) -> set[str]:
    """The top-level keys of a profile's file.  Raises DeviceError as ``read_written`` does."""
    return set(read_written(path, "a profile is a mapping with a title").data)


def _error(path: Path, line: int | None, message: str) -> DeviceError:
    error = DeviceError(f"{path}:{line}: {message}" if line else f"{path}: {message}")
    error.line = line
    return error
