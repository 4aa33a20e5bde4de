"""Whether the functions that a part of a plug-in defines take what edgefl calls them with."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

_MADE_WITH: dict[str, tuple[str, ...]] = {
    "method": ("options", "setting"),
    "schedule": ("options", "blocks"),
    "model": ("description",),
    "partition": ("labels", "clients", "argument", "rng"),
    "selection": ("options", "section", "seed"),
    "round policy": ("options", "section"),
    "budget": (),
    "aggregation": ("options", "section"),
    "server optimizer": ("options", "section"),
    "codec": ("options",),
    "metric": ("options",),
    "optimizer": ("options",),
    "availability": ("options", "seed"),
    "attack": ("options", "classes", "seed"),
}
"""What edgefl calls a part with, by noun: a class to make an object, or a function."""

_FUNCTIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "tower": {"build": ("description", "norm")},
    "edit": {
        "names": ("edit",),
        "restrict": ("edit", "active", "received"),
        "apply": ("edit", "module", "received"),
        "fold": ("edit", "module"),
    },
}
"""Functions of parts that need no base class, by noun."""


def unfit(noun: str, part: Any) -> str:
    """The first function that can't be called as edgefl does, as the end of a message; "" if all can."""
    for function, given in _functions_and_arguments(noun, part):
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):  # of a class that is written in C
            continue
        try:
            signature.bind(*given)
        except TypeError:
            return f"has {_signature_text(function, signature)}, which is called with ({', '.join(given)})"
    for name, own, above in _overridden(part) if isinstance(part, type) else ():
        if isinstance(vars(above)[name], FunctionType) and not (callable(own) or hasattr(own, "__get__")):
            return f"has {name} = {own!r:.60}, which can't be called"
        if isinstance(vars(above)[name], FunctionType) and isinstance(own, classmethod):
            return f"has {name} as a classmethod, which is called on an object: write self in place of cls"
    return ""


def _functions_and_arguments(noun: str, part: Any) -> Iterator[tuple[Any, tuple[str, ...]]]:
    """The functions that a plug-in wrote, ``self`` included, each with the names of what it is called with."""
    if not isinstance(part, type):
        if noun == "metric":
            yield part, ("confusion",)
        elif noun in _MADE_WITH:
            yield part, _MADE_WITH[noun]
        elif noun == "data set" and hasattr(part, "build"):
            yield part.build, ("wanted",) if hasattr(part, "find") else ("size", "on_message")
        return
    if noun in _MADE_WITH and _wrote(_owner(part, "__init__")):
        yield part.__init__, ("self", *_MADE_WITH[noun])  # type: ignore[misc]
    for name, given in _FUNCTIONS.get(noun, {}).items():
        if isinstance(inspect.getattr_static(part, name), staticmethod | classmethod):
            yield getattr(part, name), given
    varies = noun == "method" and getattr(part, "varies", False)
    for name, own, above in _overridden(part):
        if type(own) is type(vars(above)[name]) and inspect.isroutine(getattr(part, name)):
            more = ("variant",) if varies and name in ("work", "evaluate_client") else ()
            yield getattr(part, name), (*_required_names(getattr(above, name)), *more)


def _overridden(part: type) -> Iterator[tuple[str, Any, type]]:
    """The names that a plug-in wrote in place of edgefl's, each with its value and edgefl's class that has it."""
    for name in dir(part):
        if not name.startswith("_") and _wrote(owner := _owner(part, name)):
            above = next((c for c in part.__mro__ if _top(c) == "edgefl" and name in vars(c)), None)
            if above is not None:
                yield name, vars(owner)[name], above


def _required_names(function: Any) -> tuple[str, ...]:
    """The names of the arguments that a function of a base class can't be called without."""
    parameters = inspect.signature(function).parameters.values()
    return tuple(p.name for p in parameters if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD)


def _owner(part: type, name: str) -> type:
    """The class whose definition of ``name`` holds."""
    return next((c for c in part.__mro__ if name in vars(c)), object)


def _wrote(owner: type) -> bool:
    """Whether a class is neither Python's nor of a library that edgefl is made of."""
    return _top(owner) not in ("edgefl", "builtins", "abc", "pydantic", "torch", "typing")


def _top(owner: type) -> str:
    return owner.__module__.partition(".")[0]


def _signature_text(function: Any, signature: inspect.Signature) -> str:
    """``work(self, kind) in line 12 of methods.py``."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    place = f" in line {code.co_firstlineno} of {Path(code.co_filename).name}" if code is not None else ""
    name = getattr(function, "__name__", type(function).__name__)
    return f"{name}({', '.join(signature.parameters)}){place}"
