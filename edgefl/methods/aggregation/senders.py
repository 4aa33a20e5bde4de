"""Which updates of a round send which address, and the sums of their weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from edgefl.methods.aggregation.noise import ExpectedSenders
from edgefl.methods.aggregation.options import AggregationOptions
from edgefl.work import Address, Payload
from edgefl.work.slices import Cut
from edgefl.work.update import Update

Upload = tuple[Payload, ...]


@dataclass(frozen=True)
class Cohort:
    """What ``mix`` of ``Method.combine`` receives: sums of weights over a round's updates."""

    by_kind: Mapping[str, float]
    """Over the updates of a kind."""
    by_address: Mapping[Address, float]
    """Over the updates that sent an address: the denominator of its mean."""


class Senders:
    """The updates of a round by what they send, which many have in common.

    ``kinds`` are the updates' own, ``uploads`` the different ones, ``upload_of`` the number of each update's.  ``cuts``
    has, for each address and for the number of each upload that sends it, the part of the server's tensor that is sent
    (None: all of it).
    """

    def __init__(self, updates: Sequence[Update] | Sequence[ExpectedSenders]):
        self.kinds = [update.kind for update in updates]
        self.uploads: list[Upload] = []
        self.upload_of: list[int] = []
        self.cuts: dict[Address, dict[int, list[Cut | None]]] = {}
        known: dict[int, int] = {}  # by id, since comparing uploads takes long; ``updates`` holds them
        for update in updates:
            upload = update.work.up
            if id(upload) not in known:
                known[id(upload)] = self._number(upload)
            self.upload_of.append(known[id(upload)])

    def _number(self, upload: Upload) -> int:
        if upload in self.uploads:
            return self.uploads.index(upload)
        number = len(self.uploads)
        self.uploads.append(upload)
        for payload in upload:
            for item in payload.items:
                self.cuts.setdefault(item.source, {}).setdefault(number, []).append(item.cut)
        return number

    def sums(self, weights: Sequence[float]) -> Callable[[dict[int, int]], float]:
        """A function that gives the sum of the updates' ``weights``, each as often as it says for their uploads.

        Terms are added in the order of updates.
        """
        known: dict[tuple[tuple[int, int], ...], float] = {}

        def total(times: dict[int, int]) -> float:
            key = tuple(times.items())
            if key not in known:
                whole: float = 0
                for number, weight in zip(self.upload_of, weights, strict=True):
                    for _ in range(times.get(number, 0)):
                        whole += weight
                known[key] = whole
            return known[key]

        return total


def cohort_counts(
    senders: Senders, tensors: Mapping[str, Tensor], weights: Sequence[float], options: AggregationOptions
) -> tuple[Mapping[Address, float], Cohort]:
    """The weights of the senders of each address, and the cohort's counts; tensors may be without values."""
    by_kind: Counter[str] = Counter()
    kinds_sending: list[set[str]] = [set() for _ in senders.uploads]
    for kind, counts, number in zip(senders.kinds, weights, senders.upload_of, strict=True):
        by_kind[kind] += counts  # type: ignore[assignment]
        kinds_sending[number].add(kind)
    total = senders.sums(weights)
    sent = {a: total({number: len(cuts) for number, cuts in by.items()}) for a, by in senders.cuts.items()}
    by_address: Mapping[Address, float] = sent
    if options.compensation:
        # a parameter that no client of its kind sent has a denominator too, if it is shared with other kinds
        kinds_of = {a: set().union(*(kinds_sending[number] for number in by)) for a, by in senders.cuts.items()}
        kinds = {a: {a.split("/", 1)[0]} & by_kind.keys() or kinds_of.get(a, set()) for a in {**tensors, **kinds_of}}
        by_address = {a: sum(by_kind[kind] for kind in names) for a, names in kinds.items() if names}
    return sent, Cohort(by_kind, by_address)
