"""Atomic replacement of files: after a kill, a power cut or on a full disk a file is the old one or the new one."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, BinaryIO
from uuid import uuid4

from edgefl.errors import RunError


@contextmanager
def replacing(path: Path, *, durable: bool = False, synced: bool = True) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; the file or folder written there replaces ``path`` in one step.

    With ``durable`` the new file is on the disk when the context ends; without ``synced`` the system writes it later,
    so that a killed process loses nothing, but a power cut may.  Its temporary path is always
    ``.partial-<name>``, so only one process may write it.  Without ``durable`` every call has a temporary path of its
    own, and several processes may write the same ``path``.  The temporary file is removed if the body raises.
    Raises OSError, also where ``path`` is a folder that isn't empty.
    """
    partial = path.with_name(f".partial-{'' if durable else f'{uuid4().hex}-'}{path.name}")
    try:
        yield partial
        if durable and synced:
            sync(partial)
        os.replace(partial, path)
        if durable and synced:
            sync(path.parent)
    finally:
        with suppress(OSError):
            if partial.is_dir():
                shutil.rmtree(partial, ignore_errors=True)
            else:
                partial.unlink(missing_ok=True)


@contextmanager
def output(path: Path) -> Iterator[BinaryIO]:
    """A file that a user names, open for writing: whole when the context ends, or as it was before if that fails.

    A link is followed.  What isn't a regular file, such as ``/dev/stdout``, gets the bytes as they come.
    Raises OSError.
    """
    parts = path.absolute().parts[1:3]  # /dev/shm holds files in memory
    if (path.exists() and not path.is_file()) or (parts[:1] in (("dev",), ("proc",)) and parts != ("dev", "shm")):
        with path.open("wb") as file:
            yield file
    else:
        with replacing(path.resolve()) as partial, partial.open("wb") as file:
            yield file


FULL = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}
"""Numbers of the errors by which a system refuses to write more: a full disk, a limit of a file's size, a quota."""


@contextmanager
def full_disk_named() -> Iterator[None]:
    """Turn the OSError of a full disk into a RunError; other errors pass."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise RunError(f"can't write {error.filename or 'a temporary file'}: {error.strerror}") from error


def read_regular(path: Path) -> bytes:
    """The bytes of a regular file.

    Raises OSError if it can't be read, and for a pipe, a device or a socket, which might never end.
    """
    with open_regular(path) as file:
        return file.read()


def open_regular(path: Path) -> BinaryIO:
    """A regular file, open for reading; the caller closes it.  Raises OSError as ``read_regular`` does."""
    if "\0" in str(path):
        raise OSError(errno.EINVAL, "a file's name has no NUL", str(path))
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it isn't a regular file", str(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def locked_file(path: Path, opener: Callable[[str, int], int] | None = None) -> IO[bytes] | None:
    """A file that this process has locked until it closes it or ends; made if there is none.

    Returns None where nothing can be locked (Windows, a file system without locks).  Raises BlockingIOError while
    another process has it locked, and another OSError if it can't be opened.
    """
    while True:
        file = open(path, "ab", opener=opener)  # noqa: SIM115 - locked until close
        try:
            import fcntl  # not on Windows

            # Forked workers don't inherit a POSIX record lock (lockf), so one that outlives its parent blocks nobody
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:
            file.close()
            return None
        except OSError as error:
            file.close()
            if error.errno in (errno.EACCES, errno.EAGAIN):
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), str(path)) from error
            return None
        mine = os.fstat(file.fileno())
        with suppress(OSError):
            there = os.stat(path, follow_symlinks=False)
            if (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino):
                return file
        file.close()  # its holder removed the file before giving the lock back


def sync(path: Path) -> None:
    """Wait until a file's bytes, or the entries of a folder (after a rename or a new file), are on the disk."""
    if path.is_dir() and os.name != "posix":
        return  # Windows can't open a folder, and its renames need no sync
    descriptor = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
