"""The mean of clients' changes, weighted, which grows as updates arrive."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain

import torch
from torch import Tensor

from edgefl.methods.aggregation.fixed_point import FixedPointMeans
from edgefl.methods.aggregation.noise import Noise
from edgefl.methods.aggregation.options import AggregationOptions
from edgefl.methods.aggregation.senders import Cohort, Senders, cohort_counts
from edgefl.work import Address
from edgefl.work.slices import Cut, covers, take, write_slice
from edgefl.work.sums import Key, Means, SharedSum, WeightedMeans, exact
from edgefl.work.update import Update


class Fold:
    """Weighted means that grow as updates arrive, each of which is needed no longer once it is added.

    ``expected`` are the updates that will arrive, whose values aren't read: their weights make the denominators.  An
    update that doesn't come after all changes the denominators, and so the means are scaled in the end.  The bits are
    those of the order in which updates are added.  With ``noise`` its senders make the denominators, and every mean
    that they may send has noise, whoever sends.
    """

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        expected: Sequence[Update],
        weight: Callable[[Update], float],
        options: AggregationOptions,
        noise: Noise | None = None,
    ):
        self.tensors, self.weight, self.options, self.noise = tensors, weight, options, noise
        # by client, because the bits of the denominators' sums depend on the order, and that of arrival mustn't matter
        expected = sorted(expected, key=lambda update: update.client)
        senders = Senders(noise.senders if noise else expected)
        self._cuts = {a: list(dict.fromkeys(chain(*by.values()))) for a, by in senders.cuts.items()}
        alone = frozenset(a for a, by in senders.cuts.items() if list(by.values()) == [[None]])
        numbers = [each.number for each in noise.senders] if noise else [self.weight(update) for update in expected]
        self._all = self._denominators(senders, numbers)
        totals = {key: float(total) for key, total in self._all[0].items()}
        self._sums: WeightedMeans | FixedPointMeans = WeightedMeans(self._cuts, totals, alone)
        if options.secure is not None and options.clip is not None:
            self._sums = FixedPointMeans(self._cuts, totals, options.clip, options.bits, len(expected))

    def add(self, update: Update) -> None:
        """Add an update.  Its parameters aren't read again."""
        factor = update.weight_factor * update.clipping(self.options.clip)
        self._sums.add(update.work.up, update.payloads, update.base, float(self.weight(update)), factor)

    def shared_sum(self, updates: Sequence[Update]) -> SharedSum:
        """How updates with equal uploads are added up elsewhere.

        Their norms aren't known, so ``aggregation.clip`` must be unset.
        """
        assert self.options.clip is None and isinstance(self._sums, WeightedMeans)
        weights = [(float(self.weight(update)), float(update.weight_factor)) for update in updates]
        keep = self.options.non_finite == "keep"
        return self._sums.shared_sum(updates[0].work.up, weights, keep_non_finite=keep)

    def merge(self, update: Update, means: Means) -> None:
        """Add the means over several updates like ``update``, which were added up elsewhere."""
        assert isinstance(self._sums, WeightedMeans)
        self._sums.merge(means)
        self._sums.sent |= {item.source for payload in update.work.up for item in payload.items}

    def deltas(self, updates: Sequence[Update] | None = None) -> tuple[dict[Address, Tensor], Cohort]:
        """The mean changes over ``updates``, those that were added (None: all that were expected), and their counts."""
        actual, cohort = self._all
        if updates is not None and self.noise is None:
            updates = sorted(updates, key=lambda update: update.client)
            actual, cohort = self._denominators(Senders(updates), [self.weight(update) for update in updates])
        means, sent = self._sums.means, self._sums.sent
        if self.noise is not None:
            means = self._means_with(self.noise)
            sent = {address for address, _ in means}
        sliced = (a for a in sent if self._cuts[a] != [None] and cohort.by_address[a])
        changes = {address: torch.zeros_like(exact(self.tensors[address])) for address in sliced}
        for (address, cut), mean in sorted(means.items(), key=lambda entry: -entry[1].numel()):
            total, expected = actual.get((address, cut)), self._sums.totals[address, cut]
            if not total:
                continue
            if total != expected:  # an update was refused after others had been added with the denominator of all
                mean = mean * (expected / total)
            if self._cuts[address] == [None]:
                changes[address] = mean
            else:  # the largest first: smaller slices overwrite their part with the mean over more clients
                write_slice(changes[address], cut, mean)
        return changes, cohort

    def _means_with(self, noise: Noise) -> dict[Key, Tensor]:
        """The means of all that the round's senders may send, zero where nobody sent, with noise."""
        found = {}
        for (address, cut), total in self._all[0].items():
            if total and self.tensors[address].is_floating_point():
                start = take(exact(self.tensors[address]), cut)
                mean = self._sums.means.get((address, cut), torch.zeros_like(start))
                found[address, cut] = noise.on_mean(mean, address, self._cuts[address].index(cut), total)
        return found

    def _denominators(
        self, senders: Senders, weights: Sequence[float]
    ) -> tuple[dict[tuple[Address, Cut | None], float], Cohort]:
        """The denominator of each mean (of an address, or of a part of it that some clients send), and the counts."""
        _, cohort = cohort_counts(senders, self.tensors, weights, self.options)
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
