"""The pages of ``reference/json``: the fields of commands' answers, from the classes that ``@command`` names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from edgefl.commands.sweep.answer import CellHead
from edgefl.commands.validate.schemas import answers
from edgefl.records.record import FieldRow, Keys, Record, fields_of, meanings, types_of
from tools.pages.folder import with_links
from tools.pages.markdown import first_paragraph, page, prose, table

ANSWERS = answers()

INLINE = 7
"""A record with up to this many fields stands in the table of the only record that has it."""


DOCTOR = {
    "edgefl": "Version of edgefl",
    "healthy": "Whether no check is an error",
    "checks[].name": "Name of the check: `Python`, a package, `import`, `GPU`, `cache`, `disk`, `memory`, "
    "`determinism` or `run`",
    "checks[].status": "`ok`, `warning` or `error`",
    "checks[].found": "What was found",
    "checks[].advice": "What to do about it; `null` where nothing is wrong",
}
"""The fields of ``doctor``'s answer, which is no record."""


@cache
def answer_pages() -> Mapping[str, str]:
    """Every page of ``reference/json``: its index, and one for each command with a section for each record in it.

    A record that several answers have has its section on the first one's page.
    """
    parents = _parents()
    shown: set[type[Record]] = set()
    pages = {}
    for command, own in _by_command().items():
        level = 2 if len(own) > 1 else 1
        parts: list[str] = []
        for name, answer in own.items():
            parts += [f"## {name}"] if level == 2 else []
            parts += [prose(answer.__doc__ or "", ()), _table(answer, parents)]
            for record in _inside(answer):
                if record in shown or record in ANSWERS.values() or _inlined(record, parents):
                    continue
                shown.add(record)
                heading = f"{'#' * (level + 1)} {record.__name__}"
                parts += [heading, prose(record.__doc__ or "", ()), _table(record, parents)]
        pages[command] = page(_title(command), parts)
    doctor = table(("Field", "Unit", "Meaning"), [(f"`{name}`", "–", text) for name, text in DOCTOR.items()])
    pages["doctor"] = page(_title("doctor"), ["What is wrong with this machine or this installation.", doctor])
    commands = [(f"[`{name}`](#{name})", _first_of(name)) for name in JSON_PAGES[1:]]
    index = page("JSON output", [*INTRODUCTION, table(("Command", "Its answer"), commands), *NOTATION])
    return with_links({"index": index, **pages})


INTRODUCTION = (
    "Every command prints its answer as JSON with `--as json`. In Python the function of the same name returns an "
    'object with the same fields, for example `edgefl.profile("quickstart").rows[0].peak_memory_bytes`. '
    "`edgefl.run` returns a `Run`, and the command prints a summary of it.",
    "```sh\nedgefl profile quickstart --as json > profile.json\nedgefl validate --schema profile   # its JSON Schema\n"
    "```",
)
NOTATION = (
    "## How to read the tables",
    "- A dot joins nested fields, and `[]` marks a list.\n"
    "- A word in capitals stands for a name: `KIND` is a kind of client, such as `image-text`.\n"
    "- Numbers are in base units (bytes, seconds, joules, FLOPs), and the field's name ends with the unit.\n"
    "- `null` means that there is no value, or no limit.\n"
    "- The order of fields may change between versions.",
    'From Python `answer.to_data()` gives the data that the command prints, and `answer["rows"]` works too. '
    "[Records](records.md) describes the files of a run.",
)


def _title(command: str) -> str:
    return f"JSON of edgefl {command}"


def _by_command() -> dict[str, dict[str, type[Record]]]:
    """The answers of each command by name; a command with subcommands has several."""
    found: dict[str, dict[str, type[Record]]] = {}
    for name, answer in ANSWERS.items():
        found.setdefault(name.split()[0], {})[name] = answer
    return found


JSON_PAGES = ("index", *_by_command(), "doctor")
"""The names of these pages."""


def _first_of(command: str) -> str:
    """What the answers of a command are, in a line."""
    if command == "doctor":
        return "What is wrong with this machine or this installation"
    return "; ".join(first_paragraph(answer.__doc__).removesuffix(".") for answer in _by_command()[command].values())


def _table(record: type[Record], parents: dict[type[Record], set[type[Record]]]) -> str:
    rows = [(f"`{row.name}`", row.unit or "–", _meaning(row)) for row in _rows(record, parents)]
    return table(("Field", "Unit", "Meaning"), rows)


def _meaning(row: FieldRow) -> str:
    said = any(word in row.meaning for word in ("only", "absent", "With `", "If the", "Without a"))
    return row.meaning if row.always or said else f"{row.meaning}; not in every answer"


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
    """The heading of a record: that of the answer that it is, or its own."""
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
