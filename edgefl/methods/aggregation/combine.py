"""Aggregation of updates in delta form, with explicit coefficients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor

from edgefl.methods.aggregation.options import MEAN, AggregationOptions
from edgefl.methods.aggregation.robust import centre, clipping
from edgefl.methods.state import Update
from edgefl.work import Address
from edgefl.work.slices import Cut, covers, put, shape_of, take, within

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
    """One client's part in the delta of an address: what it sent, from where, and how much that counts.

    ``cut`` is the part of the server's tensor that they are of, if not all.
    """

    value: Tensor
    base: Tensor
    weight: float
    factor: float
    cut: Cut | None = None

    def within(self, cut: Cut | None) -> Contribution:
        """The contribution to a part that this one covers."""
        inner = within(self.cut, cut)
        return replace(self, value=take(self.value, inner), base=take(self.base, inner), cut=cut)


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

    With compensation the denominator is over all updates of the kind that b belongs to.  A policy's discount
    multiplies an update's share without entering the denominator.
    """
    updates = sorted(updates, key=lambda update: update.client)
    by_kind: Counter[str] = Counter()
    senders: Counter[Address] = Counter()
    of_kinds: dict[Address, set[str]] = {}
    sent: dict[Address, list[Contribution]] = {}
    for update in updates:
        counts, factor = weight(update), update.discount * clipping(update, options.clip)
        by_kind[update.kind] += counts  # type: ignore[assignment]
        cuts = update.cuts()
        for address, value in update.sent():
            senders[address] += counts  # type: ignore[assignment]
            of_kinds.setdefault(address, set()).add(update.kind)
            base = update.base.get(address)
            if base is not None and base.is_floating_point():
                sent.setdefault(address, []).append(Contribution(value, base, counts, factor, cuts.get(address)))
    by_address: Mapping[Address, float] = senders
    if options.compensation:
        # a parameter that nobody of its kind sent counts too, where it meets those of other kinds
        kinds = {a: {a.split("/", 1)[0]} & by_kind.keys() or of_kinds.get(a, set()) for a in {**tensors, **of_kinds}}
        by_address = {a: sum(by_kind[kind] for kind in of) for a, of in kinds.items() if of}
    found = {}
    for address, each in sent.items():
        if not by_address[address]:
            continue
        if any(one.cut is not None for one in each):
            all_of = by_address[address] if options.compensation else None
            found[address] = delta_by_element(each, tensors[address], all_of, options)
        else:
            found[address] = delta(each, senders[address], by_address[address], options)
    return found, Cohort(by_kind, by_address)


def delta(sent: Sequence[Contribution], senders: float, total: float, options: AggregationOptions) -> Tensor:
    """The mean change of an address over ``total`` samples, of which ``senders`` are theirs who sent it."""
    found = torch.zeros_like(sent[0].base)
    if options.rule == "mean":
        for one in sent:
            found.add_(one.value.to(found.dtype) - one.base, alpha=one.weight / total * one.factor)
        return found
    changes = [(one.value.to(found.dtype) - one.base) * one.factor for one in sent if one.weight]
    return centre(torch.stack(changes), options) * (senders / total) if changes else found


def delta_by_element(
    sent: Sequence[Contribution], whole: Tensor, total: float | None, options: AggregationOptions
) -> Tensor:
    """The mean change of each element over those who sent it (HeteroFL), 0 where nobody did.

    Slices lie one within the other, so that the elements of the smallest were sent by all.  The mean is over ``total``
    samples if it is given.
    """
    found = torch.zeros_like(whole)
    # the largest first: within a smaller one more have sent their part
    for cut in sorted({one.cut for one in sent}, key=lambda cut: -prod(shape_of(cut) if cut else whole.shape)):
        part = [one.within(cut) for one in sent if covers(one.cut, cut)]
        senders = sum(one.weight for one in part)
        if senders:
            put(found, cut, delta(part, senders, senders if total is None else total, options))
    return found
