"""A scenario's text as plain data, with the place of each key and value; setting values in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from edgefl import yaml_lines
from edgefl.errors import ScenarioError
from edgefl.yaml_lines import KeyPath, KeyPosition, spell, write

__all__ = [
    "Document", "KeyPath", "KeyPosition", "Override", "set_value", "plain_data", "read_file", "read_text", "read_value",
    "spell", "write",
]  # fmt: skip
SHARES = ("devices", "links")
"""Fields that map names to shares of the clients, which add up to all of them."""
LEAVES = tuple(f"fleet.{name}" for name in SHARES)
"""Their paths."""


@dataclass(frozen=True)
class Override:
    """A value that is set at a path of a document, and the places of the value and its parts."""

    path: KeyPath
    value: Any
    places: dict[KeyPath, KeyPosition]

    @property
    def origin(self) -> str:
        """What wrote it: ``--set training.lr=0.1``, or a file and line."""
        place = self.places.get(self.path, KeyPosition(None))
        return f"{place.file or spell(self.path)}{f':{place.value_line}' if place.value_line else ''}"

    def error(self, message: str) -> ScenarioError:
        """The error ``message`` about what it sets."""
        return ScenarioError(message, file=self.origin, key=spell(self.path))


@dataclass(frozen=True)
class Document:
    """``data`` (mappings, lists, text, numbers, booleans, None) and the place of each path in it.

    One with ``overrides``, from the command line or axes, has the document ``before`` them.  ``known`` has the sections
    that were read, of this document and of all that were made from it: the cells of a comparison share most of theirs.
    """

    data: dict[str, Any]
    places: dict[KeyPath, KeyPosition] = field(default_factory=dict)
    file: str | None = None
    overrides: tuple[Override, ...] = ()
    before: Document | None = field(default=None, repr=False)
    known: dict[tuple[str, int], tuple[object, str | None, BaseModel]] = field(
        default_factory=dict, repr=False, compare=False
    )

    def error(self, path: KeyPath, message: str, *, at_key: bool = False) -> ScenarioError:
        """The error ``message`` about this path, pointing at its value or key, or at the nearest part around it."""
        file, line = yaml_lines.nearest(self.places, path, at_key=at_key) or (self.file, None)
        return ScenarioError(message, file=file, line=line, key=spell(path) or None)

    def move_places(self, source: KeyPath, target: KeyPath) -> dict[KeyPath, KeyPosition]:
        """The places under ``source``, with their paths moved to ``target``."""
        return {
            target + path[len(source) :]: place for path, place in self.places.items() if path[: len(source)] == source
        }


def _error_factory(file: str | None) -> yaml_lines.Refuse:
    return lambda message, line, path: ScenarioError(message, file=file, line=line, key=spell(path) or None)


def read_file(path: Path, file: str) -> Document:
    """The document in this file, which messages call ``file``.

    Raises ScenarioError if it is missing, a folder, not readable, not UTF-8, empty, not YAML or not a mapping.
    """
    if path.is_dir():
        resume = f"; edgefl run --resume {file} goes on with this run" if (path / "scenario.yaml").is_file() else ""
        raise ScenarioError(f"this is a folder; a scenario is a YAML file{resume}", file=file)
    if not path.exists():
        raise ScenarioError("there is no such file", file=file)
    if not path.is_file():
        raise ScenarioError("this isn't a regular file; a scenario is a YAML file", file=file)
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ScenarioError(f"this file can't be read: {error.strerror}", file=file) from error
    return read_text(yaml_lines.decode(raw, _error_factory(file)), file)


def read_text(text: str, file: str | None = None) -> Document:
    """The document in this text.  Raises ScenarioError if it is empty, not YAML or not a mapping."""
    data, places = yaml_lines.parse_yaml(text, _error_factory(file), file=file, nouns="scenarios")
    if not places:
        raise ScenarioError("this file is empty; a scenario begins with `edgefl: 1`", file=file)
    if not isinstance(data, dict):
        given = "a list" if isinstance(data, list) else "a single value"
        raise ScenarioError(
            f"a scenario is a mapping of sections (`key: value`), not {given}", file=file, line=places[()].value_line
        )
    return Document(data, {**places, (): KeyPosition(file, 1, 1)}, file)


def plain_data(data: Any) -> Any:
    """A dictionary as a document has it: text keys, and lists instead of tuples.

    Raises ScenarioError if it contains itself, has more values than a file may have (shared parts count each time), or
    a number of more than 100 digits.
    """
    seen = 0

    def copy_value(value: Any, path: KeyPath) -> Any:
        nonlocal seen
        seen += 1
        if seen > yaml_lines.MOST_VALUES or len(path) > yaml_lines.DEEPEST:
            limits = f"{yaml_lines.MOST_VALUES:,} values and {yaml_lines.DEEPEST} levels"
            raise ScenarioError(f"a scenario has at most {limits}; does this part contain itself?", key=spell(path[:2]))
        if isinstance(value, Mapping):
            return {str(key): copy_value(inner, (*path, str(key))) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [copy_value(inner, (*path, i)) for i, inner in enumerate(value)]
        if isinstance(value, int) and abs(value) >= 10**100:
            raise ScenarioError("a number can't have more than 100 digits", key=spell(path))
        return value

    return copy_value(data, ())


def read_value(text: str, origin: str) -> tuple[Any, dict[KeyPath, KeyPosition]]:
    """The value written in an override, with the places of its parts; messages call its source ``origin``."""

    def refuse(message: str, line: int | None, path: KeyPath) -> ScenarioError:
        return ScenarioError(message, file=origin, key=spell(path) or None)

    value, places = yaml_lines.parse_yaml(text, refuse, nouns="scenarios")
    return value, {path: KeyPosition(origin) for path in places if path}


def set_value(document: Document, override: Override) -> Document:
    """The document with a value set (mappings on the way are made) and the places of its parts.

    Raises ScenarioError if the path leads through a value that is neither a mapping nor a list.
    """
    path, value, places = override.path, override.value, override.places

    def put(node: Any, depth: int) -> Any:
        if depth == len(path):
            return value
        key = path[depth]
        if node is None:
            node = {}
        if isinstance(node, list):
            if not isinstance(key, int) or key >= len(node):
                raise _path_error(path, depth, f"a list of {len(node)}, numbered from 0", places)
            return [put(item, depth + 1) if i == key else item for i, item in enumerate(node)]
        if not isinstance(node, dict):
            raise _path_error(path, depth, f"{node!r}, which has no keys", places)
        return {**node, str(key): put(node.get(str(key)), depth + 1)}

    data = put(document.data, 0)
    other_places = {other: place for other, place in document.places.items() if other[: len(path)] != path}
    return replace(document, data=data, places={**other_places, **places})


def _path_error(path: KeyPath, depth: int, description: str, places: dict[KeyPath, KeyPosition]) -> ScenarioError:
    file = next((place.file for place in places.values()), None)
    return ScenarioError(f"{spell(path[:depth])} is {description}", file=file, key=spell(path))
