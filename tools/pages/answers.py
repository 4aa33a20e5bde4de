"""The block of the page ``json.md``: the fields of commands' answers, from the classes that ``@command`` names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from edgefl.commands.sweep.answer import CellHead
from edgefl.commands.validate.schemas import answers
from edgefl.records.record import FieldRow, Keys, Record, fields_of, meanings, types_of
from tools.pages.markdown import prose, table

ANSWERS = answers()

INLINE = 7
"""A record with up to this many fields stands in the table of the only record that has it."""


def answer_blocks() -> dict[str, str]:
    """The block of the page: for each command its answer's own fields, then a section for each record in it.

    A record that several answers have has its section in the first.
    """
    parents = _parents()
    told: set[type[Record]] = set()
    parts: list[str] = []
    for name, answer in ANSWERS.items():
        parts += [f"## {name}", prose(answer.__doc__ or "", ()), _table(answer, parents)]
        for record in _inside(answer):
            if record in told or record in ANSWERS.values() or _inlined(record, parents):
                continue
            told.add(record)
            parts += [f"### {record.__name__}", prose(record.__doc__ or "", ()), _table(record, parents)]
    return {"answers": "\n\n".join(parts)}


def _table(record: type[Record], parents: dict[type[Record], set[type[Record]]]) -> str:
    rows = [(f"`{row.name}`", row.unit or "–", _meaning(row)) for row in _rows(record, parents)]
    return table(("Field", "Unit", "Meaning"), rows)


def _meaning(row: FieldRow) -> str:
    told = any(word in row.meaning for word in ("only", "absent", "With `", "If the", "Without a"))
    return row.meaning if row.always or told else f"{row.meaning}; not in every answer"


def _rows(record: type[Record], parents: dict[type[Record], set[type[Record]]]) -> Iterator[FieldRow]:
    """The rows of a record: of a record in it those of its fields, or one that leads to its section."""
    rows = fields_of(record)
    for name, hint in types_of(record).items():
        mine = [row for row in rows if re.split(r"[.\[]", row.name)[0] == name]
        linked = [each for each in _records(hint) if not _inlined(each, parents)]
        if linked:
            meaning = meanings(record)[name].removesuffix(".")
            links = " or ".join(f"[{each.__name__}](#{_anchor(each)})" for each in linked)
            yield mine[0]._replace(name=_path(name, hint), unit="", meaning=f"{meaning}: {links}")
        elif name == "sets" and issubclass(record, CellHead):
            yield mine[0]._replace(name="PATH")
        else:
            yield from mine


def _anchor(record: type[Record]) -> str:
    """Where the page tells a record: in the section of the answer that it is, or in its own."""
    answers = {answer: name for name, answer in ANSWERS.items()}
    return re.sub(r"[\s-]+", "-", answers.get(record, record.__name__).lower())


def _path(name: str, hint: Any) -> str:
    """The name of a field with the brackets of a list and the words for the names of a mapping."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        keys = [mark.name for mark in args[1:] if isinstance(mark, Keys)]
        return _path(f"{name}.{keys[0]}", get_args(args[0])[1]) if keys else _path(name, args[0])
    if origin in (Union, UnionType):
        return _path(name, next(each for each in args if _records(each)))
    if origin is not None and issubclass(origin, Sequence):
        return _path(f"{name}[]", args[0])
    return name


def _records(hint: Any) -> list[type[Record]]:
    """The classes of records in a type."""
    if isinstance(hint, type) and issubclass(hint, Record):
        return [hint]
    return [record for part in get_args(hint) for record in _records(part)]


def _inside(record: type[Record]) -> Iterator[type[Record]]:
    """The records in a record, each once, in the order of its fields."""
    seen: dict[type[Record], None] = {}
    waiting = [each for kind in types_of(record).values() for each in _records(kind)]
    while waiting:
        each = waiting.pop(0)
        if each not in seen:
            seen[each] = None
            waiting[:0] = [inner for kind in types_of(each).values() for inner in _records(kind)]
    yield from seen


def _parents() -> dict[type[Record], set[type[Record]]]:
    """The records that have each record."""
    parents: dict[type[Record], set[type[Record]]] = {}
    for answer in ANSWERS.values():
        for record in (answer, *_inside(answer)):
            for kind in types_of(record).values():
                for inner in _records(kind):
                    parents.setdefault(inner, set()).add(record)
    return parents


def _inlined(record: type[Record], parents: dict[type[Record], set[type[Record]]]) -> bool:
    simple = not any(_records(kind) for kind in types_of(record).values())
    return simple and len(types_of(record)) <= INLINE and len(parents[record]) == 1
