"""Data: sets, partitions, tokenizers, and the Source that a work reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgefl import first_use

if TYPE_CHECKING:
    from edgefl.data.collection import Collection, DataSet, FolderRequest, FolderSet
    from edgefl.data.federation import Federation
    from edgefl.data.fingerprints import data_fingerprint, revision_warnings
    from edgefl.data.look import one_look
    from edgefl.data.opening import open_federation, with_named_clients
    from edgefl.data.options import DataOptions
    from edgefl.data.samples import Samples
    from edgefl.data.shipping import Cargo, pack_federation, unpack_federation

__all__ = [
    "Cargo", "Collection", "DataOptions", "DataSet", "Federation", "FolderSet", "Samples", "FolderRequest",
    "data_fingerprint", "one_look", "open_federation", "pack_federation", "unpack_federation", "revision_warnings",
    "with_named_clients",
]  # fmt: skip

_MODULES = {
    **dict.fromkeys(("Collection", "DataSet", "FolderSet", "FolderRequest"), "collection"),
    "Federation": "federation",
    **dict.fromkeys(("data_fingerprint", "revision_warnings"), "fingerprints"),
    "one_look": "look",
    **dict.fromkeys(("open_federation", "with_named_clients"), "opening"),
    "DataOptions": "options",
    "Samples": "samples",
    **dict.fromkeys(("Cargo", "pack_federation", "unpack_federation"), "shipping"),
}
"""Module of each public name."""

__getattr__ = first_use.imports(__name__, _MODULES)
