"""Reads YAML files (scenarios, grids and profiles) as plain data, with the line of each key and value.

Numbers and booleans follow YAML 1.2, so ``1e-3`` is a number, and ``on``, ``1:30`` and ``010:5`` are text.  Tags are
refused, so that a file can't create Python objects.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml
from yaml.composer import Composer

from edgefl.errors import EdgeflError, printable

KeyPath = tuple[str | int, ...]
"""Keys and list indices from the top of a file to a value."""

Refuse = Callable[[str, int | None, KeyPath], EdgeflError]
"""Makes the error to raise, from the message, the line (from 1, None if unknown) and the path (empty if unknown)."""

_PLAIN, _QUOTED, _LIST, _MAPPING = "plain", "quoted", "list", "mapping"
_INTEGER = re.compile(r"[-+]?[0-9]+\Z")
_BASED = re.compile(r"0x[0-9a-fA-F]+\Z|0o[0-7]+\Z")
_NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")
_WORDS: dict[str, bool | float | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf"), float("inf")),
    "-.inf": float("-inf"),
    ".nan": float("nan"),
}
MOST_VALUES = 100_000
"""So many are read in 1.4 s of processor time, of the 5 s within which a hostile file is to be refused."""
DEEPEST = 100
"""Most levels of mappings and lists in each other: PyYAML's own recursion ends between 480 and 500."""


@dataclass(frozen=True)
class KeyPosition:
    """Position of a value: a file, the line of its key and the line of the value itself (from 1).

    A value from an override on the command line has no lines.
    """

    file: str | None
    key_line: int | None = None
    value_line: int | None = None


def spell(path: KeyPath) -> str:
    """The path as text: ``("fleet", "links", 0)`` becomes ``fleet.links[0]``, in one line."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{printable(part)}" for part in path).removeprefix(".")


def nearest(
    places: Mapping[KeyPath, KeyPosition], path: KeyPath, *, at_key: bool = False
) -> tuple[str | None, int | None] | None:
    """File and line of the value (or key) at ``path``, or of the nearest enclosing value that has a position.

    None if no enclosing value has one.
    """
    for length in range(len(path), -1, -1):
        place = places.get(path[:length])
        if place is not None:
            # if the value is missing, report the line of the key that should contain it
            of_key = at_key or length < len(path) or place.value_line is None
            return place.file, place.key_line if of_key else place.value_line
    return None


def decode(raw: bytes, refuse: Refuse) -> str:
    """The text of a file, without a byte order mark.  Raises the error of ``refuse`` if it isn't UTF-8."""
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise refuse(f"the file isn't UTF-8 text (byte 0x{raw[error.start]:02x}); save it as UTF-8", line, ()) from None


def parse_yaml(
    text: str, refuse: Refuse, *, file: str | None = None, nouns: str = "files", merge: bool = False
) -> tuple[Any, dict[KeyPath, KeyPosition]]:
    """The value of a YAML text (mappings, lists, text, numbers, booleans, None), and the position of each part by path.

    The top value has the path ``()``; an empty text has no positions.  With ``merge``, ``<<: *name`` copies the keys of
    another mapping.  Raises the error of ``refuse`` for invalid YAML, a repeated key and a tag.  Messages about tags
    call the files ``nouns``.
    """
    reader = _Reader(refuse, file, nouns, merge)
    try:
        node = _compose(text, refuse, nouns)
        if node is None:
            return None, {}
        reader.places[()] = KeyPosition(file, _line(node), _line(node))
        return reader.value(node, ()), reader.places
    except RecursionError:
        raise refuse("the YAML is nested too deeply", None, ()) from None


class _Loader(yaml.BaseLoader):
    """Composes nodes and tags each scalar as plain or quoted; never constructs an object."""

    def resolve(self, kind: Any, value: Any, implicit: Any) -> str:
        if kind is yaml.ScalarNode:
            return _PLAIN if implicit[0] else _QUOTED
        return _LIST if kind is yaml.SequenceNode else _MAPPING


_Fast: Any = _Loader
if yaml.__with_libyaml__:

    class _FastLoader(Composer, yaml.CBaseLoader):
        """The same with libyaml's parser, ten times as fast.

        The composer is PyYAML's, because libyaml's overflows the stack on deeply nested input.
        """

        def __init__(self, text: str):
            yaml.CBaseLoader.__init__(self, text)
            Composer.__init__(self)

        resolve = _Loader.resolve

    _Fast = _FastLoader


_SYNTAX = {
    "mapping values are not allowed": "a second ':' on one line, or a wrong indentation; put text with ': ' in quotes",
    r"found character '\t'": "a tab where YAML requires spaces",
    "found character '@'": "text that begins with '@' must be in quotes",
    "found character '`'": "text that begins with '`' must be in quotes",
    "found character '%'": "text that begins with '%' must be in quotes",
    "could not find expected ':'": "a key without a ':' after it",
    "expected <block end>": "the indentation doesn't match the lines above",
    "but found '<block": "the indentation doesn't match the lines above",
    "expected ',' or '}'": "a '{' without a closing '}', or a missing comma",
    "expected ',' or ']'": "a '[' without a closing ']', or a missing comma",
    "found unexpected end of stream": "a quote that is never closed",
    "found undefined alias": "an alias (*name) without its anchor (&name); put text that begins with '*' in quotes",
    "but found another document": "more than one document in a file ('---')",
    "did not find expected alphabetic": "text that begins with '&' or '*' must be in quotes",
    "expected alphabetic or numeric": "text that begins with '&' or '*' must be in quotes",
    "undefined tag handle": "a tag ('!...'), which {nouns} can't have",
    "while parsing a tag": "a tag ('!...'), which {nouns} can't have",
}


def _nodes(loader: Any) -> yaml.Node | None:
    try:
        node: yaml.Node | None = loader.get_single_node()
        return node
    finally:
        loader.dispose()


def _compose(text: str, refuse: Refuse, nouns: str) -> yaml.Node | None:
    try:
        return _nodes(_Fast(text))
    except (yaml.YAMLError, UnicodeEncodeError):
        pass  # parse again with PyYAML, whose errors give more detail than libyaml's
    try:
        return _nodes(_Loader(text))
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1
        code = error.character if isinstance(error.character, int) else ord(error.character)
        raise refuse(f"the character U+{code:04X} isn't allowed", line, ()) from None
    except yaml.MarkedYAMLError as error:
        original = f"{error.context or ''} {error.problem or ''}"
        short = next((ours for theirs, ours in _SYNTAX.items() if theirs in original), (error.problem or "").strip())
        unclosed = any(word in original for word in ("end of stream", "expected ',' or", "expected ':'"))
        mark = (error.context_mark if unclosed else None) or error.problem_mark or error.context_mark
        where = mark.line + 1 if mark else None
        raise refuse(f"this isn't valid YAML: {short.replace('{nouns}', nouns)}", where, ()) from None


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


@dataclass
class _Reader:
    """Turns nodes into plain data and records the position of each."""

    refuse: Refuse
    file: str | None
    nouns: str
    merge: bool

    def __post_init__(self) -> None:
        self.places: dict[KeyPath, KeyPosition] = {}
        self.seen = 0
        # ids of the nodes that are being read: the document holds them, so that none is given again
        self.open: set[int] = set()

    def value(self, node: yaml.Node, path: KeyPath) -> Any:
        self.seen += 1
        # a few nested aliases could otherwise expand into more values than memory holds
        if self.seen > MOST_VALUES or id(node) in self.open:
            raise self.error(node, path, "aliases contain themselves or expand into too many values")
        if node.tag not in (_PLAIN, _QUOTED, _LIST, _MAPPING):
            tag = node.tag.replace("tag:yaml.org,2002:", "!!")
            raise self.error(node, path, f"the tag {tag!r} isn't allowed: {self.nouns} can't have tags")
        if isinstance(node, yaml.ScalarNode):
            return self.scalar(node, path) if node.tag == _PLAIN else node.value
        if len(path) >= DEEPEST:
            raise self.refuse("the YAML is nested too deeply", _line(node), path[:2])
        self.open.add(id(node))
        try:
            return self.mapping(node, path) if isinstance(node, yaml.MappingNode) else self.list(node, path)
        finally:
            self.open.discard(id(node))

    def list(self, node: yaml.Node, path: KeyPath) -> list[Any]:
        out = []
        for i, item in enumerate(node.value):
            self.places[(*path, i)] = KeyPosition(self.file, _line(item), _line(item))
            out.append(self.value(item, (*path, i)))
        return out

    def mapping(self, node: yaml.Node, path: KeyPath) -> dict[str, object]:
        out: dict[str, object] = {}
        lines: dict[str, int] = {}
        for source in self.merge_sources(node, path):
            out |= self.value(source, path)
        for key_node, value_node in node.value:
            if self.merge and _is_merge(key_node):
                continue
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag not in (_PLAIN, _QUOTED):
                raise self.error(key_node, path, "a key must be a word, not a list or a mapping")
            key = key_node.value
            if not key:
                raise self.error(key_node, path, "a ':' has no key before it")
            if key in lines:
                message = f"the key {key!r} is given twice (first on line {lines[key]})"
                raise self.error(key_node, (*path, key), message)
            lines[key] = _line(key_node)
            # a block mapping begins on the line below its key; messages name the key's line
            line = _line(value_node) if isinstance(value_node, yaml.ScalarNode) else lines[key]
            self.places[(*path, key)] = KeyPosition(self.file, lines[key], line)
            out[key] = self.value(value_node, (*path, key))
        return out

    def merge_sources(self, node: yaml.Node, path: KeyPath) -> Iterator[yaml.Node]:
        """The mappings that ``<<`` copies; a later one overrides an earlier one."""
        if not self.merge:
            return
        for value_node in [value_node for key_node, value_node in node.value if _is_merge(key_node)]:
            for source in reversed(value_node.value) if isinstance(value_node, yaml.SequenceNode) else [value_node]:
                if not isinstance(source, yaml.MappingNode):
                    raise self.error(source, path, "'<<' must name a mapping (<<: *name) or a list of mappings")
                yield source

    def scalar(self, node: yaml.ScalarNode, path: KeyPath) -> Any:
        text = node.value
        if text in _WORDS:
            return _WORDS[text]
        if _BASED.match(text):
            return int(text, 0)
        if not _NUMBER.match(text):
            return text
        if len(text) > 100:
            raise self.error(node, path, "a number can't have more than 100 characters")
        if _INTEGER.match(text):
            return int(text)
        number = float(text)
        if number in (float("inf"), float("-inf")):
            raise self.error(node, path, f"the number {text} is too large")
        return number

    def error(self, node: yaml.Node, path: KeyPath, message: str) -> EdgeflError:
        return self.refuse(message, _line(node), path)


def _is_merge(key_node: yaml.Node) -> bool:
    return key_node.tag == _PLAIN and key_node.value == "<<"


class _Dumper(yaml.SafeDumper):
    """Quotes text that YAML 1.1 or YAML 1.2 would read as another type, and writes no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


for _pattern in (_NUMBER, _BASED):
    _Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _pattern, list("-+.0123456789"))
_Dumper.add_representer(  # keep short lists on one line, mappings in blocks
    list, lambda dumper, value: dumper.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=_is_flat(value))
)
_Dumper.add_representer(  # unprintable characters would be folded or lost outside double quotes
    str,
    lambda dumper, value: dumper.represent_scalar(
        "tag:yaml.org,2002:str", value, style=None if value.isprintable() else '"'
    ),
)


def _is_flat(value: list[Any]) -> bool:
    return not any(isinstance(item, dict | list) for item in value)


def write(data: Any, width: int = 120) -> str:
    """YAML text of plain data, in its order; ``parse_yaml`` returns equal data for it."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=width, default_flow_style=False)


def flow(value: Any) -> str:
    """Plain data as YAML on one line, as ``PATH=VALUE`` takes it."""
    text: str = yaml.dump(
        {"v": value}, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=sys.maxsize, default_flow_style=True
    )
    return text.removeprefix("{v: ").removesuffix("}\n")
