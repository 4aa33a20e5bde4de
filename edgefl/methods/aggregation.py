"""Aggregation of updates in delta form, with explicit coefficients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from edgefl.methods.state import Update
from edgefl.work import Address


@dataclass(frozen=True)
class Cohort:
    """Sample counts of a round's updates: per kind (who took part) and per address (who sent it)."""

    by_kind: Mapping[str, float]
    by_address: Mapping[Address, float]


def combine(
    tensors: Mapping[Address, Tensor],
    updates: Sequence[Update],
    mix: Callable[[Address, Cohort], Mapping[Address, float]],
    weight: Callable[[Update], float] = lambda update: update.total,
) -> dict[Address, Tensor]:
    """The tensors that change: ``w_a + sum_b mix(a)[b] D_b``.

    ``D_b = sum_i n_i (w_i,b - base_i,b) / sum_i n_i`` runs over the updates that sent b, with n_i their ``weight``;
    a policy's discount multiplies an update's share without entering the denominator.  Coefficients that sum to 1
    give a plain weighted mean; what they lack keeps the old value (compensation).  Independent of the order of
    updates.
    """
    updates = sorted(updates, key=lambda update: update.client)
    by_kind: Counter[str] = Counter()
    by_address: Counter[Address] = Counter()
    for update in updates:
        by_kind[update.kind] += weight(update)  # type: ignore[assignment]
        for address, _ in update.sent():
            by_address[address] += weight(update)  # type: ignore[assignment]
    cohort = Cohort(by_kind, by_address)
    deltas: dict[Address, Tensor] = {}
    for update in updates:
        for address, value in update.sent():
            base = update.base.get(address)
            if base is None or not base.is_floating_point() or not by_address[address]:
                continue
            share = weight(update) / by_address[address] * update.discount
            delta = deltas.get(address)
            if delta is None:
                delta = deltas[address] = torch.zeros_like(base)
            delta.add_(value.to(base.dtype) - base, alpha=share)
    changed: dict[Address, Tensor] = {}
    for address, value in tensors.items():
        parts = [(c, deltas[b]) for b, c in mix(address, cohort).items() if b in deltas and c]
        if parts:
            new = value.clone()
            for coefficient, delta in parts:
                new.add_(delta, alpha=coefficient)
            changed[address] = new
    return changed
