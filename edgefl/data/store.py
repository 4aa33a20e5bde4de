"""Arrays on disk: built once, memory-mapped by every process that needs them.

An entry is a folder named by the hash of everything it was made from; it is written beside its place and renamed,
so a reader finds it whole or not at all, and two processes that build the same one don't disturb each other.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgefl.errors import DataError
from edgefl.files import replacing

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Entry:
    """One folder of arrays with the plain facts that go with them."""

    path: Path
    meta: Mapping[str, Any]

    def array(self, name: str) -> Array:
        """The array saved under ``name``, memory-mapped and read-only."""
        return np.load(self.path / f"{name}.npy", mmap_mode="r", allow_pickle=False)  # type: ignore[no-any-return]


def entry(
    cache: Path, name: str, build: Callable[[], tuple[Mapping[str, Array], Mapping[str, Any], Mapping[str, str]]]
) -> Entry:
    """The entry ``name`` (a relative path), built if it isn't there: arrays, meta, and text files by file name.

    Raises DataError if the cache folder can't be written.
    """
    place = cache / name
    if not (place / "meta.json").is_file():
        _write(place, *build())
    return Entry(place, json.loads((place / "meta.json").read_text(encoding="utf-8")))


def _write(place: Path, arrays: Mapping[str, Array], meta: Mapping[str, Any], files: Mapping[str, str]) -> None:
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with replacing(place) as draft:
            draft.mkdir(0o700)
            for name, array in arrays.items():
                np.save(draft / f"{name}.npy", array, allow_pickle=False)
            for name, text in files.items():
                (draft / name).write_text(text, encoding="utf-8")
            (draft / "meta.json").write_text(json.dumps(dict(meta), ensure_ascii=False), encoding="utf-8")
    except OSError as error:
        if not (place / "meta.json").is_file():  # else another process was first, with the same content
            said = f"the data cache {place.parent} can't be written ({error.strerror})"
            raise DataError(f"{said}; name another folder in EDGEFL_CACHE") from error
