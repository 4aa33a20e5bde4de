"""How commands report their progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgefl.runs.folders import NewFolder

OnProgress = Callable[[str, Mapping[str, Any]], None]
"""Called with an event's name and its facts: ``prepare``, ``combination``, ``start``, ``record``, ``done``, ..."""


def silent(event: str, facts: Mapping[str, object]) -> None:
    """An ``OnProgress`` that does nothing."""


def messages(on_progress: OnProgress, prefix: str = "") -> Callable[[str], None]:
    """A callback for lines of text, each passed on as a ``prepare`` event."""

    def on_message(text: str) -> None:
        on_progress("prepare", {"what": prefix + text})

    return on_message


@contextmanager
def nothing_left(new: NewFolder | None, on_progress: OnProgress) -> Iterator[OnProgress]:
    """Clear a new run's folder if an error ends it before its first round; yields the callback that sees rounds begin.

    None for a run that goes on in a folder that was there.
    """
    from edgefl import registry

    started = new is None

    def on_event(event: str, facts: Mapping[str, object]) -> None:
        nonlocal started
        started = started or event == "start" or (event == "cell" and bool(facts["started"]))
        on_progress(event, facts)

    try:
        yield on_event
    except registry.PASSED:
        raise
    except BaseException:  # what a plug-in raises too
        if new is not None and not started:
            new.clear()
        raise
    finally:
        if new is not None:
            new.close()
