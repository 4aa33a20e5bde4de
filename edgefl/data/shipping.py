"""A federation's arrays as they are sent to another machine, which needs neither the files nor the packages."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from edgefl.arrays import AnyArray
from edgefl.data.federation import Federation
from edgefl.data.opening import merge_parts
from edgefl.data.options import DataOptions
from edgefl.data.stored_arrays import Meta, StoredEntry
from edgefl.data.stored_set import FederationPart
from edgefl.errors import DataError
from edgefl.modalities import KINDS

Cargo = dict[str, list["Crate"]]
"""By source: the collection, and its part of the federation."""


class Crate(NamedTuple):
    """What an entry of the store has: its name, its metadata, and its arrays."""

    name: str
    meta: Meta
    arrays: Mapping[str, AnyArray]


def pack_federation(federation: Federation, options: DataOptions) -> Cargo:
    """All arrays of a federation.  Raises DataError if a registered set makes its samples itself."""
    if not federation.stored_sources:
        raise DataError(f"{federation.title} makes its samples itself: it can't be sent to workers")
    entries = zip(options.parts, federation.stored_sources, strict=True)
    return {name: [_crate(entry) for entry in pair] for name, pair in entries}


def unpack_federation(cargo: Cargo, options: DataOptions) -> Federation:
    """The federation of what ``pack_federation`` returned, before clients hold samples out."""
    tasks = {kind: options.task_of(kind) for kind in KINDS if options.clients.get(kind)}
    entries = {
        name: [StoredEntry(Path(crate.name), crate.meta, crate.arrays) for crate in pair]
        for name, pair in cargo.items()
    }
    return merge_parts(
        {name: FederationPart(collection, dealt, tasks) for name, (collection, dealt) in entries.items()}, options
    )


def _crate(entry: StoredEntry) -> Crate:
    arrays = {name: np.asarray(array) for name, array in entry.arrays.items()}
    return Crate(entry.path.name, entry.meta, arrays)
