"""Columns of numbers, each kept once under the digest of its content."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import numpy as np

from edgefl.arrays import AnyArray
from edgefl.drawing.sliders.page_data import PackedColumn, Place

TYPES: Mapping[np.dtype[Any], str] = {
    np.dtype(np.uint8): "u1", np.dtype(np.uint16): "u2", np.dtype(np.uint32): "u4", np.dtype(np.float64): "f8"
}  # fmt: skip
"""The types of columns, the narrowest first."""


class PageColumns:
    """Collects columns; ``untold`` gives those that it hasn't given yet."""

    def __init__(self) -> None:
        self._told: set[Place] = set()
        self._new: dict[Place, PackedColumn] = {}

    def add(self, values: AnyArray) -> Place:
        """Keep these numbers, which are not negative, in the narrowest type that has them exactly."""
        values = np.asarray(values).ravel()
        narrow = np.ascontiguousarray(_narrow_type(values))
        shown = narrow[:1] if len(narrow) and (narrow == narrow[0]).all() else narrow
        data = shown.astype(shown.dtype.newbyteorder("<")).tobytes()
        column = PackedColumn(type=TYPES[shown.dtype], length=len(values), data=base64.b64encode(data).decode())
        name = blake2b(f"{column.type} {column.length} {column.data}".encode(), digest_size=8).hexdigest()
        if name not in self._told:
            self._new[name] = column
        return name

    def untold(self) -> dict[Place, PackedColumn]:
        """The columns that were added since the last call."""
        new, self._new = self._new, {}
        self._told |= new.keys()
        return new


def _narrow_type(values: AnyArray) -> AnyArray:
    """The values as the narrowest unsigned integers, or as 64-bit floating point numbers."""
    if values.dtype.kind == "f" and not (np.isfinite(values) & (values == np.floor(values))).all():
        return values.astype(np.float64)
    most = values.max(initial=0)
    return values.astype(next(kind for kind in TYPES if kind.kind == "f" or most <= np.iinfo(kind).max))


def numbers(column: PackedColumn) -> AnyArray:
    """The numbers of a column."""
    read = np.frombuffer(base64.b64decode(column.data), np.dtype(column.type).newbyteorder("<"))
    return read if len(read) == column.length else np.broadcast_to(read[0], column.length)
