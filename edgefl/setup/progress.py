"""What public commands share: callbacks by which they report their progress, and faults of plug-ins by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from edgefl import garbage, registry
from edgefl.data import one_look
from edgefl.files import full_disk_named

if TYPE_CHECKING:
    from edgefl.runs.folders import NewFolder

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

    A disk that is full where no file of the answer is written, such as that of temporary files, is a RunError.

    It takes ``progress=True`` for a bar.  A notebook shows some answers as tables (``edgefl.commands.notebook``).
    """

    @wraps(command)
    def public(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Answer:
        garbage.resume_collection()
        with ExitStack() as stack:
            if kwargs.pop("progress", False):
                kwargs["on_progress"] = _with_bar(stack, kwargs.get("on_progress", silent))
            stack.enter_context(full_disk_named())
            stack.enter_context(registry.named_faults())
            stack.enter_context(one_look())
            answer = command(*args, **kwargs)
        from edgefl.commands.profile.answer import Answer as ShownAnswer

        if isinstance(answer, ShownAnswer):
            ShownAnswer.html = staticmethod(_html)  # type: ignore[method-assign]
        return answer

    return public


def _html(answer: object) -> str | None:
    """An answer as a notebook shows it; what draws its figures is imported when one does."""
    from edgefl.commands.notebook import html

    return html(answer)


def _with_bar(stack: ExitStack, on_progress: Any) -> OnProgress:
    """An ``OnProgress`` that moves a bar, which closes with the stack, and passes everything on."""
    from edgefl.console.display import make_bar

    bar = stack.enter_context(make_bar())

    def both(event: str, facts: Mapping[str, object]) -> None:
        bar(event, facts)
        on_progress(event, facts)

    return both


@contextmanager
def nothing_left(new: NewFolder | None, on_progress: OnProgress) -> Iterator[OnProgress]:
    """Clear a new run's folder if an error ends it before its first round; yields the callback that sees rounds begin.

    None for a run that goes on in a folder that was there.
    """
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
