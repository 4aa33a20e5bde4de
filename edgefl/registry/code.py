"""A hash of code that isn't in a file of its own: what a notebook or a script defines, with what it calls there."""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from types import CodeType, FunctionType, ModuleType
from typing import Any

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_MADE = ("__annotate__", "__annotate_func__", "__annotations__", "__annotations_cache__")


def is_main(module: str) -> bool:
    """Whether this is the name of a script or a notebook."""
    return module.partition(".")[0] in ("__main__", "__mp_main__")


def code_digest(part: Any) -> str:
    """A hash of a part's functions, and of the functions, classes and plain values of a main module that they name.

    It doesn't change with other code of the script or the notebook.  Parts of other modules count by their names.
    """
    hashed = hashlib.blake2b(digest_size=12)
    for text in _texts(part, {}):
        hashed.update(f"{len(text)} {text}".encode())
    return hashed.hexdigest()


def _texts(value: Any, seen: dict[int, Any]) -> Iterator[str]:
    """What a value consists of, as texts in a fixed order."""
    if isinstance(value, _PLAIN):
        yield repr(value)
        return
    if id(value) in seen:
        return
    seen[id(value)] = value  # a reference, so that no other object gets its id
    yield type(value).__name__
    if isinstance(value, set | frozenset):
        yield repr(sorted(map(repr, value)))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield repr(key)
            yield from _texts(item, seen)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item, seen)
    elif isinstance(value, staticmethod | classmethod):
        yield from _texts(value.__func__, seen)
    elif isinstance(value, property | functools.cached_property):
        yield from _texts(getattr(value, "func", None) or value.fget, seen)  # type: ignore[union-attr]
    elif isinstance(value, functools.partial):
        yield from _texts((value.func, value.args, value.keywords), seen)
    elif isinstance(value, FunctionType):
        yield from _function(inspect.unwrap(value), seen)
    elif isinstance(value, type):
        yield from _class(value, seen)
    elif isinstance(value, ModuleType):
        yield value.__name__
    elif is_dataclass(value):
        yield from _texts(vars(value), seen)
    else:
        yield type(value).__qualname__


def _function(function: FunctionType, seen: dict[int, Any]) -> Iterator[str]:
    yield _qualified_name(function)
    if not is_main(function.__module__ or ""):
        return
    names: list[str] = []
    for code in _codes(function.__code__):
        constants = [c for c in code.co_consts if not isinstance(c, CodeType)]
        yield f"{code.co_code.hex()} {code.co_names} {code.co_varnames}"
        yield from _texts(constants, seen)
        names += code.co_names
    yield from _texts((function.__defaults__, function.__kwdefaults__), seen)
    for cell in function.__closure__ or ():
        try:
            yield from _texts(cell.cell_contents, seen)
        except ValueError:  # it is empty yet
            yield "empty"
    for name in dict.fromkeys(names):
        if name in function.__globals__:
            yield name
            yield from _texts(function.__globals__[name], seen)


def _qualified_name(value: type | FunctionType) -> str:
    """Module and name; a script has one name in all processes."""
    module = "__main__" if is_main(value.__module__ or "") else value.__module__
    return f"{module}.{value.__qualname__}"


def _codes(code: CodeType) -> Iterator[CodeType]:
    """A function's code and that of the functions within it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _class(owner: type, seen: dict[int, Any]) -> Iterator[str]:
    yield _qualified_name(owner)
    if not is_main(owner.__module__):
        return
    yield from _texts(owner.__bases__, seen)
    for name, value in vars(owner).items():
        made = name.startswith("__") and not isinstance(value, FunctionType | classmethod | staticmethod)
        if not (made or name in _MADE or name == "_abc_impl" or name.startswith("__pydantic")):
            yield name
            yield from _texts(value, seen)
