"""Weighted means of clients' changes that grow as updates arrive, where several clients train or at the server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from edgefl.models.model import DTYPES
from edgefl.work.description import Address, Payload
from edgefl.work.packed import Packed, PayloadLayout, add_change
from edgefl.work.slices import Cut, covers, take, within

_EXACT = (torch.float32, torch.float64)
MOST_STARTS = 4
"""Starting values of clients that are kept in one piece, each as large as a model: rounds that overlap begin from a few
versions.  A choice, not measured: with more versions at once, each change of version packs its values again."""

Upload = tuple[Payload, ...]
Payloads = Mapping[str, Mapping[str, Tensor]]
Key = tuple[Address, Cut | None]
"""An address, and the part of its tensor over which a mean goes (None: all of it)."""
Means = Mapping[Key, Tensor]
Starts = dict[tuple[int, PayloadLayout], tuple[Mapping[Address, Tensor], Packed]]
"""By identity and place: the starting values of clients, and these in one piece.

An entry holds the values, so that no others can get their id.
"""


def exact(value: Tensor) -> Tensor:
    """A floating tensor in at least float32, in which changes of half precisions are added up."""
    if value.dtype in _EXACT:  # asked for each tensor of each update
        return value
    return value.to(torch.promote_types(value.dtype, torch.float32))


def is_averaged(address: Address) -> bool:
    """Whether the tensor at an address is averaged; tables are aggregated by methods."""
    return not address.startswith("table/")


def changing(
    upload: Upload, payloads: Payloads, base: Mapping[Address, Tensor]
) -> Iterator[tuple[Address, Cut | None, Tensor, Tensor]]:
    """Address, cut, value and base of every tensor of an upload that is averaged."""
    for payload in upload:
        for item in payload.items:
            start = base.get(item.source)
            if start is not None and start.is_floating_point() and is_averaged(item.source):
                yield item.source, item.cut, payloads[payload.name][item.name], start


@dataclass(frozen=True)
class SharedSum:
    """How the changes of several clients with equal uploads are added up where they train.

    ``cuts``, ``totals`` and ``alone`` are those of ``WeightedMeans``, ``weights`` each client's weight and factor.
    Changes that aren't finite are left out, unless ``keep_non_finite``.
    """

    cuts: Mapping[Address, Sequence[Cut | None]]
    totals: Mapping[Key, float]
    alone: frozenset[Address]
    weights: tuple[tuple[float, float], ...]
    keep_non_finite: bool


def _new_memory(size: int) -> Tensor:
    return torch.empty(size, dtype=torch.uint8)


class WeightedMeans:
    """Means ``sum_i n_i f_i (w_i - base_i) / total`` over the updates that are added, in order.

    ``cuts`` are the parts over which an address has means: those that clients send.  ``totals`` are the denominators,
    by address and part.  ``alone`` are the addresses that one kind of upload sends, once and as a whole.
    ``means`` has the means by address and part, ``sent`` the addresses that were sent.  ``starts`` are starting values
    in one piece, which several sums may share; ``memory`` gives a buffer of so many bytes, of any values.
    """

    def __init__(
        self,
        cuts: Mapping[Address, Sequence[Cut | None]],
        totals: Mapping[Key, float],
        alone: frozenset[Address],
        starts: Starts | None = None,
        memory: Callable[[int], Tensor] = _new_memory,
    ):
        self.cuts, self.totals, self.alone, self._memory = cuts, totals, alone, memory
        self.means: dict[Key, Tensor] = {}
        self.sent: set[Address] = set()
        self._packed: dict[PayloadLayout, Packed | None] = {}
        self._starts = {} if starts is None else starts

    def add(
        self, upload: Upload, payloads: Payloads, base: Mapping[Address, Tensor], weight: float, factor: float
    ) -> None:
        """Add an update: its decoded ``payloads``, the values ``base`` that it began with, its weight and factor."""
        added = self._add_packed(upload, payloads, base, weight, factor)
        left = tuple(payload for payload in upload if payload.name not in added)
        plain: dict[float, tuple[list[Tensor], list[Tensor], list[Tensor]]] = {}
        for address, cut, value, start in changing(left, payloads, base):
            self.sent.add(address)
            if self.cuts[address] == [None]:  # one tensor as a whole: many are added in one call
                if total := self.totals.get((address, None)):
                    mean = self.means.get((address, None))
                    if mean is None:
                        mean = self.means[address, None] = torch.zeros_like(exact(start))
                    lists = plain.setdefault(weight / total * factor, ([], [], []))
                    for entries, tensor in zip(lists, (mean, value.to(mean.dtype), exact(start)), strict=True):
                        entries.append(tensor)
                continue
            for part in self.cuts[address]:
                total = self.totals.get((address, part))
                if not total or not covers(cut, part):
                    continue
                inner = within(cut, part)
                its, began = (value, start) if cut == part else (take(value, inner), take(start, inner))
                if (address, part) not in self.means:
                    self.means[address, part] = torch.zeros_like(exact(began))
                mean = self.means[address, part]
                mean.add_(its.to(mean.dtype) - began, alpha=weight / total * factor)
        for alpha, (means, values, bases) in plain.items():
            torch._foreach_add_(means, torch._foreach_sub(values, bases), alpha=alpha)

    def shared_sum(
        self, upload: Upload, weights: Sequence[tuple[float, float]], *, keep_non_finite: bool = False
    ) -> SharedSum:
        """How clients with this upload add their changes up, of these weights and factors; see ``merge``."""
        sent = {item.source for payload in upload for item in payload.items}
        cuts = {address: its for address, its in self.cuts.items() if address in sent}
        totals = {key: total for key, total in self.totals.items() if key[0] in sent}
        return SharedSum(cuts, totals, self.alone & sent, tuple(weights), keep_non_finite)

    def merge(self, means: Means) -> None:
        """Add means over other updates, with the same totals."""
        both = [key for key in means if key in self.means]
        if both:
            torch._foreach_add_([self.means[key] for key in both], [means[key] for key in both])
        # copies: those that come from another process lie in memory that it uses again
        self.means |= {key: mean.clone() for key, mean in means.items() if key not in self.means}

    def _add_packed(
        self, upload: Upload, payloads: Payloads, base: Mapping[Address, Tensor], weight: float, factor: float
    ) -> set[str]:
        """Add the payloads that lie together in memory, each at once; returns their names."""
        added = set()
        for payload in upload:
            value = payloads.get(payload.name)
            # a payload that was narrowed has fewer items than its buffer
            if not isinstance(value, Packed) or len(value.places.payload.items) != len(payload.items):
                continue
            if (mean := self._mean_of(payload, value.places, base)) is None:
                continue
            total = self.totals[payload.items[0].source, None]
            started = self._base_of(payload, value.places, base)
            for dtype, whole in value.whole.items():
                add_change(mean.whole[dtype], whole, started.whole[dtype], weight / total * factor)
            added.add(payload.name)
        return added

    def _mean_of(self, payload: Payload, places: PayloadLayout, base: Mapping[Address, Tensor]) -> Packed | None:
        """The mean of a payload as a whole; None if its tensors differ in what is added up, or in how."""
        if places not in self._packed:
            self._packed[places] = mean = self._new_mean(payload, places, base)
            if mean is not None:
                self.means |= {(item.source, None): mean[item.name] for item in payload.items}
                self.sent |= {item.source for item in payload.items}
        return self._packed[places]

    def _new_mean(self, payload: Payload, places: PayloadLayout, base: Mapping[Address, Tensor]) -> Packed | None:
        totals = set()
        for item in payload.items:
            start, key = base.get(item.source), (item.source, None)
            floating = start is not None and start.is_floating_point() and start.dtype == DTYPES[item.dtype]
            floating = floating and start is exact(start)  # type: ignore[arg-type]
            if not (floating and item.source in self.alone and is_averaged(item.source)) or key in self.means:
                return None
            totals.add(self.totals.get(key))
        if len(totals) != 1 or not totals.pop():
            return None
        return places.view_buffer(self._memory(places.size).zero_())

    def _base_of(self, payload: Payload, places: PayloadLayout, base: Mapping[Address, Tensor]) -> Packed:
        """What the tensors of a payload started from, which many clients share."""
        key = id(base), places  # the entry holds ``base``, so that its id stays its own
        if key not in self._starts:
            if len(self._starts) >= MOST_STARTS:
                self._starts.clear()
            self._starts[key] = base, places.copy({item.name: base[item.source] for item in payload.items})
        return self._starts[key][1]
