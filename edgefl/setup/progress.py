"""What public commands share: callbacks by which they report their progress, and faults of plug-ins by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    pass


from edgefl.runs.progress import OnProgress, silent

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")


def public_command(command: Callable[Arguments, Answer]) -> Callable[Arguments, Answer]:
    """A public command.  It raises what a plug-in raises as PluginError, and sees every folder of data as it is now.

    A disk that is full where no file of the answer is written, such as that of temporary files, is a RunError.

    It takes ``progress=True`` for a bar.
    """

    @wraps(command)
    def public(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Answer:
        from edgefl import garbage, registry
        from edgefl.data import one_look
        from edgefl.files import full_disk_named

        garbage.resume_collection()
        with ExitStack() as stack:
            if kwargs.pop("progress", False):
                kwargs["on_progress"] = _with_bar(stack, kwargs.get("on_progress", silent))
            stack.enter_context(full_disk_named())
            stack.enter_context(registry.named_faults())
            stack.enter_context(one_look())
            return command(*args, **kwargs)

    return public


def _with_bar(stack: ExitStack, on_progress: Any) -> OnProgress:
    """An ``OnProgress`` that moves a bar, which closes with the stack, and passes everything on."""
    from edgefl.console.display import make_bar

    bar = stack.enter_context(make_bar())

    def both(event: str, facts: Mapping[str, object]) -> None:
        bar(event, facts)
        on_progress(event, facts)

    return both
