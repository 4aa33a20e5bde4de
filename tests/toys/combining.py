"""The mean of updates as methods have it, on tensors without a method: the coefficients on the changes of addresses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from edgefl.methods import Update
from edgefl.methods.aggregation.combine import Mix, apply_terms, parts_of
from edgefl.methods.aggregation.options import MEAN, AggregationOptions
from edgefl.methods.aggregation.updates import Updates


def usual_weight(update: Update) -> float:
    """The weight that ``Method.update_weight`` gives by default."""
    return update.weight


def combine(
    tensors: Mapping[str, Tensor],
    updates: Sequence[Update],
    mix: Mix,
    weight: Callable[[Update], float] = usual_weight,
    options: AggregationOptions = MEAN,
) -> dict[str, Tensor]:
    """The tensors that change: ``w_a + sum_b mix(a)[b] D_b``."""
    parts = parts_of(tensors, *Updates(updates).deltas(tensors, weight, options), mix)
    return {address: apply_terms(tensors[address], terms) for address, terms in parts.items()}
