"""Aggregation of updates in delta form, with explicit coefficients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from edgefl.methods.aggregation import krum
from edgefl.methods.aggregation.options import KRUM, MEAN, AggregationOptions
from edgefl.methods.aggregation.robust import centre, clipping
from edgefl.methods.aggregation.senders import Senders
from edgefl.methods.state import Update
from edgefl.work import Address
from edgefl.work.slices import Cut, covers, put, shape_of, take, within
from edgefl.work.sums import Means, Sums, Totals, listed, unlisted


class Rows(NamedTuple):
    """Rows ``taken`` of an address's delta, which change the rows ``into`` of another address; ``(start, stop)``.

    They relate layers that one model has apart and another as one, such as query, key and value.
    """

    source: Address
    taken: tuple[int, int]
    into: tuple[int, int]


class Term(NamedTuple):
    """A part of an address's mean update: its coefficient, its delta and the rows that it changes (None: all)."""

    coefficient: float
    delta: Tensor
    into: tuple[int, int] | None = None


Source = Address | Rows
Mix = Callable[[Address, "Cohort"], Mapping[Any, float]]
"""Maps an address to its ``Source``s, the addresses or rows whose deltas change it, with their coefficients."""
Parts = dict[Address, list[Term]]
"""The terms of each address, in order of addition."""
MEANS = "mean:"
"""Prefix of the names of a fold's tensors."""
_AT_ONCE, _ALIGNED = 2**22, 2**12
"""Numbers of all clients together that a robust rule compares at a time, in parts of a multiple of so many coordinates:
more than the processor adds up at once, so that the bits are those of one part."""


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
    changes, cohort = updates.deltas() if isinstance(updates, Folded) else deltas(tensors, updates, weight, options)
    parts = {}
    for address in tensors:
        mixed = mix(address, cohort)
        if terms := [_term(b, c, changes) for b, c in mixed.items() if c and address_of(b) in changes]:
            parts[address] = terms
    return parts


def address_of(source: Source) -> Address:
    """The address whose delta a source is of."""
    return source.source if isinstance(source, Rows) else source


def _term(source: Source, coefficient: float, changes: Mapping[Address, Tensor]) -> Term:
    if isinstance(source, Rows):
        return Term(coefficient, changes[source.source][slice(*source.taken)], source.into)
    return Term(coefficient, changes[source])


def moved(value: Tensor, parts: Sequence[Term], lr: float = 1.0) -> Tensor:
    """``value + lr sum_b c_b D_b``; a term of rows changes these alone."""
    new = value.clone()
    for coefficient, delta, into in parts:
        (new if into is None else new[slice(*into)]).add_(delta, alpha=lr * coefficient)
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
    sent: dict[Address, list[Contribution]] = {}
    weights = [weight(update) for update in updates]
    senders, cohort = counted(tensors, updates, weights, options)
    by_address = cohort.by_address
    factors = [update.weight_factor * clipping(update, options.clip) for update in updates]
    shares = krum.shares(updates, weights, factors, options) if options.rule in KRUM else [1.0] * len(updates)
    for update, counts, factor, share in zip(updates, weights, factors, shares, strict=True):
        cuts = update.cuts()
        for address, value in update.sent():
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
            changes[address] = delta_by_element(contributions, tensors[address], total, options)
        else:
            changes[address] = delta(contributions, senders[address], by_address[address], options)
    return changes, cohort


def counted(
    tensors: Mapping[str, Tensor], updates: Sequence[Update], weights: Sequence[float], options: AggregationOptions
) -> tuple[Mapping[Address, float], Cohort]:
    """The weights of the senders of each address, and the cohort's counts; tensors may be without values."""
    return _counted(Senders(updates), tensors, updates, weights, options)


def _counted(
    senders: Senders,
    tensors: Mapping[str, Tensor],
    updates: Sequence[Update],
    weights: Sequence[float],
    options: AggregationOptions,
) -> tuple[Mapping[Address, float], Cohort]:
    by_kind: Counter[str] = Counter()
    kinds_sending: list[set[str]] = [set() for _ in senders.uploads]
    for update, counts, number in zip(updates, weights, senders.upload_of, strict=True):
        by_kind[update.kind] += counts  # type: ignore[assignment]
        kinds_sending[number].add(update.kind)
    total = senders.sums(weights)
    sent = {a: total({number: len(cuts) for number, cuts in by.items()}) for a, by in senders.cuts.items()}
    by_address: Mapping[Address, float] = sent
    if options.compensation:
        # a parameter that no client of its kind sent has a denominator too, if it is shared with other kinds
        kinds_of = {a: set().union(*(kinds_sending[number] for number in by)) for a, by in senders.cuts.items()}
        kinds = {a: {a.split("/", 1)[0]} & by_kind.keys() or kinds_of.get(a, set()) for a in {**tensors, **kinds_of}}
        by_address = {a: sum(by_kind[kind] for kind in names) for a, names in kinds.items() if names}
    return sent, Cohort(by_kind, by_address)


class Fold:
    """Weighted means that grow as updates arrive, each of which is needed no longer once it is added.

    ``expected`` are the updates that will arrive, with tensors of any values: their weights make the denominators.  An
    update that doesn't come after all changes the denominators, and so the means are scaled in the end.  In the order
    of clients the bits are those of ``deltas``.
    """

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        expected: Sequence[Update],
        weight: Callable[[Update], float],
        options: AggregationOptions,
    ):
        self.tensors, self.weight, self.options = tensors, weight, options
        expected = sorted(expected, key=lambda update: update.client)
        senders = Senders(expected)
        self._cuts = {a: list(dict.fromkeys(chain(*by.values()))) for a, by in senders.cuts.items()}
        alone = frozenset(a for a, by in senders.cuts.items() if list(by.values()) == [[None]])
        totals = {key: float(total) for key, total in self._denominators(senders, expected)[0].items()}
        self._sums = Sums(Totals(self._cuts, totals, alone))

    def add(self, update: Update) -> None:
        """Add an update.  Its parameters aren't read again."""
        factor = update.weight_factor * clipping(update, self.options.clip)
        self._sums.add(update.work.up, update.payloads, update.base, float(self.weight(update)), factor)

    def shared(self, updates: Sequence[Update]) -> tuple[Totals, list[tuple[float, float]]]:
        """What one needs to add up updates with equal uploads elsewhere: totals, and weights and factors.

        Their norms aren't known, so ``aggregation.clip`` must be unset.
        """
        assert self.options.clip is None
        pairs = [(float(self.weight(update)), float(update.weight_factor)) for update in updates]
        return self._sums.totals.of(updates[0].work.up), pairs

    def merge(self, update: Update, means: Means) -> None:
        """Add the means over several updates like ``update``, which were added up elsewhere."""
        self._sums.merge(means)
        self._sums.sent |= {address for address, _, _ in update.changing()}

    def deltas(self, updates: Sequence[Update]) -> tuple[dict[Address, Tensor], Cohort]:
        """The mean changes over ``updates``, those that were added, and their counts; see ``deltas``."""
        updates = sorted(updates, key=lambda update: update.client)
        actual, cohort = self._denominators(Senders(updates), updates)
        sliced = (a for a in self._sums.sent if self._cuts[a] != [None] and cohort.by_address[a])
        changes = {address: torch.zeros_like(self.tensors[address]) for address in sliced}
        for (address, cut), mean in sorted(self._sums.means.items(), key=lambda entry: -entry[1].numel()):
            total, expected = actual.get((address, cut)), self._sums.totals.expected[address, cut]
            if not total:
                continue
            if total != expected:
                mean = mean * (expected / total)
            if self._cuts[address] == [None]:
                changes[address] = mean
            else:  # the largest first: smaller slices overwrite their part with the mean over more clients
                put(changes[address], cut, mean)
        return changes, cohort

    def written(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The sums so far, as tensors by name and plain data, from which ``restore`` goes on."""
        tensors, keys = listed(self._sums.means)
        named = {f"{MEANS}{number}": tensor for number, tensor in enumerate(tensors)}
        return named, {"means": keys, "sent": sorted(self._sums.sent)}

    def restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Go on with sums that ``written`` returned, when nothing is added yet; ``facts`` may have been JSON."""
        keys = facts["means"]
        self._sums.means = unlisted([tensors[f"{MEANS}{number}"].clone() for number in range(len(keys))], keys)
        self._sums.sent = set(facts["sent"])

    def _denominators(
        self, senders: Senders, updates: Sequence[Update]
    ) -> tuple[dict[tuple[Address, Cut | None], float], Cohort]:
        """The denominator of each mean (of an address, or of a part of it that some clients send), and the counts."""
        weights = [self.weight(update) for update in updates]
        _, cohort = _counted(senders, self.tensors, updates, weights, self.options)
        total = senders.sums(weights)
        found: dict[tuple[Address, Cut | None], float] = {}
        for address, by in senders.cuts.items():
            if self._cuts[address] == [None]:
                found[address, None] = cohort.by_address[address]
                continue
            for cut in self._cuts[address]:
                times = {number: sum(covers(c, cut) for c in cuts) for number, cuts in by.items()}
                if any(times.values()):
                    sent = total(times)
                    found[address, cut] = cohort.by_address[address] if self.options.compensation and sent else sent
        return found, cohort


class Folded(list[Update]):
    """Updates whose parameters are added up in ``fold``; their own are tensors without values (meta)."""

    def __init__(self, updates: Sequence[Update], fold: Fold):
        super().__init__(sorted(updates, key=lambda update: update.client))
        self.fold = fold

    def deltas(self) -> tuple[dict[Address, Tensor], Cohort]:
        """The mean change of each address, and the cohort's counts."""
        return self.fold.deltas(self)


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
    counting = [item for item in sent if item.weight]
    return _centre_of(counting, mean, options) * (senders / total) if counting else mean


def _centre_of(sent: Sequence[Contribution], like: Tensor, options: AggregationOptions) -> Tensor:
    """The centre of the changes of an address, computed for so many coordinates at a time that copies stay small."""
    size, found = like.numel(), torch.empty_like(like, memory_format=torch.contiguous_format).flatten()
    step = max(1, size) if like.is_meta else max(1, _AT_ONCE // len(sent) // _ALIGNED) * _ALIGNED
    # the last part is the longest: torch adds a few coordinates up in another order than many
    ends = [*range(step, size - step + 1, step), size]
    for first, end in pairwise([0, *ends]):
        part = slice(first, end)
        changes = [
            (item.value.flatten()[part].to(like.dtype) - item.base.flatten()[part]) * item.factor for item in sent
        ]
        found[part] = centre(torch.stack(changes), options)
    return found.view(like.shape)


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
