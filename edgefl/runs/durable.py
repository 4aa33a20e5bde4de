"""Writing files of a run: atomically, synced to the disk, and with RunError for errors of the operating system."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO

import psutil

from edgefl.errors import RunError
from edgefl.files import locked_file, output, replacing
from edgefl.runs.contents import not_following


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


def append_file(path: Path, content: bytes) -> None:
    """Append ``content`` to ``path``: all of it or nothing.  Raises RunError if the file can't be written.

    Nothing waits in a buffer: what a full disk refused isn't written when there is space again.
    """
    with writing(path), open(path, "ab", buffering=0, opener=not_following) as file:
        before, left = os.fstat(file.fileno()).st_size, memoryview(content)
        try:
            while len(left):  # one call may write less
                left = left[file.write(left) :]
        except BaseException:
            with suppress(OSError):  # what went wrong first is told
                file.truncate(before)  # else the next call would continue a part of a line
            raise


def write_output(path: Path, content: bytes) -> None:
    """Write a file that a user names (``files.output``).  Raises RunError if it can't be written."""
    with writing(path), output(path) as file:
        file.write(content)


@dataclass
class _LockedFile:
    """A file that this process has locked, and how many ``Lock`` of it aren't closed."""

    file: IO[bytes]
    locks: int = 1


_held: dict[tuple[int, int, int], _LockedFile] = {}
"""Locked files by process, device and inode: to open and close one once more would release its lock."""


class Lock:
    """A folder that this process alone writes, until the last of its locks on it is closed."""

    def __init__(self, key: tuple[int, int, int]):
        self._key: tuple[int, int, int] | None = key

    def close(self) -> None:
        """Give the lock back; a second call does nothing."""
        key, self._key = self._key, None
        if key is None or (held := _held.get(key)) is None:
            return
        held.locks -= 1
        if not held.locks:
            del _held[key]
            with suppress(OSError):  # nothing was written to it, and another error may be under way
                held.file.close()

    def __del__(self) -> None:
        self.close()


LOCK = "writer.lock"
"""The file of a folder's lock, the first that is made in it."""


def lock_folder(path: Path) -> Lock | None:
    """Lock a folder against writers in other processes.  The system releases the lock when this process ends.

    Returns None if the system or file system has no locks.  Raises RunError if another process holds the lock, or if
    the folder can't be written.
    """
    lock_file = path / LOCK
    with writing(path), suppress(FileNotFoundError):
        there = os.stat(lock_file, follow_symlinks=False)
        if (held := _held.get(key := (os.getpid(), there.st_dev, there.st_ino))) is not None:
            held.locks += 1
            return Lock(key)
    with writing(path):
        try:
            file = locked_file(lock_file, not_following)
        except BlockingIOError as error:
            raise RunError(f"another process is writing the run at {path}") from error
    if file is None:
        return None
    mine = os.fstat(file.fileno())
    _held[key := (os.getpid(), mine.st_dev, mine.st_ino)] = _LockedFile(file)
    return Lock(key)


def wait_until_free(path: Path, seconds: float) -> None:
    """Wait until no other process writes the run, at most so many seconds."""
    until = time.monotonic() + seconds
    while (path / LOCK).exists() and time.monotonic() < until:
        try:
            file = lock_folder(path)
        except RunError:
            time.sleep(0.2)
            continue
        if file is not None:
            file.close()
        return
