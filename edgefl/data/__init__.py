"""Data: sets, partitions, tokenizers, and the Source that a work reads."""

from edgefl.data.collection import Collection, DataSet, FolderSet, Wanted
from edgefl.data.federation import Federation
from edgefl.data.fingerprints import made_of, one_look, unrevised
from edgefl.data.opening import open_federation
from edgefl.data.options import KINDS, DataOptions
from edgefl.data.samples import Samples
from edgefl.data.shipping import Cargo, packed, unpacked

__all__ = [
    "KINDS", "Cargo", "Collection", "DataOptions", "DataSet", "Federation", "FolderSet", "Samples", "Wanted",
    "made_of", "one_look", "open_federation", "packed", "unpacked", "unrevised",
]  # fmt: skip
