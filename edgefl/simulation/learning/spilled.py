"""Updates on disk: a file without a name, to which tensors are appended, and which is read through one memory map."""

from __future__ import annotations

import mmap
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from functools import cached_property
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from edgefl.runs.durable import writing
from edgefl.runs.kept import Layout, write_at


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

    def add(self, tensors: Mapping[str, Tensor]) -> Spilled:
        """Append tensors; returns them as they are read again.  Raises RunError, such as on a full disk."""
        begin, layout = self._end, Layout.of(tensors)
        with writing(self._folder):
            write_at(self._file, self._end, tensors.values())
        self._end += layout.size
        return Spilled(self, begin, layout)

    def read(self, begin: int, layout: Layout) -> dict[str, Tensor]:
        """Tensors that were appended, through a map of the whole file that lasts as long as they do.

        Raises RunError if the file can't be mapped.
        """
        with writing(self._folder):
            if self._end and (self._view is None or len(self._view) < self._end):
                self._view = mmap.mmap(self._file.fileno(), self._end)
        tensors = {}
        for name, (offset, dtype, shape) in layout.places.items():
            count = prod(shape)
            if self._view is None or not count:
                tensors[name] = torch.empty(shape, dtype=dtype)
            else:
                at = begin + offset
                tensors[name] = torch.frombuffer(self._view, dtype=dtype, count=count, offset=at).reshape(shape)
        return tensors


class Spilled(Mapping[str, Tensor]):
    """A payload in such a file, which is mapped when it is first asked for."""

    def __init__(self, spill: Spill, begin: int, layout: Layout):
        self._spill, self._begin, self._layout = spill, begin, layout

    @cached_property
    def _tensors(self) -> dict[str, Tensor]:
        return self._spill.read(self._begin, self._layout)

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._layout.names)

    def __len__(self) -> int:
        return len(self._layout.names)
