"""One look at the files of the data for each command."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

LOOKED: ContextVar[dict[Path, str] | None] = ContextVar("looked", default=None)
"""Fingerprints of the folders that the command has looked at; None outside of commands."""


@contextmanager
def one_look() -> Iterator[None]:
    """Look at the files of each folder once until the end of the context: a command has one view of its data."""
    if LOOKED.get() is not None:
        yield
        return
    token = LOOKED.set({})
    try:
        yield
    finally:
        LOOKED.reset(token)
