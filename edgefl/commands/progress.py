"""Callbacks by which a command reports its progress."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

OnProgress = Callable[[str, Mapping[str, Any]], None]
"""Called with an event's name and its facts: ``prepare``, ``combination``, ``start``, ``record``, ``done``, ..."""

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")


def silent(event: str, facts: Mapping[str, Any]) -> None:
    """An ``OnProgress`` that does nothing."""


def messages(on_progress: OnProgress, prefix: str = "") -> Callable[[str], None]:
    """A callback for lines of text, each passed on as a ``prepare`` event."""

    def on_message(text: str) -> None:
        on_progress("prepare", {"what": prefix + text})

    return on_message


def accepts_observe(command: Callable[Arguments, Answer]) -> Callable[Arguments, Answer]:
    """Let a command take ``observe=``, the former name of ``on_progress=``."""

    @wraps(command)
    def renamed(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Answer:
        if "observe" in kwargs:
            kwargs["on_progress"] = kwargs.pop("observe")
        return command(*args, **kwargs)

    return renamed
