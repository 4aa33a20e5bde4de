"""A scenario's text as plain data that knows where each key and value was written.

The numbers and booleans are YAML 1.2's, so ``1e-3`` is a number and ``on``, ``1:30`` and ``010:5`` are not turned
into something else.  Tags are refused: a scenario is data and never makes an object.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from edgefl.errors import ScenarioError

KeyPath = tuple[str | int, ...]
"""Keys and list places from the top of the scenario to a value."""

_PLAIN, _QUOTED, _LIST, _MAPPING = "plain", "quoted", "list", "mapping"
_INTEGER = re.compile(r"[-+]?[0-9]+\Z")
_BASED = re.compile(r"0x[0-9a-fA-F]+\Z|0o[0-7]+\Z")
_NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")
_WORDS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf"), float("inf")),
    "-.inf": float("-inf"),
    ".nan": float("nan"),
}
_MOST_VALUES = 100_000


@dataclass(frozen=True)
class Place:
    """Where a value was written: a file and the lines of its key and of itself (from 1), or an override."""

    file: str | None
    key_line: int | None = None
    value_line: int | None = None


@dataclass(frozen=True)
class Document:
    """``data`` (mappings, lists, text, numbers, booleans, None) and the place of each path in it."""

    data: dict[str, Any]
    places: dict[KeyPath, Place] = field(default_factory=dict)
    file: str | None = None

    def error(self, path: KeyPath, message: str, *, at_key: bool = False) -> ScenarioError:
        """The error ``message`` about this path, pointing at its value or key, or at the nearest part around it."""
        for length in range(len(path), -1, -1):
            place = self.places.get(path[:length])
            if place is not None:
                # where the value itself is missing, the line of the key it should stand under says more
                line = place.key_line if at_key or length < len(path) or place.value_line is None else place.value_line
                return ScenarioError(message, file=place.file, line=line, key=spell(path) or None)
        return ScenarioError(message, file=self.file, key=spell(path) or None)

    def moved(self, source: KeyPath, target: KeyPath) -> dict[KeyPath, Place]:
        """The places of what lies under ``source``, as if it had been written under ``target``."""
        return {
            target + path[len(source) :]: place for path, place in self.places.items() if path[: len(source)] == source
        }


def spell(path: KeyPath) -> str:
    """``("fleet", "links", 0)`` -> ``fleet.links[0]``."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


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
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise ScenarioError(
            f"this isn't UTF-8 text (byte 0x{raw[error.start]:02x}); save the file as UTF-8", file=file, line=line
        ) from None
    return read_text(text, file)


def read_text(text: str, file: str | None = None) -> Document:
    """The document in this text.  Raises ScenarioError if it is empty, not YAML or not a mapping."""
    node = _compose(text, file)
    if node is None:
        raise ScenarioError("this file is empty; a scenario begins with `edgefl: 1`", file=file)
    if not isinstance(node, yaml.MappingNode):
        what = "a list" if isinstance(node, yaml.SequenceNode) else "a single value"
        raise ScenarioError(
            f"a scenario is a mapping of sections (`key: value`), not {what}", file=file, line=_line(node)
        )
    reader = _Reader(file)
    data = reader.value(node, ())
    reader.places[()] = Place(file, 1, 1)
    return Document(data, reader.places, file)


def read_value(text: str, place: str) -> tuple[Any, dict[KeyPath, Place]]:
    """The value written in an override, with the places of its parts; ``place`` is what messages call it."""
    try:
        node = _compose(text, place)
        if node is None:
            return None, {}
        reader = _Reader(place)
        value = reader.value(node, ())
    except ScenarioError as error:
        raise ScenarioError(error.message, file=place, key=error.key) from None
    return value, {path: Place(place) for path in reader.places}


class _Loader(yaml.BaseLoader):
    """Composes nodes and tells plain scalars from quoted ones; never constructs an object."""

    def resolve(self, kind: Any, value: Any, implicit: Any) -> str:
        if kind is yaml.ScalarNode:
            return _PLAIN if implicit[0] else _QUOTED
        return _LIST if kind is yaml.SequenceNode else _MAPPING


_SYNTAX = {
    "mapping values are not allowed": "a second ':' on one line, or a wrong indentation; put text with ': ' in quotes",
    r"found character '\t'": "a tab where YAML wants spaces",
    "found character '@'": "text that begins with '@' must be in quotes",
    "found character '`'": "text that begins with '`' must be in quotes",
    "found character '%'": "text that begins with '%' must be in quotes",
    "could not find expected ':'": "a key without its ':'",
    "expected <block end>": "the indentation doesn't fit the lines above",
    "but found '<block": "the indentation doesn't fit the lines above",
    "expected ',' or '}'": "a '{' without its '}', or a missing comma",
    "expected ',' or ']'": "a '[' without its ']', or a missing comma",
    "found unexpected end of stream": "a quote that is never closed",
    "found undefined alias": "an alias (*name) without its anchor (&name); put text that begins with '*' in quotes",
    "but found another document": "more than one document in a file ('---')",
    "did not find expected alphabetic": "text that begins with '&' or '*' must be in quotes",
    "expected alphabetic or numeric": "text that begins with '&' or '*' must be in quotes",
    "undefined tag handle": "a tag ('!...'); scenarios have none",
    "while parsing a tag": "a tag ('!...'); scenarios have none",
}


def _compose(text: str, file: str | None) -> yaml.Node | None:
    try:
        loader = _Loader(text)
        try:
            return loader.get_single_node()
        finally:
            loader.dispose()
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1
        code = error.character if isinstance(error.character, int) else ord(error.character)
        raise ScenarioError(f"the character U+{code:04X} isn't allowed", file=file, line=line) from None
    except yaml.MarkedYAMLError as error:
        said = f"{error.context or ''} {error.problem or ''}"
        short = next((ours for theirs, ours in _SYNTAX.items() if theirs in said), (error.problem or "").strip())
        opened = any(word in said for word in ("end of stream", "expected ',' or", "expected ':'"))
        mark = (error.context_mark if opened else None) or error.problem_mark or error.context_mark
        where = mark.line + 1 if mark else None
        raise ScenarioError(f"this isn't YAML: {short}", file=file, line=where) from None
    except RecursionError:
        raise ScenarioError("this is nested too deeply", file=file) from None


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


class _Reader:
    """Turns nodes into plain data and remembers their places."""

    def __init__(self, file: str | None):
        self.file = file
        self.places: dict[KeyPath, Place] = {}
        self.seen = 0
        self.open: set[int] = set()

    def value(self, node: yaml.Node, path: KeyPath) -> Any:
        self.seen += 1
        # a few aliases of aliases would otherwise unfold into more values than memory holds
        if self.seen > _MOST_VALUES or id(node) in self.open:
            raise self.error(node, path, "aliases that contain themselves or unfold into too many values")
        if node.tag not in (_PLAIN, _QUOTED, _LIST, _MAPPING):
            raise self.error(
                node, path, f"the tag {node.tag.replace('tag:yaml.org,2002:', '!!')!r}: scenarios have none"
            )
        if isinstance(node, yaml.ScalarNode):
            return self.scalar(node, path) if node.tag == _PLAIN else node.value
        self.open.add(id(node))
        try:
            return self.mapping(node, path) if isinstance(node, yaml.MappingNode) else self.list(node, path)
        finally:
            self.open.discard(id(node))

    def list(self, node: yaml.Node, path: KeyPath) -> list[Any]:
        out = []
        for i, item in enumerate(node.value):
            self.places[(*path, i)] = Place(self.file, _line(item), _line(item))
            out.append(self.value(item, (*path, i)))
        return out

    def mapping(self, node: yaml.Node, path: KeyPath) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag not in (_PLAIN, _QUOTED):
                raise self.error(key_node, path, "a key must be a word, not a list or a mapping")
            key = key_node.value
            if not key:
                raise self.error(key_node, path, "a ':' without a key before it")
            if key in out:
                first = self.places[(*path, key)].key_line
                raise self.error(key_node, (*path, key), f"the key {key!r} stands here twice (first on line {first})")
            # a block mapping begins a line below its key, and the key is what a reader looks for
            line = _line(value_node) if isinstance(value_node, yaml.ScalarNode) else _line(key_node)
            self.places[(*path, key)] = Place(self.file, _line(key_node), line)
            out[key] = self.value(value_node, (*path, key))
        return out

    def scalar(self, node: yaml.ScalarNode, path: KeyPath) -> Any:
        text = node.value
        if text in _WORDS:
            return _WORDS[text]
        if _BASED.match(text):
            return int(text, 0)
        if not _NUMBER.match(text):
            return text
        if len(text) > 100:
            raise self.error(node, path, "a number of more than 100 characters")
        if _INTEGER.match(text):
            return int(text)
        number = float(text)
        if number in (float("inf"), float("-inf")):
            raise self.error(node, path, f"the number {text} is too large")
        return number

    def error(self, node: yaml.Node, path: KeyPath, message: str) -> ScenarioError:
        return ScenarioError(message, file=self.file, line=_line(node), key=spell(path) or None)


class _Dumper(yaml.SafeDumper):
    """Quotes what either YAML 1.1 or YAML 1.2 would read as something else than text."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


for _pattern in (_NUMBER, _BASED):
    _Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _pattern, list("-+.0123456789"))
_Dumper.add_representer(  # keep short lists on one line, mappings in blocks
    list, lambda dumper, value: dumper.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=_is_flat(value))
)


_Dumper.add_representer(  # what is not printable would be folded or lost outside double quotes
    str,
    lambda dumper, value: dumper.represent_scalar(
        "tag:yaml.org,2002:str", value, style=None if value.isprintable() else '"'
    ),
)


def _is_flat(value: list[Any]) -> bool:
    return not any(isinstance(item, dict | list) for item in value)


def write(data: Any) -> str:
    """YAML text of plain data, in its order, from which ``read_text`` makes equal data."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120, default_flow_style=False)


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
