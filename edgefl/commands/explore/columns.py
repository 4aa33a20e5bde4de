"""Columns of numbers, each kept once under the digest of its content."""

from __future__ import annotations

import base64
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.records.explore import Column, Place

WIDTHS = (np.uint8, np.uint16, np.uint32)


class Columns:
    """Collects columns; ``untold`` gives those that it hasn't given yet."""

    def __init__(self) -> None:
        self._told: set[Place] = set()
        self._new: dict[Place, Column] = {}

    def add(self, values: NDArray[Any]) -> Place:
        """Keep these numbers, which are not negative, in the narrowest type that has them exactly."""
        values = np.asarray(values).ravel()
        narrow = np.ascontiguousarray(_narrowed(values))
        shown = narrow[:1] if len(narrow) and (narrow == narrow[0]).all() else narrow
        kind, data = f"{shown.dtype.kind}{shown.dtype.itemsize}", shown.astype(shown.dtype.newbyteorder("<")).tobytes()
        name = blake2b(f"{kind} {len(values)} ".encode() + data, digest_size=8).hexdigest()
        if name not in self._told and name not in self._new:
            self._new[name] = Column(type=kind, length=len(values), data=base64.b64encode(data).decode())
        return name

    def untold(self) -> dict[Place, Column]:
        """The columns that were added since the last call."""
        new, self._new = self._new, {}
        self._told |= new.keys()
        return new


def _narrowed(values: NDArray[Any]) -> NDArray[Any]:
    """The values as the narrowest unsigned integers, or as 64-bit floating point numbers."""
    if values.dtype.kind == "f" and not (np.isfinite(values) & (values == np.floor(values))).all():
        return values.astype(np.float64)
    most = values.max(initial=0)
    kind = next((kind for kind in WIDTHS if most <= np.iinfo(kind).max), np.float64)
    return values.astype(kind)
