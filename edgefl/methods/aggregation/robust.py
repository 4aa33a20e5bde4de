"""Robust aggregation: coordinate-wise median and trimmed mean, norm clipping, and what isn't finite."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf

from torch import Tensor

from edgefl.methods.aggregation.options import AggregationOptions
from edgefl.methods.state import Update

TRIM = 0.1
"""Share that a trimmed mean drops at each end, unless it is told."""


def centre(values: Tensor, options: AggregationOptions) -> Tensor:
    """``[clients, ...] -> [...]``: each coordinate's median or trimmed mean (Yin et al. 2018, definitions 1 and 2).

    Clients count alike, as published.  Of an even number the median is the mean of the two in the middle; of m values
    the trimmed mean drops floor(trim m) at each end.  Clients may stand in any order.
    """
    count = len(values)
    dropped = (count - 1) // 2
    if options.rule == "trimmed-mean":
        trim = TRIM if options.trim is None else options.trim
        dropped = int(trim * count + 1e-9)  # 30 % of 10 are 3, whatever binary fractions say
    return values.sort(0).values[dropped : count - dropped].mean(0)


def clipping(update: Update, most: float | None) -> float:
    """The factor that brings an update's L2 norm down to ``most`` (Sun et al. 2019), 1 if it is small enough.

    The norm is over everything that is averaged: all floating tensors sent but tables, buffers included.
    """
    if most is None:
        return 1.0
    changes = [
        value.to(base.dtype) - base
        for address, value in update.sent()
        if (base := update.base.get(address)) is not None and base.is_floating_point() and averaged(address)
    ]
    if any(change.is_meta for change in changes):
        return 1.0  # shapes have no norm, and a factor changes none
    norm = sum(float(change.double().square().sum()) for change in changes) ** 0.5
    return min(1.0, most / norm) if norm and norm < inf else 1.0


def averaged(address: str) -> bool:
    """Whether what stands there is averaged, and not a table, of which a method makes what it likes."""
    return not address.startswith("table/")


def finite(payloads: Mapping[str, Mapping[str, Tensor]]) -> bool:
    """Whether what a client sent has neither NaN nor infinity, its tables included."""
    return all(_finite(named.values()) for named in payloads.values())


def _finite(tensors: Iterable[Tensor]) -> bool:
    return all(bool(t.isfinite().all()) for t in tensors if t.is_floating_point())
