"""A scenario's text as plain data that knows where each key and value was written, and overrides put into it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from edgefl import yaml_lines
from edgefl.errors import ScenarioError
from edgefl.yaml_lines import KeyPath, Place, spell, write

__all__ = ["Document", "KeyPath", "Place", "placed", "read_file", "read_text", "read_value", "spell", "write"]


@dataclass(frozen=True)
class Document:
    """``data`` (mappings, lists, text, numbers, booleans, None) and the place of each path in it."""

    data: dict[str, Any]
    places: dict[KeyPath, Place] = field(default_factory=dict)
    file: str | None = None

    def error(self, path: KeyPath, message: str, *, at_key: bool = False) -> ScenarioError:
        """The error ``message`` about this path, pointing at its value or key, or at the nearest part around it."""
        file, line = yaml_lines.nearest(self.places, path, at_key=at_key) or (self.file, None)
        return ScenarioError(message, file=file, line=line, key=spell(path) or None)

    def moved(self, source: KeyPath, target: KeyPath) -> dict[KeyPath, Place]:
        """The places of what lies under ``source``, as if it had been written under ``target``."""
        return {
            target + path[len(source) :]: place for path, place in self.places.items() if path[: len(source)] == source
        }


def _refusing(file: str | None) -> yaml_lines.Refuse:
    return lambda message, line, path: ScenarioError(message, file=file, line=line, key=spell(path) or None)


def read_file(path: Path, file: str) -> Document:
    """The document in this file, which messages call ``file``.

    Raises ScenarioError if it is missing, a folder, not readable, not UTF-8, empty, not YAML or not a mapping.
    """
    if path.is_dir():
        raise ScenarioError("this is a folder; a scenario is a YAML file", file=file)
    if not path.exists():
        raise ScenarioError("there is no such file", file=file)
    if not path.is_file():
        raise ScenarioError("this isn't a regular file; a scenario is a YAML file", file=file)
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ScenarioError(f"this file can't be read: {error.strerror}", file=file) from error
    return read_text(yaml_lines.decode(raw, _refusing(file)), file)


def read_text(text: str, file: str | None = None) -> Document:
    """The document in this text.  Raises ScenarioError if it is empty, not YAML or not a mapping."""
    data, places = yaml_lines.read(text, _refusing(file), file=file, nouns="scenarios")
    if not places:
        raise ScenarioError("this file is empty; a scenario begins with `edgefl: 1`", file=file)
    if not isinstance(data, dict):
        what = "a list" if isinstance(data, list) else "a single value"
        raise ScenarioError(
            f"a scenario is a mapping of sections (`key: value`), not {what}", file=file, line=places[()].value_line
        )
    return Document(data, {**places, (): Place(file, 1, 1)}, file)


def read_value(text: str, place: str) -> tuple[Any, dict[KeyPath, Place]]:
    """The value written in an override, with the places of its parts; ``place`` is what messages call it."""

    def refuse(message: str, line: int | None, path: KeyPath) -> ScenarioError:
        return ScenarioError(message, file=place, key=spell(path) or None)

    value, places = yaml_lines.read(text, refuse, nouns="scenarios")
    return value, {path: Place(place) for path in places if path}


def placed(document: Document, path: KeyPath, value: Any, places: dict[KeyPath, Place]) -> Document:
    """The document with ``value`` at ``path`` (mappings on the way are made) and its places in place of the old ones.

    Raises ScenarioError if the path leads through something that isn't a mapping or a list.
    """

    def put(held: Any, depth: int) -> Any:
        if depth == len(path):
            return value
        part = path[depth]
        if held is None:
            held = {}
        if isinstance(held, list):
            if not isinstance(part, int) or part >= len(held):
                raise _lost(path, depth, f"a list of {len(held)}, numbered from 0", places)
            return [put(item, depth + 1) if i == part else item for i, item in enumerate(held)]
        if not isinstance(held, dict):
            raise _lost(path, depth, f"{held!r}, which has no keys", places)
        return {**held, str(part): put(held.get(str(part)), depth + 1)}

    data = put(document.data, 0)
    kept = {p: place for p, place in document.places.items() if p[: len(path)] != path}
    return replace(document, data=data, places={**kept, **places})


def _lost(path: KeyPath, depth: int, what: str, places: dict[KeyPath, Place]) -> ScenarioError:
    file = next((place.file for place in places.values()), None)
    return ScenarioError(f"{spell(path[:depth])} is {what}", file=file, key=spell(path))
