"""Types of NumPy arrays by what they hold, for annotations; a docstring says their shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.integer[Any]]
"""Of any width: clients' numbers are int64, and columns of a fleet have the smallest type that holds them."""
Booleans = NDArray[np.bool_]
AnyArray = NDArray[Any]


class JoinedArray:
    """Arrays `[n, ...]` one after the other, as one whose rows are read where they are: on disk, of several files."""

    def __init__(self, arrays: Sequence[AnyArray]):
        self._arrays, self._ends = arrays, np.cumsum([len(array) for array in arrays])
        self._rows = int(self._ends[-1])
        self.shape = (self._rows, *arrays[0].shape[1:])
        self.dtype, self.ndim = arrays[0].dtype, arrays[0].ndim

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, rows: Integers) -> AnyArray:
        """A copy `[*rows.shape, ...]` of these rows, of all arrays in their order."""
        rows = np.asarray(rows)
        found = np.empty((*rows.shape, *self.shape[1:]), self.dtype)
        of = np.searchsorted(self._ends, rows, side="right")
        for index, array in enumerate(self._arrays):
            found[of == index] = array[rows[of == index] - (self._ends[index] - len(array))]
        return found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> AnyArray:
        """All rows, for another machine."""
        return np.concatenate(self._arrays).astype(dtype or self.dtype, copy=False)
