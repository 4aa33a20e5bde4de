"""What public commands share: callbacks by which they report their progress, and faults of plug-ins by name."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from edgefl import registry

OnProgress = Callable[[str, Mapping[str, Any]], None]
"""Called with an event's name and its facts: ``prepare``, ``combination``, ``start``, ``record``, ``done``, ..."""

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")


def silent(event: str, facts: Mapping[str, object]) -> None:
    """An ``OnProgress`` that does nothing."""


def messages(on_progress: OnProgress, prefix: str = "") -> Callable[[str], None]:
    """A callback for lines of text, each passed on as a ``prepare`` event."""

    def on_message(text: str) -> None:
        on_progress("prepare", {"what": prefix + text})

    return on_message


def public_command(command: Callable[Arguments, Answer]) -> Callable[Arguments, Answer]:
    """A public command.  It raises what a plug-in raises as PluginError, and sees every folder of data as it is now.

    It takes ``observe=``, the former name of ``on_progress=``, too, and ``progress=True`` for a bar.  A notebook shows
    some answers as tables (``edgefl.report.notebook``).
    """

    @wraps(command)
    def public(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Answer:
        from edgefl.data import one_look  # here, since edgefl doctor runs where torch can't be imported

        if "observe" in kwargs:
            kwargs["on_progress"] = kwargs.pop("observe")
        with ExitStack() as stack:
            if kwargs.pop("progress", False):
                kwargs["on_progress"] = _with_bar(stack, kwargs.get("on_progress", silent))
            stack.enter_context(registry.named_faults())
            stack.enter_context(one_look())
            answer = command(*args, **kwargs)
        from edgefl.records.profile import Answer as ShownAnswer

        if isinstance(answer, ShownAnswer):
            from edgefl.report import notebook  # noqa: F401  it gives answers their HTML
        return answer

    return public


def _with_bar(stack: ExitStack, on_progress: Any) -> OnProgress:
    """An ``OnProgress`` that moves a bar, which closes with the stack, and passes everything on."""
    from edgefl.report.progress import make_bar

    bar = stack.enter_context(make_bar())

    def both(event: str, facts: Mapping[str, object]) -> None:
        bar(event, facts)
        on_progress(event, facts)

    return both


@contextmanager
def nothing_left(folder: Path, made: Sequence[Path] | None, on_progress: OnProgress) -> Iterator[OnProgress]:
    """Empty a new run's folder if an error ends it before its first round; yields the callback that sees rounds begin.

    ``made`` are the folders that the run makes, the innermost first, which are removed too; None for a resumed run.
    """
    started = made is None

    def on_event(event: str, facts: Mapping[str, object]) -> None:
        nonlocal started
        started = started or event == "start" or (event == "cell" and bool(facts["started"]))
        on_progress(event, facts)

    try:
        yield on_event
    except registry.PASSED:
        raise
    except BaseException:  # what a plug-in raises too
        if not started:
            for entry in folder.iterdir():
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
            with suppress(OSError):  # another command may have written there
                for path in made or ():
                    path.rmdir()
        raise
