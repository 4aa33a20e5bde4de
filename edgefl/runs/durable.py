"""Writing files of a run: atomically, synced to the disk, and with RunError for errors of the operating system."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import psutil

from edgefl.errors import RunError
from edgefl.files import replacing


@cache
def boot() -> str:
    """The time since when this machine is up, as text that differs after a reboot or a power cut."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return f"{psutil.boot_time():.0f}"


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError of the body (read-only folder, full disk) into a RunError that names ``path``."""
    try:
        yield
    except OSError as error:
        raise RunError(f"can't write {path}: {error.strerror or error}") from error


def replace_file(path: Path, content: bytes, *, synced: bool = True) -> None:
    """Write ``content`` to ``path`` atomically.  Raises RunError if the file can't be written."""
    with writing(path), replacing(path, durable=True, synced=synced) as partial:
        partial.write_bytes(content)
