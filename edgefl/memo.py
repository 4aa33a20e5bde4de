"""The on-disk cache between commands: its folder, versions in its keys, and results with a digest under a hash."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Any, TypeVar
from uuid import uuid4

from edgefl.files import locked_file, read_regular, replacing

Answer = TypeVar("Answer")
MIB = 2**20
BOUNDS = {"costs": 512 * MIB, "shapes": 128 * MIB, "clients": 64 * MIB, "pretrained": 4096 * MIB, "data": 32768 * MIB}
"""Bytes that each folder of the cache may hold; what was used longest ago gives way.  A choice: some ten times what all
shipped scenarios and their tests leave there."""
RECENT_SECONDS = 3600.0
"""What was used within this time stays in any case, because a process may be about to open it, and a folder is looked
through once in this time.  A choice: looking takes 0.1 s for 30,000 files."""
FORGOTTEN_SECONDS = 24 * 3600.0
"""Age at which a temporary file or a lock is taken for one of a killed process.  A choice: no data set takes a day."""
LOOKED = ".bounded-"
"""Before a folder's name the file beside it whose time says when it was looked through; it is locked meanwhile."""


@cache
def library_version(package: str) -> str | None:
    """The version of a package that this process imports, or None without it: reading one takes four milliseconds."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def cache_folder() -> Path:
    """The cache folder: ``EDGEFL_CACHE`` if it is set, otherwise ``edgefl`` in the user's cache folder, if any."""
    if named := os.environ.get("EDGEFL_CACHE"):
        return Path(named)
    # a user without a home has no cache: nothing can be written beneath a device
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(os.devnull if base.startswith("~") else base) / "edgefl"


def seal_content(name: str, content: bytes) -> bytes:
    """``content`` after a line with a SHA-256 of ``name`` and content, which ``unseal_content`` compares."""
    return _seal(name, content) + b"\n" + content


def unseal_content(name: str, stored: bytes) -> bytes:
    """The content of what ``seal_content`` returned for this name.  Raises ValueError if a bit of it has changed."""
    seal, _, content = stored.partition(b"\n")
    if seal != _seal(name, content):
        raise ValueError("it isn't what was written")
    return content


def _seal(name: str, content: bytes) -> bytes:
    return hashlib.sha256(name.encode() + b"\n" + content).hexdigest().encode()


def clear(path: Path) -> None:
    """Make room for a file or folder of the cache: what stands there leaves in one step, and is removed then.

    Processes that have its files open or mapped keep them (not on Windows, where this raises).  Raises OSError.
    """
    old = path.with_name(f".partial-{uuid4().hex}-{path.name}")
    try:
        os.rename(path, old)
    except FileNotFoundError:
        return
    if old.is_dir() and not old.is_symlink():
        shutil.rmtree(old, ignore_errors=True)
    else:
        old.unlink(missing_ok=True)


def keep_bound(folder: Path) -> None:
    """Let a folder of the cache keep its bound, unless it has been looked through within ``RECENT_SECONDS``.

    A folder that can't be written is ignored.
    """
    bound, now = BOUNDS.get(folder.name), time.time()
    if bound is None or now - _looked.get(folder, 0.0) < RECENT_SECONDS:
        return
    _looked[folder] = now
    with suppress(OSError):
        if (mark := folder.with_name(LOOKED + folder.name)).exists() and now - mark.stat().st_mtime < RECENT_SECONDS:
            return
        bound_folder(folder, bound, RECENT_SECONDS)


_looked: dict[Path, float] = {}
"""When this process last saw whether a folder has to be looked through."""


def bound_folder(folder: Path, bound: int, recent: float) -> None:
    """Remove from a folder what was used longest ago, until it holds ``bound`` bytes.

    What was used within ``recent`` seconds stays.  Whoever has a file open or mapped keeps it, whoever misses one
    computes it again, and one process at a time removes.  A file system without times of access counts from when a
    file was written.  Raises OSError where nothing can be written.
    """
    mark, now, found = folder.with_name(LOOKED + folder.name), time.time(), list[tuple[float, int, Path]]()
    try:
        lock = locked_file(mark)
    except BlockingIOError:
        return
    try:
        for path in folder.iterdir():
            with suppress(OSError):  # another process may be replacing it
                used, size = _use_of(path)
                if path.name.startswith("."):
                    if now - used > FORGOTTEN_SECONDS:
                        clear(path)
                else:
                    found.append((used, size, path))
        total = sum(size for _, size, _ in found)
        for used, size, path in sorted(found):
            if total <= bound or now - used < recent:
                break
            with suppress(OSError):
                clear(path)
                total -= size
        os.utime(mark)
    finally:
        if lock is not None:
            lock.close()


def _use_of(path: Path) -> tuple[float, int]:
    """When a file or folder of the cache was used last, and its bytes.  Raises OSError."""
    files = [each.stat(follow_symlinks=False) for each in (path.iterdir() if path.is_dir() else (path,))]
    times = [max(each.st_atime, each.st_mtime) for each in files] or [path.stat().st_mtime]
    return max(times), sum(each.st_size for each in files)


def read_cached(path: Path, what: str) -> bytes | None:
    """The content that ``keep`` wrote to a file of the cache; None if there is none.

    Returns None also for a file that isn't as it was written, with a warning that names it and ``what`` it holds.
    """
    try:
        return _content(path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        warnings.warn(f"{path} can't be read ({reason}): {what} are computed again", stacklevel=3)
        return None


def _content(path: Path) -> bytes | None:
    try:
        return unseal_content(path.name, read_regular(path))
    except (FileNotFoundError, NotADirectoryError):
        return None


def keep(path: Path, content: bytes) -> None:
    """Write a file of the cache.  A folder that can't be written is ignored: results don't depend on the cache."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as draft:
            draft.touch(0o600)
            draft.write_bytes(seal_content(path.name, content))
            if path.is_dir():  # a file takes the place of anything else
                clear(path)
    except OSError:
        pass
    keep_bound(path.parent)


def read_or_compute(path: Path, what: str, compute: Callable[[], bytes], waiting: Callable[[], None]) -> bytes:
    """The content of a file of the cache; if it isn't there as it was written, ``compute`` gives it and it is kept.

    One process at a time computes it; the others wait, after a call of ``waiting``.  A damaged file is told once, by
    the process that computes.
    """
    with suppress(OSError, ValueError):
        if (content := _content(path)) is not None:
            return content
    with one_at_a_time(path, waiting):
        if (content := read_cached(path, what)) is None:
            content = compute()
            keep(path, content)
        return content


@contextmanager
def one_at_a_time(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Let one process at a time compute what ``keep`` will write to a file of the cache; ``waiting`` tells of a wait.

    Where nothing can be locked all go on at once, which costs time and changes no result.
    """
    lock = path.with_name(f".{path.name}.lock")
    file = _wait_for_lock(lock, waiting)
    try:
        yield
    finally:
        if file is not None:
            with suppress(OSError):
                lock.unlink()
            file.close()


def _wait_for_lock(lock: Path, waiting: Callable[[], None]) -> IO[bytes] | None:
    """The file, locked until it is closed or the process ends; None where it can't be made or locked."""
    told = False
    with suppress(OSError):
        lock.parent.mkdir(parents=True, exist_ok=True)
        while True:
            try:
                return locked_file(lock)
            except BlockingIOError:
                if not told:
                    waiting()
                told = True
                time.sleep(0.1)
    return None


def recall(folder: Path | None, key: str, read: Callable[[Any], Answer], what: str) -> Answer | None:
    """The cached result of ``key``, parsed by ``read``; None if there is none, or with a warning if it is damaged."""
    content = None if folder is None else read_cached(_file(folder, key), what)
    return None if content is None else read(json.loads(content))


def has_result(folder: Path, key: str) -> bool:
    """Whether there is a file of this key, which may be damaged."""
    return _file(folder, key).is_file()


def remember(folder: Path | None, key: str, answer: Any) -> None:
    """Cache plain data under ``key``, if the folder can be written."""
    if folder is not None:
        keep(_file(folder, key), json.dumps(answer).encode())


def _file(folder: Path, key: str) -> Path:
    return folder / f"{key}.sealed"
