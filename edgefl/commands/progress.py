"""What public commands share: callbacks by which they report their progress, and faults of plug-ins by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from edgefl import registry

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


def public_command(command: Callable[Arguments, Answer]) -> Callable[Arguments, Answer]:
    """A public command.  It raises what a plug-in raises as PluginError, and sees every folder of data as it is now.

    It takes ``observe=``, the former name of ``on_progress=``, too.
    """

    @wraps(command)
    def public(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Answer:
        from edgefl.data import one_look  # here, since edgefl doctor runs where torch can't be imported

        if "observe" in kwargs:
            kwargs["on_progress"] = kwargs.pop("observe")
        with registry.named_faults(), one_look():
            return command(*args, **kwargs)

    return public
