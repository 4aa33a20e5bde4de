"""Devices and links, read from the profile library: every number carries its source and how sure it is."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from edgefl import registry, units
from edgefl.errors import DeviceError, UnitError, UnknownName

Confidence = Literal["measured", "datasheet", "estimated"]


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


def _no_facts() -> Mapping[str, Fact]:
    return MappingProxyType({})


@dataclass(frozen=True)
class Device:
    """A class of device that trains.

    ``ram_bytes`` is the memory that tensors live in (a discrete GPU's own); ``usable_memory_bytes`` what an idle
    system leaves of it to processes; ``runtime_overhead_bytes`` what Python with torch takes of that before any
    tensor. ``flops_per_second`` is the sustained float32 training rate. ``jitter`` is the sigma of a lognormal
    factor with median 1 on the duration of computing. ``facts`` holds the source of each number.
    """

    name: str
    title: str
    ram_bytes: int
    usable_memory_bytes: int
    flops_per_second: float
    peak_flops_per_second: float
    memory_bytes_per_second: float
    seconds_per_operator: float
    runtime_overhead_bytes: int
    compute_watts: float
    idle_watts: float
    jitter: float
    facts: Mapping[str, Fact] = field(default_factory=_no_facts, repr=False, compare=False)


@dataclass(frozen=True)
class Link:
    """A class of network link, seen from the client; the two directions differ.

    The watts are what the client's radio or port draws beside its idle power while it transfers. ``jitter`` is the
    sigma of a lognormal factor with median 1 on the duration of a transfer.
    """

    name: str
    title: str
    download_bits_per_second: float
    upload_bits_per_second: float
    latency_seconds: float
    download_watts: float
    upload_watts: float
    jitter: float
    facts: Mapping[str, Fact] = field(default_factory=_no_facts, repr=False, compare=False)


_SIGMA = units.Quantity("sigma", "0.1", {"": units.SECONDS.factors[""]})

_DEVICE_NUMBERS = {
    "ram_bytes": units.BYTES,
    "usable_memory_bytes": units.BYTES,
    "flops_per_second": units.RATE,
    "peak_flops_per_second": units.RATE,
    "memory_bytes_per_second": units.BYTES_PER_SECOND,
    "seconds_per_operator": units.SECONDS,
    "runtime_overhead_bytes": units.BYTES,
    "compute_watts": units.WATTS,
    "idle_watts": units.WATTS,
    "jitter": _SIGMA,
}
_LINK_NUMBERS = {
    "download_bits_per_second": units.BITS_PER_SECOND,
    "upload_bits_per_second": units.BITS_PER_SECOND,
    "latency_seconds": units.SECONDS,
    "download_watts": units.WATTS,
    "upload_watts": units.WATTS,
    "jitter": _SIGMA,
}
_MAY_BE_ZERO = {"jitter", "idle_watts", "latency_seconds", "download_watts", "upload_watts", "runtime_overhead_bytes"}

Profile = TypeVar("Profile", Device, Link)


def library_folder() -> Path:
    """The folder with ``devices/`` and ``networks/``: inside an installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    shipped = package / "shipped" / "profiles"
    return shipped if shipped.is_dir() else package.parent / "profiles"


def library_folders() -> list[Path]:
    """``library_folder()`` and those of plug-ins, which name a folder in the entry point group ``edgefl.profiles``."""
    plugged = [Path(registry.get("profile library", name)) for name in registry.names("profile library")]
    return [library_folder(), *plugged]


def device_names() -> list[str]:
    """All devices of the libraries, sorted."""
    return sorted(_files("devices"))


def link_names() -> list[str]:
    """All links of the libraries, sorted."""
    return sorted(_files("networks"))


@cache
def device(name: str) -> Device:
    """The device of the library with this name; raises UnknownName, or DeviceError if its profile is wrong."""
    files = _files("devices")
    if name not in files:
        raise UnknownName("device", name, files)
    return read_device(files[name])


@cache
def link(name: str) -> Link:
    """The link of the library with this name; raises UnknownName, or DeviceError if its profile is wrong."""
    files = _files("networks")
    if name not in files:
        raise UnknownName("link", name, files)
    return read_link(files[name])


def read_device(path: Path) -> Device:
    """The device described by a YAML file; its name is the file's. Raises DeviceError naming file and number."""
    found = _read(path, _DEVICE_NUMBERS, Device)
    if not found.runtime_overhead_bytes <= found.ram_bytes >= found.usable_memory_bytes:
        raise DeviceError(f"{path}: usable memory and runtime overhead can't be more than ram_bytes")
    if found.flops_per_second > found.peak_flops_per_second:
        raise DeviceError(f"{path}: flops_per_second is above peak_flops_per_second")
    if found.idle_watts > found.compute_watts:
        raise DeviceError(f"{path}: idle_watts is above compute_watts")
    return found


def read_link(path: Path) -> Link:
    """The link described by a YAML file; its name is the file's. Raises DeviceError naming file and number."""
    return _read(path, _LINK_NUMBERS, Link)


def _files(folder: str) -> dict[str, Path]:
    """Profiles by name; one of the library isn't replaced by a plug-in's of the same name."""
    return {p.stem: p for library in reversed(library_folders()) for p in sorted((library / folder).glob("*.yaml"))}


def _read(path: Path, numbers: Mapping[str, units.Quantity], kind: type[Profile]) -> Profile:
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise DeviceError(f"{path}: can't be read: {error}") from error
    if not isinstance(raw, dict) or not isinstance(raw.get("title"), str):
        raise DeviceError(f"{path}: a profile is a mapping with a title and {', '.join(numbers)}")
    for problem, keys in (
        ("is missing", numbers.keys() - raw.keys()),
        ("is not a number of this profile", raw.keys() - numbers.keys() - {"title"}),
    ):
        if keys:
            raise DeviceError(f"{path}: {', '.join(map(str, sorted(keys, key=str)))} {problem}")
    facts = {name: _fact(path, name, raw[name], quantity) for name, quantity in numbers.items()}
    values: dict[str, Any] = {
        name: int(fact.value) if numbers[name].whole else fact.value for name, fact in facts.items()
    }
    return kind(name=path.stem, title=raw["title"], facts=MappingProxyType(facts), **values)


def _fact(path: Path, name: str, raw: object, quantity: units.Quantity) -> Fact:
    try:
        entry = _Entry.model_validate(raw)
        value = quantity.parse(entry.value)
        low, high = quantity.parse_range(entry.range)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join([name, *map(str, first["loc"])])
        raise DeviceError(
            f"{path}: {where}: {first['msg']}; a number is {{value, range, confidence, source: {{title, date, quote}}}}"
        ) from None
    except UnitError as error:
        raise DeviceError(f"{path}: {name}: {error}") from None
    if not low <= value <= high:
        raise DeviceError(f"{path}: {name}: the value {entry.value} lies outside its range {entry.range}")
    if value == 0 and name not in _MAY_BE_ZERO:
        raise DeviceError(f"{path}: {name}: must be positive, not {entry.value}")
    if entry.confidence == "measured" and not entry.source.read:
        raise DeviceError(f"{path}: {name}: what its writer hasn't read can't be called measured")
    return Fact(value, low, high, entry.confidence, entry.source)
