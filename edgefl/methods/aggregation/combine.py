"""Aggregation of updates in delta form, with explicit coefficients."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from torch import Tensor

from edgefl.methods.aggregation.senders import Cohort
from edgefl.methods.aggregation.updates import Updates
from edgefl.work import Address
from edgefl.work.slices import take
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


def parts_of(
    tensors: Mapping[Address, Tensor],
    changes: Mapping[Address, Tensor],
    cohort: Cohort,
    mix: Mix,
    buffers: Container[Address] = (),
) -> Parts:
    """Coefficients and deltas of each address, of these ``changes``; addresses without any are left out.

    Where another address's change moves a buffer, it is that to the buffer's own value: ``w_b + D_b - w_a``.
    """
    parts = {}
    for address in tensors:
        mixed = mix(address, cohort)
        starts = tensors if address in buffers else {}
        if terms := [_term(address, b, c, changes, starts) for b, c in mixed.items() if c and address_of(b) in changes]:
            parts[address] = terms
    return parts


def with_current_statistics(
    tensors: Mapping[Address, Tensor], updates: Updates, buffers: Container[Address]
) -> Updates:
    """The updates with buffers as changes of the server's current values, whatever values their clients began with.

    Buffers are statistics, no directions: the sum of a running variance and of differences to older ones comes below
    zero.  With this a buffer becomes ``w + sum_i share_i (w_i - w)``, a mean of values.
    """
    bases: dict[tuple[int, int], Mapping[Address, Tensor]] = {}

    def from_current(update: Update) -> Update:
        # ids of what ``updates`` holds; clients that began alike share one base, here too
        key = id(update.base), id(update.work.up)
        if key not in bases:
            items = (i for payload in update.work.up for i in payload.items if i.source in buffers)
            current = {i.source: take(tensors[i.source], i.cut) for i in items if i.source in update.base}
            same = all(update.base[address] is value for address, value in current.items())
            bases[key] = update.base if same else {**update.base, **current}
        base = bases[key]
        return update if base is update.base else replace(update, base=base)

    return Updates(map(from_current, updates))


def address_of(source: Source) -> Address:
    """The address whose delta a source is of."""
    return source.source if isinstance(source, RowMap) else source


def _term(
    address: Address,
    source: Source,
    coefficient: float,
    changes: Mapping[Address, Tensor],
    starts: Mapping[Address, Tensor],
) -> MixTerm:
    """A term of an address's mean update; ``starts`` are the values from which a buffer moves, empty for others."""
    taken, into = (source.taken, source.into) if isinstance(source, RowMap) else (None, None)
    other = address_of(source)
    delta = _rows(changes[other], taken)
    if starts and other != address:
        delta = delta + (exact(_rows(starts[other], taken)) - exact(_rows(starts[address], into)))
    return MixTerm(coefficient, delta, into)


def _rows(tensor: Tensor, which: tuple[int, int] | None) -> Tensor:
    return tensor if which is None else tensor[slice(*which)]


def apply_terms(value: Tensor, parts: Sequence[MixTerm], lr: float = 1.0) -> Tensor:
    """``value + lr sum_b c_b D_b``; a term of rows changes these alone."""
    new = exact(value)
    new = new.clone() if new is value else new  # a state's tensors are never changed in place
    for coefficient, delta, into in parts:
        _rows(new, into).add_(delta, alpha=lr * coefficient)
    return new.to(value.dtype)
