"""What a record is: a frozen dataclass whose fields say their type, their unit and their meaning.

::

    class Measured(Record):
        \"\"\"What was measured beside a prediction.\"\"\"

        measured_peak_memory_bytes: int | None
        \"\"\"The peak of torch's allocator; null where the work wasn't metered\"\"\"
        memory_error: Share | None
        \"\"\"(predicted - measured) / measured peak\"\"\"
        part: str | Maybe = UNSET
        \"\"\"Name of the part; only where a schedule offers several\"\"\"

The text under a field is its meaning on the reference page and in the JSON Schema.  Its unit is in its name
(``_bytes``, ``_seconds``) or in its type (``Share``, ``Clients``).  ``| None`` is a field that may be null, ``| Maybe``
one that only some records have.
"""

from __future__ import annotations

import ast
import inspect
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass
from functools import cache
from itertools import pairwise
from math import nan
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
from msgspec import UNSET, UnsetType

from edgefl.errors import suggestion

__all__ = [
    "UNSET", "ByKind", "Bytes", "Clients", "Flights", "Keys", "Maybe", "Record", "Rounds", "FieldRow", "Samples",
    "Share", "Unit", "copy_fields", "fields_of", "or_nan", "part_of", "to_data",
]  # fmt: skip

Maybe = UnsetType
"""The type of UNSET, the value of a field that this record doesn't have."""

T = TypeVar("T")
R = TypeVar("R", bound="Record")


@dataclass(frozen=True)
class Unit:
    """Annotation of a type with the unit of its numbers, where the field's name doesn't end with it."""

    name: str


@dataclass(frozen=True)
class Keys:
    """Annotation of a mapping with what its names are, in capitals, as pages write them."""

    name: str


Share = Annotated[float, Unit("share")]
Clients = Annotated[int, Unit("clients")]
Flights = Annotated[int, Unit("tasks")]
Bytes = Annotated[int, Unit("bytes")]
Samples = Annotated[int, Unit("samples")]
Rounds = Annotated[int, Unit("rounds")]
ByKind = Annotated[Mapping[str, T], Keys("KIND")]

UNITS = {
    "bytes": "bytes", "seconds": "s", "joules": "J", "watts": "W", "flops": "FLOPs", "macs": "MACs",
    "macs_per_sample": "MACs", "grams": "g", "share": "share", "samples": "samples", "percent": "%",
}  # fmt: skip
"""Units by the last words of a field's name."""


def _numbers(value: object) -> object:
    """What numpy's values are written as."""
    if type(value).__module__ == "numpy":  # which isn't imported for it: that takes long
        return value.tolist()  # type: ignore[attr-defined]
    raise TypeError(f"a record can't hold a value of type {type(value).__name__}: {value!r:.80}")


ENCODER = msgspec.json.Encoder(enc_hook=_numbers)


def or_nan(number: float | None) -> float:
    """NaN for a number that nobody knows, so that sums with it aren't known either."""
    return nan if number is None else number


def to_data(record: object) -> Any:
    """A record as JSON data: dictionaries, lists, text, numbers; NaN and infinity are None, what is UNSET is left out.

    Raises TypeError for a value that JSON can't represent.
    """
    return msgspec.json.decode(ENCODER.encode(record))


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Record:
    """Base of all that is written to a run's folder and of all answers of commands.

    A subclass is a frozen dataclass with keyword arguments only; it may inherit the fields of several.  Those of the
    classes in ``maybe`` are UNSET in some of its records, all of them together: a reader asks for which before it
    reads them, so that a type checker sees their own types.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __init_subclass__(cls, maybe: Sequence[type[Record]] = ()) -> None:
        absent = {name: hint | UnsetType for group in maybe for name, hint in types_of(group).items()}
        cls.__annotations__ = {**cls.__annotations__, **absent}
        for name in absent:
            setattr(cls, name, UNSET)
        dataclass(frozen=True, kw_only=True)(cls)

    def to_data(self) -> dict[str, Any]:
        """The record as JSON data.  NaN and infinity are None; what is UNSET is left out."""
        found: dict[str, Any] = to_data(self)
        return found

    if not TYPE_CHECKING:  # for callers that took answers as dictionaries; edgefl itself reads fields

        def __getitem__(self, name: str) -> Any:
            """The value of a field, for callers that took the answer as a dictionary.  Raises KeyError."""
            if name not in self.__dataclass_fields__ or (value := getattr(self, name)) is UNSET:
                raise KeyError(name)
            return value

        def __contains__(self, name: object) -> bool:
            """Whether the record has this field, for the same callers."""
            return name in self.__dataclass_fields__ and getattr(self, str(name)) is not UNSET


def types_of(cls: type[Record]) -> Mapping[str, Any]:
    """The type of each field, with its annotations, ``{name: type}``."""
    if cls not in _TYPES:
        hints = get_type_hints(cls, include_extras=True)
        _TYPES[cls] = {name: hints[name] for name in cls.__dataclass_fields__}
    return _TYPES[cls]


_TYPES: dict[type, Mapping[str, Any]] = {}


def copy_fields(group: type[Record], source: object) -> dict[str, Any]:
    """The fields of a class of records, which ``source`` has under the same names."""
    return {name: getattr(source, name) for name in types_of(group)}


def whole_of(cls: type[Record]) -> type[Record]:
    """The class of which this is a part, or the class itself."""
    whole: type[Record] = getattr(cls, "__part_of__", cls)
    return whole


def part_of(whole: type[Record]) -> Callable[[type[R]], type[R]]:
    """The decorator of a Record that has some of the fields of ``whole``, for a reader that needs no others.

    A field's type must be the same, or itself a part of it.  TypeError for a field or a type that ``whole`` hasn't.
    """

    def check(cls: type[R]) -> type[R]:
        known = types_of(whole)
        for name, of_part in types_of(cls).items():
            if name not in known:
                raise TypeError(f"{whole.__name__} has no field {name!r}{suggestion(name, known)}")
            if not _fits(of_part, known[name]):
                raise TypeError(f"{cls.__name__}.{name} is {of_part!r}, but {whole.__name__}'s is {known[name]!r}")
        cls.__part_of__ = whole  # type: ignore[attr-defined]
        return cls

    return check


def _fits(part: Any, whole: Any) -> bool:
    """Whether values of the type ``whole`` can be read as ``part``, which may have fewer annotations."""
    of_part, of_whole = _arms(part), _arms(whole)
    return len(of_part) == len(of_whole) and all(any(_fits_one(a, b) for a in of_part) for b in of_whole)


def _fits_one(part: Any, whole: Any) -> bool:
    if part == whole or (isinstance(part, type) and getattr(part, "__part_of__", None) is whole):
        return True
    of_part, of_whole = get_args(part), get_args(whole)
    if get_origin(part) is None or get_origin(part) is not get_origin(whole) or len(of_part) != len(of_whole):
        return False
    return all(_fits(a, b) for a, b in zip(of_part, of_whole))


def _arms(hint: Any) -> list[Any]:
    """The types that a union is of, or the type itself, without annotations."""
    hint = _bare(hint)
    return [arm for each in get_args(hint) for arm in _arms(each)] if _is_union(hint) else [hint]


def _is_union(hint: Any) -> bool:
    return get_origin(hint) in (Union, types.UnionType)


def _bare(hint: Any) -> Any:
    """A type without its annotations."""
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    return hint


class FieldRow(NamedTuple):
    """A field of a record, or of a record in it, as a row of a page."""

    name: str
    """Its path: ``excluded.samples``, ``server_works[].seconds``, ``clients.KIND``"""
    type: str
    """JSON's: ``integer``, ``number``, ``string``, ``boolean``, ``list``, ``object``"""
    unit: str
    """Empty for what isn't a quantity"""
    meaning: str
    """Markdown in one line"""
    nullable: bool
    """Whether it may be null"""
    always: bool
    """Whether every record has it"""


def fields_of(cls: type[Record]) -> list[FieldRow]:
    """The rows of a record, in order; fields of records in it follow in its place.

    Raises TypeError for a field without a meaning.
    """
    return [row for name, hint in types_of(cls).items() for row in _rows(cls, name, hint)]


def _rows(cls: type[Record], name: str, hint: Any) -> Iterator[FieldRow]:
    meaning = meanings(cls).get(name)
    if not meaning:
        raise TypeError(f"{cls.__name__}.{name} has no meaning: write a text under the field")
    shown, inside, unit, nullable, always = name, hint, "", False, True
    while True:  # from the field's own type to that of its innermost values
        origin, args = get_origin(inside), get_args(inside)
        if origin is Annotated:
            units = [mark.name for mark in args[1:] if isinstance(mark, Unit)]
            keys = [mark.name for mark in args[1:] if isinstance(mark, Keys)]
            unit = units[0] if units else unit
            inside = args[0]
            if keys:
                shown += f".{keys[0]}"
                for _ in keys[0].split("."):
                    inside = get_args(_bare(inside))[1]
        elif _is_union(inside):
            nullable |= type(None) in args
            always &= UnsetType not in args
            rest = tuple(each for each in args if each not in (type(None), UnsetType))
            if len(rest) > 1:
                break
            inside = rest[0]
        elif origin is not None and issubclass(origin, Sequence):
            shown, inside = f"{shown}[]", args[0]
        else:
            break
    if isinstance(inside, type) and issubclass(inside, Record):
        for row in fields_of(inside):
            yield row._replace(name=f"{shown}.{row.name}", always=row.always and always)
        return
    yield FieldRow(shown, _json_type(inside), unit or _unit_of(name, inside), meaning, nullable, always)


def always(hint: Any) -> bool:
    """Whether every record has a field of this type."""
    return UnsetType not in get_args(hint)


def _unit_of(name: str, hint: Any) -> str:
    """The unit that a number's name ends with."""
    if hint not in (int, float):
        return ""
    words = name.split("_by_")[0].split("_")
    return next((unit for n in (3, 1) if (unit := UNITS.get("_".join(words[-n:])))), "")


_JSON = {int: "integer", float: "number", str: "string", bool: "boolean"}


def _json_type(hint: Any) -> str:
    if _is_union(hint):
        return " or ".join(dict.fromkeys(_json_type(each) for each in get_args(hint)))
    if get_origin(hint) is Literal:
        return "string"
    if hint in _JSON:
        return _JSON[hint]
    return "object" if get_origin(hint) is not None else "any"


def meanings(cls: type[Record]) -> Mapping[str, str]:
    """The text under each field of a class and of its bases, ``{name: text}``, each in one line."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if not issubclass(base, Record) or base is Record:
            continue
        body = _statements(base.__module__)
        for part in base.__qualname__.split("."):
            body = next((each.body for each in body if isinstance(each, ast.ClassDef) and each.name == part), [])
        for statement, below in pairwise(body):
            if (
                isinstance(statement, ast.AnnAssign)
                and isinstance(statement.target, ast.Name)
                and isinstance(below, ast.Expr)
                and isinstance(below.value, ast.Constant)
                and isinstance(below.value.value, str)
            ):
                found[statement.target.id] = " ".join(below.value.value.split())
    return found


@cache
def _statements(module: str) -> list[ast.stmt]:
    return ast.parse(inspect.getsource(sys.modules[module])).body
