"""Works of rounds under way that were trained, in ``unfinished/`` of a run's folder: a resumed run doesn't repeat them.

``client-000017-<key>.bin`` holds what one work gave: a line with the hash of the rest, and that.  The key is a digest
of all that decides it, by which it is found again.  Files aren't synced: one that a power cut damaged has another hash.
They go when a checkpoint holds what they led to; those of clients that are under way then stay, and those for which a
resumed run hasn't asked yet.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Any, cast

from edgefl.files import read_regular, replacing
from edgefl.runs.contents import UNFINISHED
from edgefl.runs.digests import text_digest
from edgefl.runs.durable import writing

FIRST_SECONDS = 60.0
"""Wall time since the last checkpoint from which on works are written.  A choice: so much is trained again at most."""
LEAST_RATIO = 20.0
"""A work is written only once so many times as much time has passed since then as writing took, so that writing takes
5 % at most: works that are large for their training are left out, and train again."""
MOST_BYTES, MOST_SHARE = 16 << 30, 0.1
"""Works take at most so many bytes, and this share of the disk's free space, so that the run's own files find room.
A thousand updates of 100 MB would be 100 GB.  Those that are there stay, and no more are written.  Both are choices."""

_NAME = re.compile(r"(?:client-(\d{6,})|server)-([0-9a-f]{32})\.bin")


class UnfinishedWorks:
    """The works in a run's folder; threads may write at once."""

    def __init__(self, run: Path):
        self._folder = run / UNFINISHED
        self._lock, self._closed = Lock(), False
        self._since, self._spent = monotonic(), 0.0
        self._sizes: dict[Path, int] = {}
        self._found: dict[str, Path] = {}
        """Those of an earlier process that nobody asked for yet, by key."""

    def look(self) -> None:
        """Find the works that an earlier process wrote.  Raises RunError if the folder can't be read."""
        with writing(self._folder):
            there = self._folder.iterdir() if self._folder.is_dir() else ()
            self._sizes = {path: path.stat().st_size for path in there if _NAME.fullmatch(path.name)}
        self._found = {_parts(path)[1]: path for path in self._sizes}

    def may_find(self) -> bool:
        """Whether an earlier process left works that nobody asked for yet."""
        return bool(self._found)

    def find(self, key: str) -> Path | None:
        """The file of the work with this key, None if there is none."""
        return self._found.pop(key, None)

    def is_due(self) -> bool:
        """Whether a work that has just been trained should be written: the round is long, and writing took little."""
        passed = monotonic() - self._since
        return not self._closed and passed >= FIRST_SECONDS and passed >= LEAST_RATIO * self._spent

    def write(self, client: int | None, size: int, content: Callable[[], tuple[str, bytes]]) -> None:
        """Write a work of about ``size`` bytes, if there is room; ``content`` makes its key and its bytes.

        Raises OSError if that fails.  All works are removed then, because the run's own files need the space, and no
        more are written.
        """
        with self._lock:
            began, held = monotonic(), sum(self._sizes.values())
            if self._closed:
                return
            try:
                free = shutil.disk_usage(self._folder.parent).free
                if held + size > min(MOST_BYTES, MOST_SHARE * (held + free)):
                    return
                key, body = content()
                node = "server" if client is None else f"client-{client:06d}"
                path = self._folder / f"{node}-{key}.bin"
                self._folder.mkdir(exist_ok=True)
                with replacing(path) as partial, partial.open("wb") as file:
                    file.write(f"{text_digest(body)}\n".encode())
                    file.write(body)
                self._sizes[path] = len(body)
            except OSError:
                self._closed = True
                with suppress(OSError):
                    self._remove(self._sizes)
                raise
            finally:
                self._spent += monotonic() - began

    @staticmethod
    def read(path: Path) -> bytes:
        """What ``write`` got.  Raises OSError, and ValueError for a file that has changed."""
        checksum, _, body = read_regular(path).partition(b"\n")
        if text_digest(body).encode() != checksum:
            raise ValueError("it doesn't match its checksum")
        return body

    def list_superseded(self, state: Mapping[str, object]) -> list[Path]:
        """The works that aren't needed once a checkpoint with this state is written; the time is counted from now."""
        with self._lock:
            self._since, self._spent = monotonic(), 0.0
            if not self._sizes:
                return []
            flights = cast(Mapping[str, Any], state.get("flights", {"rows": ()}))
            under_way, unasked = {row["flight"]["client"] for row in flights["rows"]}, set(self._found.values())
            return [path for path in self._sizes if path not in unasked and _parts(path)[0] not in under_way]

    def drop(self, paths: Iterable[Path]) -> None:
        """Remove these works.  Raises RunError if that fails."""
        with self._lock, writing(self._folder):
            self._remove(paths)

    def _remove(self, paths: Iterable[Path]) -> None:
        for path in list(paths):
            path.unlink(missing_ok=True)
            self._sizes.pop(path, None)
        if not self._sizes:
            with suppress(OSError):  # it isn't there, or somebody put a file into it
                self._folder.rmdir()

    def close(self) -> None:
        """Write no more: works that still end belong to nobody, and another process may open the run."""
        with self._lock:
            self._closed = True

    def end(self) -> None:
        """Remove all, because the run is finished.  Raises RunError if that fails."""
        self.close()
        if self._folder.is_dir():
            with writing(self._folder):
                shutil.rmtree(self._folder)


def _parts(path: Path) -> tuple[int | None, str]:
    """The client (None: the server) and the key in a work's name."""
    found = _NAME.fullmatch(path.name)
    assert found is not None
    return None if found[1] is None else int(found[1]), found[2]
