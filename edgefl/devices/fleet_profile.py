"""Fleets of the profile library: mixes of devices and links, each with a source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import cast, get_args

from edgefl.devices.profile import is_file_name, library_files, look_up
from edgefl.devices.written_facts import Confidence, FactSource, ProfileFile, read_written
from edgefl.errors import DeviceError, suggestion
from edgefl.yaml_lines import spell

_SHAPE = "a fleet is a mapping with a title, a source, a confidence and a fleet: {devices: ..., links: ...}"
OWN_ESTIMATE = "Own estimate"
"""The title of a source that is nobody's but the writer's."""


@dataclass(frozen=True)
class FleetProfile:
    """A fleet that a scenario can refer to (``fleet.like``); ``fields`` are fields of ``FleetOptions`` as written.

    ``sources`` has the source of each field.
    """

    name: str
    title: str
    sources: Mapping[str, FactSource]
    confidence: Confidence
    fields: Mapping[str, object]
    written: ProfileFile = field(repr=False, compare=False)

    def error(self, path: Sequence[str | int], message: str) -> DeviceError:
        """A DeviceError about the value at this path in ``fields``, with its file and line."""
        where = ("fleet", *path)
        return self.written.error(f"{spell(where)}: {message}", *where)


def fleet_names() -> list[str]:
    """Names of all fleets in the profile libraries, sorted."""
    return sorted(library_files("fleets"))


def fleet_profile(name: str) -> FleetProfile:
    """The library's fleet of this name, or the fleet in this file.

    Raises UnknownName if there is none, and DeviceError if its file is invalid.
    """
    return read_fleet(Path(name)) if is_file_name(name) else _fleet_profile(name)


@cache
def _fleet_profile(name: str) -> FleetProfile:
    return look_up("fleet", "fleets", name, read_fleet)


def read_fleet(path: Path) -> FleetProfile:
    """Read a fleet from a YAML file; its name is the file's stem.

    ``source`` is that of every field that ``sources`` doesn't name.  ``FleetOptions`` checks the fleet's fields later.
    Raises DeviceError with file and line.
    """
    written = read_written(path, _SHAPE)
    written.check_keys(["title", "source", "confidence", "fleet"], ["sources"], "a fleet")
    confidence = written.data["confidence"]
    if confidence not in get_args(Confidence):
        raise written.error(f"confidence: {confidence!r} is not one of {', '.join(get_args(Confidence))}", "confidence")
    source = written.source(written.data["source"], "source")
    named = {key: written.source(entry, "sources", key) for key, entry in written.section("sources").items()}
    if confidence == "measured" and not all(each.read for each in (source, *named.values())):
        raise written.error("confidence: measured requires a source with read: true; use estimated")
    fields = written.data["fleet"]
    if not isinstance(fields, dict) or not fields:
        raise written.error(f"fleet: must be a mapping of a fleet's fields, not {fields!r}; {_SHAPE}", "fleet")
    if "like" in fields:
        raise written.error(
            "fleet.like: a fleet of the library can't refer to another fleet; write the fields", "fleet", "like"
        )
    for key in named.keys() - fields.keys():
        told = f"sources.{key}: {key} is not a field of this fleet{suggestion(key, fields)}"
        raise written.error(told, "sources", key)
    return FleetProfile(
        path.stem, written.text("title"), MappingProxyType(dict.fromkeys(fields, source) | named),
        cast("Confidence", confidence), MappingProxyType(fields), written,
    )  # fmt: skip
