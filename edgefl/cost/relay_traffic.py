"""The bytes that a relay moves for its clients: what they download, once, and the sum of what they upload."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch

from edgefl.models.model import DTYPES
from edgefl.work import Address, Item, Payload, TensorSpec
from edgefl.work.description import DTYPE_NAMES
from edgefl.work.slices import Cut, covers
from edgefl.work.sums import is_averaged

Wire = tuple[tuple[str, TensorSpec], ...]
"""The tensors that travel for an item: name, shape and dtype of each (``Payload.wire``)."""


def shared_bytes(downloads: Iterable[tuple[Payload, ...]]) -> int:
    """Serialised bytes that a relay downloads for clients with these ``downloads``: every tensor once.

    The largest download comes whole, and of each other one what none before it had.  Where no codec encodes it, a part
    of a tensor (``Item.cut``) has come with a part that covers it.  So the bytes are at least those of the largest
    download, and at most those of all.
    """
    held: dict[Address, list[tuple[Cut | None, Wire, bool]]] = {}

    def wire_of(payload: Payload, item: Item) -> Wire:
        return tuple(payload.wire(item).items())

    def is_new(payload: Payload, item: Item) -> bool:
        wire = wire_of(payload, item)
        return not any(
            (cut, sent) == (item.cut, wire) or (plain and payload.codec is None and covers(cut, item.cut))
            for cut, sent, plain in held.get(item.source, ())
        )

    total = 0
    for payloads in sorted(downloads, key=lambda each: -sum(payload.serialised_bytes for payload in each)):
        total += sum(p.only(lambda item, p=p: is_new(p, item)).serialised_bytes for p in payloads)  # type: ignore[misc]
        for payload in payloads:
            for item in payload.items:
                entry = item.cut, wire_of(payload, item), payload.codec is None
                held.setdefault(item.source, []).append(entry)
    return total


def summed_bytes(uploads: Iterable[tuple[Payload, ...]]) -> int:
    """Serialised bytes of the sum of updates with these ``uploads``: every tensor that any of them sends, once.

    Updates are decoded before they are added up, so a codec doesn't make their sum smaller, and they are added up in
    float32 (or in float64, if they are sent in it).  Tensors that no mean is taken of aren't in the sum.  The weights
    of the updates, a number for each tensor, count no more than the number of samples beside a client's update.
    """
    return shared_bytes(tuple(map(_summed_payload, payloads)) for payloads in uploads)


def _summed_payload(payload: Payload) -> Payload:
    """The payload as it is added up."""
    items = []
    for item in payload.items:
        dtype = DTYPES[item.dtype]
        if is_averaged(item.source) and dtype.is_floating_point:
            items.append(replace(item, dtype=DTYPE_NAMES[torch.promote_types(dtype, torch.float32)]))
    return replace(payload, items=tuple(items), codec=None)
