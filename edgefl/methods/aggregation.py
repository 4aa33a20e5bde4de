"""Aggregation of updates in delta form, with explicit coefficients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from edgefl.methods.aggregation_options import MEAN, AggregationOptions
from edgefl.methods.state import Update
from edgefl.work import Address

Mix = Callable[[Address, "Cohort"], Mapping[Address, float]]
"""Of an address: whose deltas move it, and how much."""
Parts = dict[Address, list[tuple[float, Tensor]]]
"""What moves each address: coefficients and deltas, in the order in which they are added."""


@dataclass(frozen=True)
class Cohort:
    """Sample counts of a round's updates: per kind (who took part) and per address (over whom its mean is)."""

    by_kind: Mapping[str, float]
    by_address: Mapping[Address, float]


@dataclass(frozen=True)
class Contribution:
    """One client's part in the delta of an address: what it sent, from where, and how much that counts."""

    value: Tensor
    base: Tensor
    weight: float
    factor: float


def by_samples(update: Update) -> float:
    """An update's weight unless a method says otherwise."""
    return update.total


def combine(
    tensors: Mapping[Address, Tensor],
    updates: Sequence[Update],
    mix: Mix,
    weight: Callable[[Update], float] = by_samples,
    options: AggregationOptions = MEAN,
) -> dict[Address, Tensor]:
    """The tensors that change: ``w_a + sum_b mix(a)[b] D_b``, with ``D_b`` as ``deltas`` has it.

    Coefficients that sum to 1 give a plain weighted mean; what they lack keeps the old value (compensation).
    Independent of the order of updates.
    """
    return {a: moved(tensors[a], parts) for a, parts in parts_of(tensors, updates, mix, weight, options).items()}


def parts_of(
    tensors: Mapping[Address, Tensor],
    updates: Sequence[Update],
    mix: Mix,
    weight: Callable[[Update], float],
    options: AggregationOptions,
) -> Parts:
    """The deltas that meet in each of these addresses, with their coefficients; addresses without any are left out."""
    found, cohort = deltas(tensors, updates, weight, options)
    parts = {a: [(c, found[b]) for b, c in mix(a, cohort).items() if b in found and c] for a in tensors}
    return {a: each for a, each in parts.items() if each}


def moved(value: Tensor, parts: Sequence[tuple[float, Tensor]], lr: float = 1.0) -> Tensor:
    """``value + lr sum_b c_b D_b``."""
    new = value.clone()
    for coefficient, delta in parts:
        new.add_(delta, alpha=lr * coefficient)
    return new


def deltas(
    tensors: Mapping[Address, Tensor],
    updates: Sequence[Update],
    weight: Callable[[Update], float],
    options: AggregationOptions,
) -> tuple[dict[Address, Tensor], Cohort]:
    """``D_b = sum_i n_i (w_i,b - base_i,b) / sum_i n_i`` over the updates that sent b, n_i their ``weight``.

    A policy's discount multiplies an update's share without entering the denominator.
    """
    updates = sorted(updates, key=lambda update: update.client)
    by_kind: Counter[str] = Counter()
    by_address: Counter[Address] = Counter()
    sent: dict[Address, list[Contribution]] = {}
    for update in updates:
        counts = weight(update)
        by_kind[update.kind] += counts  # type: ignore[assignment]
        for address, value in update.sent():
            by_address[address] += counts  # type: ignore[assignment]
            base = update.base.get(address)
            if base is not None and base.is_floating_point():
                sent.setdefault(address, []).append(Contribution(value, base, counts, update.discount))
    found = {a: delta(each, by_address[a]) for a, each in sent.items() if by_address[a]}
    return found, Cohort(by_kind, by_address)


def delta(sent: Sequence[Contribution], total: float) -> Tensor:
    """The mean change of an address over ``total`` samples."""
    found = torch.zeros_like(sent[0].base)
    for one in sent:
        found.add_(one.value.to(found.dtype) - one.base, alpha=one.weight / total * one.factor)
    return found
