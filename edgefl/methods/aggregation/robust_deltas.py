"""Changes of parameters by the rules that compare updates with each other: all of a round's are needed at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod

import torch
from torch import Tensor

from edgefl.methods.aggregation import rules
from edgefl.methods.aggregation.rules import ByCoordinate, ByUpdate
from edgefl.methods.aggregation.senders import Cohort, Senders, cohort_counts
from edgefl.work import Address
from edgefl.work.slices import Cut, covers, shape_of, take, within, write_slice
from edgefl.work.sums import exact
from edgefl.work.update import Update

_AT_ONCE, _ALIGNED = 2**22, 2**12
"""Numbers of all clients together that a robust rule compares at a time, in parts of a multiple of so many coordinates:
more than the processor adds up at once, so that the bits are those of one part.  The median of 20 clients takes as long
with 2^18 as with 2^22 numbers, which are 16 MiB, and a sixth longer with 2^24 and with 2^16."""


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


def with_values(update: Update) -> Update:
    """The update with all its values in memory, which may be made when they are read."""
    return replace(update, payloads={name: dict(values) for name, values in update.payloads.items()})


def deltas(
    tensors: Mapping[Address, Tensor],
    updates: Sequence[Update],
    weight: Callable[[Update], float],
    rule: ByCoordinate | ByUpdate,
) -> tuple[dict[Address, Tensor], Cohort]:
    """The changes of addresses by a robust rule, and the cohort's counts; see ``Updates.deltas``."""
    updates, options = [with_values(update) for update in updates], rule.section
    sent: dict[Address, list[Contribution]] = {}
    weights = [weight(update) for update in updates]
    senders, cohort = cohort_counts(Senders(updates), tensors, weights, options)
    by_address = cohort.by_address
    factors = [update.weight_factor * update.clipping(options.clip) for update in updates]
    shares = [1.0] * len(updates)
    if isinstance(rule, ByUpdate):
        shares = rules.shares(rule, updates, weights, factors)
    for update, counts, factor, share in zip(updates, weights, factors, shares, strict=True):
        cuts = update.cuts()
        for address, value in update.uploaded_tensors():
            base = update.base.get(address)
            if base is not None and base.is_floating_point():
                one = Contribution(value, base, counts, factor, cuts.get(address), share)
                sent.setdefault(address, []).append(one)
    changes = {}
    for address, contributions in sent.items():
        if not by_address[address]:
            continue
        if any(contribution.cut is not None for contribution in contributions):
            total = by_address[address] if options.compensation else None
            changes[address] = delta_by_element(contributions, tensors[address], total, rule)
        else:
            changes[address] = delta(contributions, senders[address], by_address[address], rule)
    return changes, cohort


def delta(sent: Sequence[Contribution], senders: float, total: float, rule: ByCoordinate | ByUpdate) -> Tensor:
    """The mean change of an address over ``total`` samples, of which ``senders`` are of clients that sent it."""
    mean = torch.zeros_like(exact(sent[0].base))
    if isinstance(rule, ByUpdate):
        kept = [item for item in sent if item.share]
        whole = sum(item.share for item in kept)
        for item in kept:
            alpha = item.share / whole * item.factor * (senders / total)
            mean.add_(item.value.to(mean.dtype) - item.base, alpha=alpha)
        return mean
    counting = [item for item in sent if item.weight]
    return _centre_of(counting, mean, rule) * (senders / total) if counting else mean


def _centre_of(sent: Sequence[Contribution], like: Tensor, rule: ByCoordinate) -> Tensor:
    """The centre of the changes of an address, computed for so many coordinates at a time that copies stay small."""
    if like.is_meta:
        return torch.empty_like(like)
    size, found = like.numel(), torch.empty_like(like, memory_format=torch.contiguous_format).flatten()
    step = max(1, _AT_ONCE // len(sent) // _ALIGNED) * _ALIGNED
    weights = torch.tensor([item.weight for item in sent], dtype=torch.float64)
    # the last part is the longest: torch adds a few coordinates up in another order than many
    ends = [*range(step, size - step + 1, step), size]
    for first, end in pairwise([0, *ends]):
        part = slice(first, end)
        changes = [
            (item.value.flatten()[part].to(like.dtype) - item.base.flatten()[part]) * item.factor for item in sent
        ]
        found[part] = rules.centre(rule, torch.stack(changes), weights)
    return found.view(like.shape)


def delta_by_element(
    sent: Sequence[Contribution], whole: Tensor, total: float | None, rule: ByCoordinate | ByUpdate
) -> Tensor:
    """The mean change of each element over the clients that sent it (HeteroFL), 0 if none did.

    Slices are nested, so that all clients sent the elements of the smallest.  The mean is over ``total`` samples if
    it is given.
    """
    mean = torch.zeros_like(exact(whole))
    # the largest first: smaller slices overwrite their part with the mean over more clients
    for cut in sorted({item.cut for item in sent}, key=lambda cut: -prod(shape_of(cut) if cut else whole.shape)):
        part = [item.within(cut) for item in sent if covers(item.cut, cut)]
        senders = sum(item.weight for item in part)
        if senders:
            write_slice(mean, cut, delta(part, senders, senders if total is None else total, rule))
    return mean
