"""Dataclasses as plain JSON data, and back: ``to_data`` and ``from_data``, the one pair for all that travels.

A class whose data isn't that of its fields has a pair of its own: ``to_data()`` with ``from_data(raw)``, or with
``load_data(raw)`` where the object is there already.
"""

from __future__ import annotations

import types
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import fields
from functools import cache, partial
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
Reader = Callable[[Any], Any]


def to_data(value: Any) -> Any:
    """Mappings, lists, text and numbers; a mapping whose keys aren't text is a list of pairs, a set is sorted."""
    if hasattr(value, "to_data"):
        return value.to_data()
    if hasattr(value, "__dataclass_fields__"):
        return {name: to_data(getattr(value, name)) for name in _names(value.__class__)}
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            return {key: to_data(each) for key, each in value.items()}
        return [[to_data(key), to_data(each)] for key, each in value.items()]
    if isinstance(value, list | tuple):
        return [to_data(each) for each in value]
    if isinstance(value, Set):  # whose own order differs between processes
        return sorted(map(to_data, value))
    return value


def from_data(cls: type[T], raw: Any, *, strict: bool = False) -> T:
    """The object of which ``to_data`` made this; it may have been JSON.  Raises TypeError for fields of another class.

    Only what JSON can't tell is made anew, by the types of fields: dataclasses, tuples, sets and mappings.  Values of
    other types, such as TypedDict, stay as they are.  With ``strict`` numbers and texts have their type, or TypeError.
    """
    hint: Any = cls
    made: T = _reader(hint, strict)(raw)
    return made


def load_data(held: Any, raw: Mapping[str, Any]) -> None:
    """Give the fields of a dataclass's object that ``raw`` names these values, read as a strict ``from_data`` does."""
    for name, value in raw.items():
        setattr(held, name, _reader(_types(held.__class__)[name], True)(value))


@cache
def _names(cls: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(cls) if field.init)


_types = cache(get_type_hints)


@cache
def _reader(hint: Any, strict: bool = False) -> Reader:
    hint = getattr(hint, "__value__", hint)
    origin, args = get_origin(hint), get_args(hint)
    if strict and hint in _SCALARS:
        return partial(_check_scalar, hint)
    if origin is Literal:
        return _same
    if origin in (Union, types.UnionType):
        arms = [_reader(arm, strict) for arm in args if arm is not type(None)]
        several = next((arm for arm in arms if arm is not _same), _same)
        if strict and len(arms) == 1:
            return lambda raw: None if raw is None else several(raw)
        return lambda raw: several(raw) if isinstance(raw, list | dict) else raw
    if hasattr(hint, "from_data"):
        made: Reader = hint.from_data
        return made
    if hasattr(hint, "__dataclass_fields__"):
        hints = _types(hint)
        readers = {name: reader for name in _names(hint) if (reader := _reader(hints[name], strict)) is not _same}
        return lambda raw: hint(**{n: readers[n](v) if n in readers else v for n, v in raw.items()})
    if origin is tuple and len(args) == 2 and args[1] is Ellipsis:
        each = _reader(args[0], strict)
        return tuple if each is _same else lambda raw: tuple(map(each, raw))
    if origin is tuple:
        readers_of = [_reader(arg, strict) for arg in args]
        return lambda raw: tuple(read(value) for read, value in zip(readers_of, raw, strict=True))
    if origin in (set, frozenset) or (origin is not None and issubclass(origin, Sequence)):
        each, into = _reader(args[0], strict), list if issubclass(origin, Sequence) else origin
        return _same if into is list and each is _same else lambda raw: into(map(each, raw))
    if origin is not None and issubclass(origin, Mapping):
        key, value = (_reader(arg, strict) for arg in (*args, float)[:2])  # a Counter may count seconds
        into_mapping = Counter if origin is Counter else dict
        if args[0] is str:
            if strict:
                return lambda raw: into_mapping({_check_scalar(str, k): value(v) for k, v in raw.items()})
            return (
                _same
                if value is _same and into_mapping is dict
                else lambda raw: into_mapping({k: value(v) for k, v in raw.items()})
            )
        return lambda raw: into_mapping({key(k): value(v) for k, v in raw})
    return _same


def _same(raw: Any) -> Any:
    return raw


_SCALARS: dict[Any, tuple[type, ...]] = {int: (int,), float: (float, int), str: (str,), bool: (bool,)}
"""Types of JSON's scalars by that of a field."""


def _check_scalar(hint: type, raw: Any) -> Any:
    if type(raw) not in _SCALARS[hint]:
        raise TypeError(f"{raw!r:.40} where there is to be {hint.__name__}")
    return raw
