"""The server's state as shapes without values (torch's meta device)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from edgefl.errors import MethodError
from edgefl.methods import Method, ServerState
from edgefl.work.step_faults import line_of


def shapes(method: Method) -> ServerState:
    """The server's initial state, as shapes without values."""
    # pretrained weights don't affect costs, and their files may be missing
    kinds = {
        name: replace(kind, weights={}, adapter_weights={}, vectors={}) for name, kind in method.setting.kinds.items()
    }
    with torch.device("meta"), shapes_alone(method, "initial()"):
        return type(method)(method.options, replace(method.setting, kinds=kinds, pretrained=None)).at_start(0)


@contextmanager
def shapes_alone(method: Method, what: str, state: ServerState | None = None) -> Iterator[None]:
    """Re-raise errors of the meta device as MethodError; ``what`` names the method's function.

    Where tensors of the ``state`` that it was given have values, ``initial()`` is named, which made them so.
    """
    try:
        yield
    except RuntimeError as error:
        name, said = type(method).__name__, f"{str(error).splitlines()[0]}{_at(error)}"
        if state is not None and _MIXED in said and (made := _with_values(shapes(method), state)):
            raise MethodError(
                f"{what} of {name} can't combine its tensors ({said}): initial() of {name} makes {made!r} on the "
                f"device {state.tensors[made].device}, where only shapes are asked for; leave out device=..., or make "
                "it like another tensor (torch.zeros_like)"
            ) from error
        raise MethodError(
            f"{what} of {name} must work with tensors on the meta device, which have shapes but no values: {said}"
        ) from error


_MIXED = "is not on the expected device"
"""Part of torch's message for an operator with tensors on two devices."""


def _with_values(first: ServerState, state: ServerState) -> str | None:
    """The first address of a state that has values and had them from the beginning; None if there is none."""
    given = (a for a, t in state.tensors.items() if not t.is_meta)
    return next((a for a in given if a in first.tensors and not first.tensors[a].is_meta), None)


def _at(error: BaseException) -> str:
    line = line_of(error)
    return f" ({line})" if line else ""
