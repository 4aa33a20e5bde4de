"""Aggregation of updates in delta form, with explicit coefficients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from math import prod
from typing import Any

import torch
from torch import Tensor

from edgefl.methods.aggregation import krum
from edgefl.methods.aggregation.options import KRUM, MEAN, AggregationOptions
from edgefl.methods.aggregation.robust import centre, clipping
from edgefl.methods.aggregation.senders import Senders
from edgefl.methods.state import Update, averaged, changing
from edgefl.work import Address, Payload
from edgefl.work.description import DTYPES
from edgefl.work.packed import Packed, Places, add_change
from edgefl.work.slices import Cut, covers, put, shape_of, take, within

Mix = Callable[[Address, "Cohort"], Mapping[Address, float]]
"""Maps an address to the addresses whose deltas change it, with their coefficients."""
MOST_BASES = 4
"""Starting values of clients that are kept in one piece."""
Parts = dict[Address, list[tuple[float, Tensor]]]
"""Coefficients and deltas of each address, in order of addition."""
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
        self._senders = Senders(expected)
        self._cuts = {a: list(dict.fromkeys(chain(*by.values()))) for a, by in self._senders.cuts.items()}
        self._expected = self._denominators(self._senders, expected)[0]
        self._means: dict[tuple[Address, Cut | None], Tensor] = {}
        self._packed: dict[Places, Packed | None] = {}
        self._bases: dict[tuple[int, Places], tuple[Mapping[Address, Tensor], Packed]] = {}
        self._sent: set[Address] = set()

    def add(self, update: Update) -> None:
        """Add an update.  Its parameters aren't read again."""
        weight, cuts = self.weight(update), update.cuts()
        factor = update.weight_factor * clipping(update, self.options.clip)
        added = self._add_packed(update, weight, factor)
        if len(added) == len(update.work.up):
            return
        plain: dict[float, tuple[list[Tensor], list[Tensor], list[Tensor]]] = {}
        for address, value, base in changing(update, without=added):
            self._sent.add(address)
            if self._cuts[address] == [None]:  # one tensor as a whole: many are added in one call
                if total := self._expected.get((address, None)):
                    mean = self._means.get((address, None))
                    if mean is None:
                        mean = self._means[address, None] = torch.zeros_like(base)
                    lists = plain.setdefault(weight / total * factor, ([], [], []))
                    for entries, tensor in zip(lists, (mean, value.to(mean.dtype), base), strict=True):
                        entries.append(tensor)
                continue
            whole = Contribution(value, base, weight, factor, cuts.get(address))
            for cut in self._cuts.get(address, ()):
                total = self._expected.get((address, cut))
                if not total or not covers(whole.cut, cut):
                    continue
                part = whole.within(cut) if whole.cut != cut else whole
                if (address, cut) not in self._means:
                    self._means[address, cut] = torch.zeros_like(part.base)
                mean = self._means[address, cut]
                mean.add_(part.value.to(mean.dtype) - part.base, alpha=weight / total * factor)
        for alpha, (means, values, bases) in plain.items():
            torch._foreach_add_(means, torch._foreach_sub(values, bases), alpha=alpha)

    def _add_packed(self, update: Update, weight: float, factor: float) -> set[str]:
        """Add the payloads that lie together in memory, each at once; returns their names."""
        added = set()
        for payload in update.work.up:
            value = update.payloads.get(payload.name)
            if not isinstance(value, Packed) or (mean := self._mean_of(payload, value.places, update)) is None:
                continue
            total = self._expected[payload.items[0].source, None]
            base = self._base_of(payload, value.places, update)
            for dtype, whole in value.whole.items():
                add_change(mean.whole[dtype], whole, base.whole[dtype], weight / total * factor)
            added.add(payload.name)
        return added

    def _mean_of(self, payload: Payload, places: Places, update: Update) -> Packed | None:
        """The mean of a payload as a whole; None if its tensors differ in what is added up, or in how."""
        if places not in self._packed:
            self._packed[places] = mean = self._new_mean(payload, places, update)
            if mean is not None:
                self._means |= {(item.source, None): mean[item.name] for item in payload.items}
                self._sent |= {item.source for item in payload.items}
        return self._packed[places]

    def _new_mean(self, payload: Payload, places: Places, update: Update) -> Packed | None:
        totals = set()
        for item in payload.items:
            base, key = update.base.get(item.source), (item.source, None)
            alone = list(self._senders.cuts.get(item.source, {}).values()) == [[None]]
            floating = base is not None and base.is_floating_point() and base.dtype == DTYPES[item.dtype]
            if not (alone and floating and averaged(item.source)) or key in self._means:
                return None
            totals.add(self._expected.get(key))
        if len(totals) != 1 or not totals.pop():
            return None
        return places.packed(torch.zeros(places.size, dtype=torch.uint8))

    def _base_of(self, payload: Payload, places: Places, update: Update) -> Packed:
        """What the tensors of a payload started from, which many clients share."""
        key = id(update.base), places
        if key not in self._bases:
            if len(self._bases) >= MOST_BASES:
                self._bases.clear()
            base = places.copy({item.name: update.base[item.source] for item in payload.items})
            self._bases[key] = update.base, base
        return self._bases[key][1]

    def deltas(self, updates: Sequence[Update]) -> tuple[dict[Address, Tensor], Cohort]:
        """The mean changes over ``updates``, those that were added, and their counts; see ``deltas``."""
        updates = sorted(updates, key=lambda update: update.client)
        actual, cohort = self._denominators(Senders(updates), updates)
        sliced = (a for a in self._sent if self._cuts[a] != [None] and cohort.by_address[a])
        changes = {address: torch.zeros_like(self.tensors[address]) for address in sliced}
        for (address, cut), mean in sorted(self._means.items(), key=lambda entry: -entry[1].numel()):
            total, expected = actual.get((address, cut)), self._expected[address, cut]
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
        keys = list(self._means)
        tensors = {f"{MEANS}{number}": self._means[key] for number, key in enumerate(keys)}
        return tensors, {"means": keys, "sent": sorted(self._sent)}

    def restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Go on with sums that ``written`` returned, when nothing is added yet; ``facts`` may have been JSON."""
        for number, (address, raw) in enumerate(facts["means"]):
            cut = None if raw is None else tuple(tuple((start, stop) for start, stop in ranges) for ranges in raw)
            self._means[address, cut] = tensors[f"{MEANS}{number}"].clone()
        self._sent = set(facts["sent"])

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
