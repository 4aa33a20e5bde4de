"""The server's state as shapes without values (torch's meta device)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from edgefl.errors import MethodError
from edgefl.methods import Method, ServerState


def shapes(method: Method) -> ServerState:
    """The server's initial state, as shapes without values."""
    # pretrained weights don't affect costs, and their files may be missing
    kinds = {name: replace(kind, weights={}) for name, kind in method.setting.kinds.items()}
    with torch.device("meta"), shapes_alone(method, "initial()"):
        return type(method)(method.options, replace(method.setting, kinds=kinds, pretrained=None)).initial(0)


@contextmanager
def shapes_alone(method: Method, what: str) -> Iterator[None]:
    """Re-raise errors of the meta device as MethodError; ``what`` names the method's function."""
    try:
        yield
    except RuntimeError as error:
        raise MethodError(
            f"{what} of {type(method).__name__} must work with tensors on the meta device, which have shapes but no "
            f"values: {str(error).splitlines()[0]}"
        ) from error
