"""Arrays on disk: built once, memory-mapped by every process that needs them.

An entry is a folder named by the hash of everything it was made from.  It is written under a temporary name and
renamed, so that readers never see a partial entry and processes can build the same entry at once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Required, TypedDict

import numpy as np
import numpy.typing as npt

from edgefl.data.options import Kind
from edgefl.errors import DataError
from edgefl.files import replacing

Array = npt.NDArray[Any]


class Meta(TypedDict, total=False):
    """Metadata: of a collection its classes and the code that made it, of a dealt one all else."""

    arrays: Required[list[str]]
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


@dataclass(frozen=True)
class Entry:
    """A folder of arrays with metadata in JSON."""

    path: Path
    meta: Meta

    def array(self, name: str) -> Array:
        """The array saved under ``name``, memory-mapped and read-only."""
        return np.load(self.path / f"{name}.npy", mmap_mode="r", allow_pickle=False)  # type: ignore[no-any-return]


def entry(cache: Path, name: str, build: Callable[[], tuple[Mapping[str, Array], Meta, Mapping[str, str]]]) -> Entry:
    """The entry ``name`` (a relative path), built if missing: ``build()`` returns arrays, metadata and text files.

    Raises DataError if the cache folder can't be written.
    """
    folder = cache / name
    if not (folder / "meta.json").is_file():
        _write(folder, *build())
    return Entry(folder, json.loads((folder / "meta.json").read_text(encoding="utf-8")))


def _write(folder: Path, arrays: Mapping[str, Array], meta: Meta, files: Mapping[str, str]) -> None:
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with replacing(folder) as draft:
            draft.mkdir(0o700)
            for name, array in arrays.items():
                np.save(draft / f"{name}.npy", array, allow_pickle=False)
            for name, text in files.items():
                (draft / name).write_text(text, encoding="utf-8")
            (draft / "meta.json").write_text(json.dumps(meta, ensure_ascii=False), encoding="utf-8")
    except OSError as error:
        if not (folder / "meta.json").is_file():  # else another process wrote the same content first
            # numpy's error, when it could write a part of an array only, has a message and no number
            message = f"the data cache {folder.parent} can't be written ({error.strerror or error})"
            raise DataError(f"{message}; name another folder in EDGEFL_CACHE") from error
