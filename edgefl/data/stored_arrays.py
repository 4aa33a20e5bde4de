"""Arrays on disk: built once, checked against their digests when opened, memory-mapped by every process.

An entry is a folder named by the hash of everything it was made from.  ``meta.json`` has the digest of each of its
files, and one of itself.  An entry is written under a temporary name and renamed, so that readers never see a partial
entry, even where nothing can be locked and processes build the same one at once; a damaged one gives way in one step
to one that is built again.  Whoever opens an entry opens all its files, so that it keeps them if the folder gives way
then.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from io import BufferedReader, BufferedWriter
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypedDict, cast

import numpy as np

from edgefl.arrays import AnyArray
from edgefl.errors import DataError
from edgefl.files import open_regular, read_regular, replacing
from edgefl.memo import clear, keep_bound, one_at_a_time, seal_content, unseal_content
from edgefl.modalities import Kind
from edgefl.runs.durable import boot

LARGE = 256 * 2**20
"""Bytes of a file above which ``checked.json`` may spare reading it again; smaller ones are read by every process,
which takes 0.15 s of a processor for so many (SHA-256, 28 November 2026)."""

MARK_SECONDS = 24 * 3600.0
"""Seconds for which ``checked.json`` counts: damage that changes neither size nor times is found at most so much later.
A choice: a working day's processes read a large file once."""

_SETTLED = 2 * 10**9
"""Nanoseconds after which another change of a file gets another time, on any file system: FAT counts in 2 s."""

_TRIES = 5
"""How often an entry is opened or written where others replace or damage it meanwhile: a choice, not measured.  Then
this process keeps what it built in memory."""
_OF_THIS_PROCESS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Errors that say nothing of a file."""


class Meta(TypedDict, total=False):
    """Metadata: of a collection its classes and the code that made it, of a dealt one all else."""

    classes: Sequence[str]
    code: str
    kinds: list[Kind]
    client_kind: list[int]
    server_samples: dict[str, dict[str, int]]
    facts: dict[str, dict[str, int]]
    mean: Sequence[float]
    deviation: Sequence[float]
    padding: int
    audio_moments: tuple[float, float]
    motion_moments: tuple[list[float], list[float]]


class StoredFileDigest(TypedDict):
    """Bytes and hash of a file of an entry."""

    bytes: int
    sha256: str


class Contents(TypedDict):
    """What ``meta.json`` has: the digests of the other files, and the metadata."""

    files: dict[str, StoredFileDigest]
    meta: Meta


class Mark(TypedDict):
    """A large file that was read and had its digest: in which boot, when (Unix seconds), and what its status was."""

    boot: str
    at: float
    status: list[int]


class Built(NamedTuple):
    """What an entry is written from: arrays, metadata, and text files by name."""

    arrays: Mapping[str, AnyArray]
    meta: Meta
    files: Mapping[str, str]


class Damaged(Exception):
    """A file of an entry isn't what was written there; the text names it."""


@dataclass(frozen=True)
class StoredEntry:
    """Arrays with metadata, and the bytes [n] of text files by name; none of them may be written to."""

    path: Path
    meta: Meta
    arrays: Mapping[str, AnyArray] = field(default_factory=dict, repr=False, compare=False)
    files: Mapping[str, AnyArray] = field(default_factory=dict, repr=False, compare=False)

    def text(self, name: str) -> str:
        """The content of a text file."""
        return self.files[name].tobytes().decode()


def entry(
    cache: Path, name: str, build: Callable[[], Built], waiting: Callable[[], None] = lambda: None
) -> StoredEntry:
    """The entry ``name``, memory-mapped; built if it is missing, and with a warning if a file of it is damaged.

    One process at a time builds it; the others wait, after a call of ``waiting``.  If the cache can't be written, the
    entry is built in memory, with a warning.  Raises DataError if files can't be opened for a reason of this process,
    such as its limit of open files.
    """
    folder = cache / "data" / name
    if _identity(folder) is not None:
        with suppress(Damaged):
            return _open_entry(folder)
    with one_at_a_time(folder, waiting):
        return _open_or_build(folder, build)


def _open_or_build(folder: Path, build: Callable[[], Built]) -> StoredEntry:
    built: Built | None = None
    told = False
    for _ in range(_TRIES):
        seen = _identity(folder)
        try:
            if seen is not None:
                return _open_entry(folder)
        except Damaged as damage:
            if _identity(folder) != seen:
                continue  # another process put another one there meanwhile
            if not told:
                warnings.warn(f"{damage}: {folder.name} is built again", stacklevel=3)
            told = True
        built = built or build()
        try:
            _write(folder, built, seen)
        except OSError as error:
            if _identity(folder) == seen:
                reason = error.strerror or str(error)
                break
    else:
        reason = "what is written there doesn't stay as it was written"
    message = (
        f"the data cache {folder.parent} can't be written ({reason}): every process builds {folder.name} for itself"
    )
    warnings.warn(f"{message}; name another folder in EDGEFL_CACHE", stacklevel=3)
    return _in_memory(folder, built or build())


def _identity(folder: Path) -> tuple[int, int, int] | None:
    """What tells a folder, or what stands in its place, from another of the same name; None if nothing is there."""
    try:
        status = os.lstat(folder)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_ctime_ns


def _in_memory(folder: Path, built: Built) -> StoredEntry:
    texts = {name: np.frombuffer(text.encode(), np.uint8) for name, text in built.files.items()}
    arrays = {name: array.view() for name, array in built.arrays.items()}
    for array in arrays.values():
        array.flags.writeable = False
    return StoredEntry(folder, built.meta, arrays, texts)


# --- writing ---------------------------------------------------------------------------------------------------------


class _Hashing:
    """A file that is written, and the digest of what was to be written."""

    def __init__(self, file: BufferedWriter):
        self._file, self._hashed, self._bytes = file, hashlib.sha256(), 0

    def write(self, content: bytes) -> int:
        self._hashed.update(content)
        self._bytes += len(content)
        return self._file.write(content)

    def digest(self) -> StoredFileDigest:
        return {"bytes": self._bytes, "sha256": self._hashed.hexdigest()}


def _write(folder: Path, built: Built, over: tuple[int, int, int] | None) -> None:
    """Write an entry in place of nothing, or of the damaged one ``over``.

    Raises OSError, also if another process put another one there meanwhile.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with replacing(folder) as draft:
        draft.mkdir(0o700)
        digests: dict[str, StoredFileDigest] = {}
        for name, array in built.arrays.items():
            with (draft / f"{name}.npy").open("xb") as file:
                hashing = _Hashing(file)
                np.save(hashing, array, allow_pickle=False)
                digests[f"{name}.npy"] = hashing.digest()
        for name, text in built.files.items():
            with (draft / name).open("xb") as file:
                hashing = _Hashing(file)
                hashing.write(text.encode())
                digests[name] = hashing.digest()
        contents: Contents = {"files": digests, "meta": built.meta}
        content = json.dumps(contents, ensure_ascii=False).encode()
        (draft / "meta.json").write_bytes(seal_content(folder.name, content))
        if over is not None and _identity(folder) == over:
            clear(folder)
    keep_bound(folder.parent)


# --- opening ---------------------------------------------------------------------------------------------------------

_read: set[tuple[str, tuple[int, ...]]] = set()
"""Digests of files that this process has read, with the marks that they had."""


def _open_entry(folder: Path) -> StoredEntry:
    """An entry with all its files open.  Raises Damaged, or DataError if this process can't open files."""
    path = folder / "meta.json"
    arrays: dict[str, AnyArray] = {}
    texts: dict[str, AnyArray] = {}
    try:
        contents: Contents = json.loads(unseal_content(folder.name, read_regular(path)))
        before = _read_marks(folder)
        marks: dict[str, Mark] = {}
        for name, digest in contents["files"].items():
            path = folder / name
            with open_regular(path) as file:
                if mark := _check_file(file, digest, before.get(name)):
                    marks[name] = mark
                if name.endswith(".npy"):
                    arrays[name.removesuffix(".npy")] = _map_array(file)
                else:
                    texts[name] = np.memmap(file, np.uint8, "r")
    except OSError as error:
        if error.errno in _OF_THIS_PROCESS:
            raise DataError(f"{path} can't be opened ({error.strerror})") from error
        raise Damaged(f"{path} can't be read ({error.strerror or error})") from error
    except ValueError as error:
        raise Damaged(f"{path} can't be read ({error})") from error
    if marks and marks != before:
        _mark(folder, marks)
    return StoredEntry(folder, contents["meta"], arrays, texts)


def _check_file(file: BinaryIO, digest: StoredFileDigest, mark: Mark | None) -> Mark | None:
    """Compare a file with its digest, unless it is as it was when this process read it, or large and as marked.

    Returns the mark of a large file.  Raises ValueError if it differs.
    """
    now, status = time.time_ns(), os.fstat(file.fileno())
    if status.st_size != digest["bytes"]:
        raise ValueError(f"it has {status.st_size:,} bytes of {digest['bytes']:,}")
    seen = [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]
    known = digest["sha256"], tuple(seen)
    large = status.st_size > LARGE
    if known in _read or (large and mark is not None and mark["status"] == seen):
        return mark
    if hashlib.file_digest(cast(BufferedReader, file), "sha256").hexdigest() != digest["sha256"]:
        raise ValueError("it isn't what was written")
    file.seek(0)
    if now - max(status.st_mtime_ns, status.st_ctime_ns) < _SETTLED:
        return None
    _read.add(known)
    return {"boot": boot(), "at": now / 1e9, "status": seen} if large else None


def _map_array(file: BinaryIO) -> AnyArray:
    """The array of an open .npy file, memory-mapped and read-only.  Raises ValueError."""
    header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    version = np.lib.format.read_magic(file)
    if version not in header:
        raise ValueError("it has another version of the format .npy")
    shape, fortran, dtype = header[version](file)
    if dtype.hasobject:
        raise ValueError("it has objects")
    whole = np.memmap(file, dtype, "r", file.tell(), shape, "F" if fortran else "C")
    return whole.view(np.ndarray)  # each access to a memmap makes a memmap, which takes as long as a small batch's copy


def _read_marks(folder: Path) -> dict[str, Mark]:
    """The marks in ``checked.json`` that still count, by file; none if it can't be read."""
    try:
        marks: dict[str, Mark] = json.loads(unseal_content(folder.name, read_regular(folder / "checked.json")))
    except (OSError, ValueError):
        return {}
    now = time.time()
    return {n: m for n, m in marks.items() if m["boot"] == boot() and 0 <= now - m["at"] < MARK_SECONDS}


def _mark(folder: Path, marks: Mapping[str, Mark]) -> None:
    """Write ``checked.json``, if the folder can be written."""
    with suppress(OSError), replacing(folder / "checked.json") as draft:
        draft.write_bytes(seal_content(folder.name, json.dumps(marks).encode()))
