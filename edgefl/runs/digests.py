"""Digests of a run's files: what they held when a checkpoint was written, and when the run finished."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

import orjson

from edgefl.errors import RunError

CHUNK = 1 << 20
"""Bytes that are read and hashed at a time.  That bounds memory alone: any size from 16 KiB to 4 MiB was as fast."""


def _hash() -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=16)


class FileDigest(TypedDict):
    """Bytes and hash of a file."""

    bytes: int
    blake2b: str


class TableFacts(FileDigest):
    """Those of a table, and its lines."""

    lines: int


@dataclass
class TableDigest:
    """Lines, bytes and hash of what has been written to a table so far."""

    lines: int = 0
    size: int = 0
    hashed: hashlib.blake2b = field(default_factory=_hash)

    @classmethod
    def from_file(cls, path: Path, size: int | None = None) -> TableDigest:
        """The digest of a file, or of its first ``size`` bytes.  A file that doesn't exist is empty."""
        digest = cls()
        if not path.exists():
            return digest
        left = path.stat().st_size if size is None else size
        with path.open("rb") as file:
            while left > 0 and (chunk := file.read(min(CHUNK, left))):
                digest.add(chunk)
                left -= len(chunk)
        return digest

    def add(self, chunk: bytes) -> None:
        """Count what is appended."""
        self.lines += chunk.count(b"\n")
        self.size += len(chunk)
        self.hashed.update(chunk)

    def record(self) -> TableFacts:
        """What a checkpoint says of the table."""
        return {"lines": self.lines, "bytes": self.size, "blake2b": self.hashed.hexdigest()}


EMPTY = TableDigest().record()
"""The record of a table that holds nothing, or that a checkpoint doesn't know."""


def table_difference(path: Path, written: TableFacts, round: int) -> str | None:
    """How a table differs from what it held when the checkpoint of ``round`` was written; None if it doesn't.

    Records of later rounds are no difference.
    """
    digest = TableDigest.from_file(path, written["bytes"])
    if digest.record() == written:
        return _earlier_round(path, digest, round)
    if digest.size < written["bytes"]:
        return (
            f"{path} holds {digest.lines} lines, but {written['lines']} were written by the checkpoint of round {round}"
        )
    return f"the first {written['lines']} lines of {path} aren't those written by the checkpoint of round {round}"


def file_digest(path: Path) -> FileDigest:
    """The digest of a file."""
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "blake2b": hashlib.file_digest(file, _hash).hexdigest()}


def _earlier_round(path: Path, digest: TableDigest, round: int) -> str | None:
    """The first record after those of a checkpoint that isn't of a later round, as a sentence."""
    if not path.exists():
        return None
    with path.open("rb") as file:
        file.seek(digest.size)
        for number, line in enumerate(file, start=digest.lines + 1):
            try:
                later = not line.endswith(b"\n") or orjson.loads(line)["round"] > round
            except (ValueError, TypeError, KeyError):
                return f"{path}:{number}: this line is damaged: {line[:60]!r}"
            if not later:
                return f"{path}:{number} is a record of round {round} or earlier, after its checkpoint was written"
    return None


def text_digest(content: bytes) -> str:
    """The hash that ``file_digest`` gives of a file with this content."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def file_digests(folder: Path, names: Iterable[str]) -> dict[str, FileDigest]:
    """The digests of those files that exist, by name."""
    return {name: file_digest(folder / name) for name in names if (folder / name).is_file()}


def file_differences(folder: Path, written: Mapping[str, object]) -> list[str]:
    """What differs from these digests, a sentence for each file that is missing or has changed."""
    differences = []
    for name, digest in written.items():
        path = folder / name
        if not path.is_file():
            differences.append(f"{name} is missing")
        elif file_digest(path) != digest:
            differences.append(f"{name} has changed since the run finished")
    return differences


def changed_parts(before: Any, now: Any, path: str = "") -> list[str]:
    """Where two JSON values differ, ``path: before -> now`` for each, at the deepest common mapping."""
    if not path and before == now:
        return []
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        keys = [*before, *(key for key in now if key not in before)]
        return [
            part
            for key in keys
            if before.get(key) != now.get(key)
            for part in changed_parts(before.get(key), now.get(key), f"{path}.{key}" if path else str(key))
        ]
    return [f"{path}: {_short(before)} -> {_short(now)}"]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def check_unchanged(folder: Path, before: Mapping[str, object], now: Mapping[str, object], round: int) -> None:
    """Raise RunError if a run would go on as another: what it is made of differs from its checkpoint."""
    differences = changed_parts(before, now)
    if differences:
        when = f"the checkpoint of round {round}" if round else "it began"
        raise RunError(
            f"the run at {folder} has changed since {when}: {'; '.join(differences[:5])}"
            f"{f' and {len(differences) - 5} more' if len(differences) > 5 else ''}; undo that, or start a new run"
        )
