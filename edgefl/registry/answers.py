"""Checks of what the functions of a plug-in return, which name the function, its plug-in and its line."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from types import FunctionType
from typing import Any

from edgefl import registry
from edgefl.errors import PluginError

Check = Callable[[Any, tuple[Any, ...], Any], str]
"""``(self, arguments, answer)`` to what is wrong with the answer, as the end of a message; "" if nothing is."""


def check_answers(part: type, checks: Mapping[str, Check]) -> None:
    """Replace these functions of a class that isn't edgefl's own by ones that raise PluginError for a wrong answer."""
    for name, check in checks.items():
        function = vars(part).get(name)
        if isinstance(function, FunctionType) and part.__module__.partition(".")[0] != "edgefl":
            setattr(part, name, _with_check(function, check))


def name_function(function: Callable[..., Any]) -> str:
    """A function with its plug-in, file and line."""
    code = inspect.unwrap(function).__code__
    owner = registry.plug_ins().owner(code.co_filename)
    of = f"the plug-in {owner}, " if owner else ""
    return f"{function.__qualname__}() ({of}{code.co_filename}:{code.co_firstlineno})"


def describe_answer(value: Any) -> str:
    """What a function returned in place of what it should."""
    return "None" if value is None else f"an object of type {type(value).__name__}"


def _with_check(function: FunctionType, check: Check) -> Callable[..., Any]:
    @wraps(function)
    def call_and_check(self: Any, *args: Any, **kwargs: Any) -> Any:
        answer = function(self, *args, **kwargs)
        if fault := check(self, (*args, *kwargs.values()), answer):
            raise PluginError(f"{name_function(function)} {fault}")
        return answer

    return call_and_check
