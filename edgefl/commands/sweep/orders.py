"""How alike two orders are: Kendall's tau-b from the signs of pairs."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Signs = NDArray[np.int8]


def tau_of_signs(before: Signs, after: Signs) -> float:
    """Kendall's tau-b of two orders, from the signs of their pairs; NaN if all pairs are level in only one of them.

    M. G. Kendall, The treatment of ties in ranking problems (Biometrika 33, 1945).
    """
    untied_before, untied_after = np.abs(before).sum(dtype=np.int64), np.abs(after).sum(dtype=np.int64)
    if not untied_before or not untied_after:
        return 1.0 if untied_before == untied_after else float("nan")
    return float((before.astype(np.int64) * after).sum() / np.sqrt(float(untied_before) * float(untied_after)))


def kendall_tau(first: ArrayLike, second: ArrayLike) -> float:
    """Kendall's tau-b of two lists of numbers."""
    return tau_of_signs(*(_signs(np.asarray(values, dtype=np.float64)) for values in (first, second)))


def _signs(values: NDArray[np.float64]) -> Signs:
    return np.sign(values[:, None] - values[None, :]).astype(np.int8)
