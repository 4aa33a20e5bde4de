"""Tensors on disk: a file without a name, to which they are appended, and which is read through memory maps."""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from threading import Lock

from torch import Tensor

from edgefl.errors import RunError
from edgefl.runs.durable import writing
from edgefl.runs.kept import TensorLayout, ensure_folder, map_tensors, write_at


class Spilled(Mapping[str, Tensor]):
    """Tensors that were added to a file: names, dtypes and shapes, and the byte at which they begin.

    As a mapping they are read when one is first asked for, and stay mapped as long as this object lives.
    """

    def __init__(self, file: TensorFile, begin: int, layout: TensorLayout):
        self._file, self._begin, self.layout = file, begin, layout

    def read(self, names: Sequence[str]) -> dict[str, Tensor]:
        """The tensors of these names, which this object doesn't hold.  Raises RunError if they can't be read."""
        return self._file.read(self._begin, self.layout, names)

    @cached_property
    def _tensors(self) -> dict[str, Tensor]:
        return self.read(self.layout.names)

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.layout.names)

    def __len__(self) -> int:
        return len(self.layout.names)


class TensorFile:
    """A temporary file of tensors in ``folder``, which is made if it isn't there.

    It has no name, so nothing is left of it after a crash; its space is free again when neither this object nor a
    tensor that was read refers to it.
    """

    def __init__(self, folder: Path):
        with writing(folder):
            self._file = tempfile.TemporaryFile(dir=ensure_folder(folder), buffering=0)  # noqa: SIM115 - open as long as it lives
        self._folder, self._end, self._lock = folder, 0, Lock()
        weakref.finalize(self, self._file.close)

    def add(self, tensors: Mapping[str, Tensor]) -> Spilled:
        """Append tensors; threads may do so at once.  Raises RunError, such as on a full disk."""
        layout = TensorLayout.from_tensors(tensors)
        with self._lock, writing(self._folder):
            begin = self._end
            write_at(self._file, begin, tensors.values())
            self._end += layout.size
        return Spilled(self, begin, layout)

    def read(self, begin: int, layout: TensorLayout, names: Sequence[str]) -> dict[str, Tensor]:
        """Some of the tensors of a layout.  Raises RunError if they can't be read."""
        try:
            return map_tensors(self._file.fileno(), begin, layout, names)
        except (OSError, ValueError) as error:
            raise RunError(f"can't read tensors of {self._folder}: {error}") from error
