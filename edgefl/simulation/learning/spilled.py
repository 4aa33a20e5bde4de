"""Updates on disk: a file without a name, to which tensors are appended, and which is read through one memory map."""

from __future__ import annotations

import mmap
import tempfile
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from edgefl.runs.durable import writing
from edgefl.runs.kept import Layout, write_at


@dataclass(frozen=True)
class Place:
    """Where some tensors lie in the file: the byte at which they begin, and their names, dtypes and shapes."""

    begin: int
    layout: Layout


class Spill:
    """A temporary file of tensors in ``folder``.

    It has no name, so nothing is left of it after a crash.  Its space is free again when neither this object nor a
    tensor that was read refers to it.  The system may drop its pages from memory and read them again.
    """

    def __init__(self, folder: Path):
        with writing(folder):
            self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - open as long as it lives
        self._folder, self._end = folder, 0
        self._view: mmap.mmap | None = None
        weakref.finalize(self, self._file.close)

    def add(self, tensors: Mapping[str, Tensor]) -> Place:
        """Append tensors.  Raises RunError, such as on a full disk."""
        place = Place(self._end, Layout.of(tensors))
        with writing(self._folder):
            write_at(self._file, self._end, tensors.values())
        self._end += place.layout.size
        return place

    def read(self, place: Place) -> dict[str, Tensor]:
        """Tensors that were appended, through a map of the whole file that lasts as long as they do.

        Raises RunError if the file can't be mapped.
        """
        with writing(self._folder):
            if self._end and (self._view is None or len(self._view) < self._end):
                self._view = mmap.mmap(self._file.fileno(), self._end)
        tensors = {}
        for name, (begin, dtype, shape) in place.layout.places.items():
            count = prod(shape)
            if self._view is None or not count:
                tensors[name] = torch.empty(shape, dtype=dtype)
            else:
                at = place.begin + begin
                tensors[name] = torch.frombuffer(self._view, dtype=dtype, count=count, offset=at).reshape(shape)
        return tensors
