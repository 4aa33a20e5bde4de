"""Writing so that a kill or a power cut leaves either the old file or the new one, never half of one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edgefl.errors import RunError


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an operating system's refusal (read-only folder, full disk) into a RunError that names ``path``."""
    try:
        yield
    except OSError as error:
        raise RunError(f"can't write {path}: {error.strerror or error}") from error


def sync_file(path: Path) -> None:
    """Wait until the file's bytes are on the disk."""
    descriptor = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    """Wait until the names in the folder (a rename, a new file) are on the disk."""
    if os.name == "posix":  # elsewhere a folder can't be opened, and a rename needs no such help
        sync_file(path)


def replace_file(path: Path, content: bytes) -> None:
    """Put ``content`` at ``path`` in one step.  Raises RunError."""
    partial = path.with_name(f".partial-{path.name}")
    with writing(path):
        partial.write_bytes(content)
        sync_file(partial)
        os.replace(partial, path)
        sync_folder(path.parent)
