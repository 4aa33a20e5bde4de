"""Robust aggregation: coordinate-wise median, trimmed mean and norm clipping."""

from __future__ import annotations

from math import inf

from torch import Tensor

from edgefl.methods.aggregation.options import AggregationOptions
from edgefl.methods.state import Update

TRIM = 0.1
"""Default share that a trimmed mean drops at each end."""


def centre(values: Tensor, options: AggregationOptions) -> Tensor:
    """``[clients, ...] -> [...]``: each coordinate's median or trimmed mean (Yin et al. 2018, definitions 1 and 2).

    Clients have equal weight, as published.  The median of an even number is the mean of the two middle values; the
    trimmed mean of m values drops floor(trim m) at each end.  The order of clients doesn't matter.
    """
    count = len(values)
    dropped = (count - 1) // 2
    if options.rule == "trimmed-mean":
        trim = TRIM if options.trim is None else options.trim
        dropped = int(trim * count + 1e-9)  # 30 % of 10 is 3, despite binary fractions
    return values.sort(0).values[dropped : count - dropped].mean(0)


def clipping(update: Update, largest: float | None) -> float:
    """The factor that brings an update's L2 norm down to ``most`` (Sun et al. 2019), 1 if it is small enough.

    The norm is over everything that is averaged: all floating tensors sent but tables, buffers included.
    """
    if largest is None:
        return 1.0
    norm = update.norm()
    return min(1.0, largest / norm) if norm and norm < inf else 1.0
