"""Writing so that a kill or a power cut leaves either the old file or the new one, never half of one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4


@contextmanager
def replacing(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """Give a place beside ``path`` to write a file or a folder at, which then takes its place in one step.

    With ``durable`` it is on the disk afterwards, and the place is always ``.partial-<name>``: for what one process
    writes.  Else the place is another one each time, so that processes that write the same don't disturb each other.
    What was written there is removed if it can't be finished.  Raises OSError, also where ``path`` is a folder that
    isn't empty.
    """
    partial = path.with_name(f".partial-{'' if durable else f'{uuid4().hex}-'}{path.name}")
    try:
        yield partial
        if durable:
            sync(partial)
        os.replace(partial, path)
        if durable:
            sync(path.parent)
    finally:
        with suppress(OSError):
            if partial.is_dir():
                shutil.rmtree(partial, ignore_errors=True)
            else:
                partial.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Wait until a file's bytes, or the names in a folder (a rename, a new file), are on the disk."""
    if path.is_dir() and os.name != "posix":
        return  # there a folder can't be opened, and a rename needs no such help
    descriptor = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
