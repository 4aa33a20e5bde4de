"""Aggregation of updates in delta form, with explicit coefficients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor

from edgefl.methods.aggregation import krum
from edgefl.methods.aggregation.options import KRUM, MEAN, AggregationOptions
from edgefl.methods.aggregation.robust import centre, clipping
from edgefl.methods.state import Update
from edgefl.work import Address
from edgefl.work.slices import Cut, covers, put, shape_of, take, within

Mix = Callable[[Address, "Cohort"], Mapping[Address, float]]
"""Maps an address to the addresses whose deltas change it, with their coefficients."""
Parts = dict[Address, list[tuple[float, Tensor]]]
"""Coefficients and deltas of each address, in order of addition."""


@dataclass(frozen=True)
class Cohort:
    """Sample counts of a round's updates: by kind (participants) and by address (denominator of its mean)."""

    by_kind: Mapping[str, float]
    by_address: Mapping[Address, float]


@dataclass(frozen=True)
class Contribution:
    """One client's part in the delta of an address: its value, base, weight and factor.

    ``cut`` is the part of the server's tensor that value and base cover, None for all of it.  ``share`` is its part in
    the mean under the rules that keep some updates whole, 0 for an update that isn't kept.
    """

    value: Tensor
    base: Tensor
    weight: float
    factor: float
    cut: Cut | None = None
    share: float = 1.0

    def within(self, cut: Cut | None) -> Contribution:
        """This contribution, limited to ``cut``, which it must cover."""
        inner = within(self.cut, cut)
        return replace(self, value=take(self.value, inner), base=take(self.base, inner), cut=cut)


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
    """The tensors that change: ``w_a + sum_b mix(a)[b] D_b``, with ``D_b`` from ``deltas``.

    Coefficients that sum to 1 give a weighted mean; with a smaller sum, the rest is the old value (compensation).
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
    """Coefficients and deltas of each address; addresses without any are left out."""
    changes, cohort = deltas(tensors, updates, weight, options)
    parts = {a: [(c, changes[b]) for b, c in mix(a, cohort).items() if b in changes and c] for a in tensors}
    return {a: terms for a, terms in parts.items() if terms}


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

    With compensation the denominator is over all updates of the kind that b belongs to.  A policy's weight factor
    multiplies an update's share without entering the denominator.
    """
    updates = sorted(updates, key=lambda update: update.client)
    by_kind: Counter[str] = Counter()
    senders: Counter[Address] = Counter()
    kinds_of: dict[Address, set[str]] = {}
    sent: dict[Address, list[Contribution]] = {}
    weights = [weight(update) for update in updates]
    factors = [update.weight_factor * clipping(update, options.clip) for update in updates]
    shares = krum.shares(updates, weights, factors, options) if options.rule in KRUM else [1.0] * len(updates)
    for update, counts, factor, share in zip(updates, weights, factors, shares, strict=True):
        by_kind[update.kind] += counts  # type: ignore[assignment]
        cuts = update.cuts()
        for address, value in update.sent():
            senders[address] += counts  # type: ignore[assignment]
            kinds_of.setdefault(address, set()).add(update.kind)
            base = update.base.get(address)
            if base is not None and base.is_floating_point():
                one = Contribution(value, base, counts, factor, cuts.get(address), share)
                sent.setdefault(address, []).append(one)
    by_address: Mapping[Address, float] = senders
    if options.compensation:
        # a parameter that no client of its kind sent has a denominator too, if it is shared with other kinds
        kinds = {a: {a.split("/", 1)[0]} & by_kind.keys() or kinds_of.get(a, set()) for a in {**tensors, **kinds_of}}
        by_address = {a: sum(by_kind[kind] for kind in names) for a, names in kinds.items() if names}
    changes = {}
    for address, contributions in sent.items():
        if not by_address[address]:
            continue
        if any(contribution.cut is not None for contribution in contributions):
            total = by_address[address] if options.compensation else None
            changes[address] = delta_by_element(contributions, tensors[address], total, options)
        else:
            changes[address] = delta(contributions, senders[address], by_address[address], options)
    return changes, Cohort(by_kind, by_address)


def delta(sent: Sequence[Contribution], senders: float, total: float, options: AggregationOptions) -> Tensor:
    """The mean change of an address over ``total`` samples, of which ``senders`` are of clients that sent it."""
    mean = torch.zeros_like(sent[0].base)
    if options.rule == "mean":
        for item in sent:
            mean.add_(
                item.value.to(mean.dtype) - item.base,
                alpha=item.weight / total * item.factor,
            )
        return mean
    if options.rule in KRUM:
        kept = [item for item in sent if item.share]
        whole = sum(item.share for item in kept)
        for item in kept:
            alpha = item.share / whole * item.factor * (senders / total)
            mean.add_(item.value.to(mean.dtype) - item.base, alpha=alpha)
        return mean
    changes = [(item.value.to(mean.dtype) - item.base) * item.factor for item in sent if item.weight]
    return centre(torch.stack(changes), options) * (senders / total) if changes else mean


def delta_by_element(
    sent: Sequence[Contribution], whole: Tensor, total: float | None, options: AggregationOptions
) -> Tensor:
    """The mean change of each element over the clients that sent it (HeteroFL), 0 if none did.

    Slices are nested, so that all clients sent the elements of the smallest.  The mean is over ``total`` samples if
    it is given.
    """
    mean = torch.zeros_like(whole)
    # the largest first: smaller slices overwrite their part with the mean over more clients
    for cut in sorted({item.cut for item in sent}, key=lambda cut: -prod(shape_of(cut) if cut else whole.shape)):
        part = [item.within(cut) for item in sent if covers(item.cut, cut)]
        senders = sum(item.weight for item in part)
        if senders:
            put(mean, cut, delta(part, senders, senders if total is None else total, options))
    return mean
