"""Aggregation of updates in delta form, with explicit coefficients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from edgefl.methods.aggregation.options import MEAN, AggregationOptions
from edgefl.methods.aggregation.senders import Cohort
from edgefl.methods.aggregation.updates import Updates
from edgefl.work import Address
from edgefl.work.sums import exact
from edgefl.work.update import Update


class RowMap(NamedTuple):
    """Rows ``taken`` of an address's delta, which change the rows ``into`` of another address; ``(start, stop)``.

    They relate layers that one model has apart and another as one, such as query, key and value.
    """

    source: Address
    taken: tuple[int, int]
    into: tuple[int, int]


class MixTerm(NamedTuple):
    """A part of an address's mean update: its coefficient, its delta and the rows that it changes (None: all)."""

    coefficient: float
    delta: Tensor
    into: tuple[int, int] | None = None


Source = Address | RowMap
Mix = Callable[[Address, Cohort], Mapping[Any, float]]
"""Maps an address to its ``Source``s, the addresses or rows whose deltas change it, with their coefficients."""
Parts = dict[Address, list[MixTerm]]
"""The terms of each address, in order of addition."""


def usual_weight(update: Update) -> float:
    """Default weight of an update: its number of samples, or 1 where the round policy weighs updates equally."""
    return update.weight


def combine(
    tensors: Mapping[Address, Tensor],
    updates: Sequence[Update],
    mix: Mix,
    weight: Callable[[Update], float] = usual_weight,
    options: AggregationOptions = MEAN,
) -> dict[Address, Tensor]:
    """The tensors that change: ``w_a + sum_b mix(a)[b] D_b``, with ``D_b`` from ``Updates.deltas``.

    Coefficients that sum to 1 give a weighted mean; with a smaller sum, the rest is the old value (compensation).
    Independent of the order of updates.
    """
    parts = parts_of(tensors, *Updates(updates).deltas(tensors, weight, options), mix)
    return {address: moved(tensors[address], terms) for address, terms in parts.items()}


def parts_of(tensors: Mapping[Address, Tensor], changes: Mapping[Address, Tensor], cohort: Cohort, mix: Mix) -> Parts:
    """Coefficients and deltas of each address, of these ``changes``; addresses without any are left out."""
    parts = {}
    for address in tensors:
        mixed = mix(address, cohort)
        if terms := [_term(b, c, changes) for b, c in mixed.items() if c and address_of(b) in changes]:
            parts[address] = terms
    return parts


def address_of(source: Source) -> Address:
    """The address whose delta a source is of."""
    return source.source if isinstance(source, RowMap) else source


def _term(source: Source, coefficient: float, changes: Mapping[Address, Tensor]) -> MixTerm:
    if isinstance(source, RowMap):
        return MixTerm(coefficient, changes[source.source][slice(*source.taken)], source.into)
    return MixTerm(coefficient, changes[source])


def moved(value: Tensor, parts: Sequence[MixTerm], lr: float = 1.0) -> Tensor:
    """``value + lr sum_b c_b D_b``; a term of rows changes these alone."""
    new = exact(value)
    new = new.clone() if new is value else new
    for coefficient, delta, into in parts:
        (new if into is None else new[slice(*into)]).add_(delta, alpha=lr * coefficient)
    return new.to(value.dtype)
