"""Counts calls: what is done for all clients at once makes as many for a million as for a thousand."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType


def calls(function: Callable[[], object]) -> int:
    """How many functions, Python's and built-in ones, are called in this thread while this one runs.

    Without garbage collection, at which hypothesis calls a function of its own.
    """
    count, collects = 0, gc.isenabled()

    def counted(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    gc.disable()
    sys.setprofile(counted)
    try:
        function()
    finally:
        sys.setprofile(before)
        if collects:
            gc.enable()
    return count
