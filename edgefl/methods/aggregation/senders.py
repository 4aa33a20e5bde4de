"""Which updates of a round send which address, and the sums of their weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from edgefl.methods.state import Update
from edgefl.work import Address, Payload
from edgefl.work.slices import Cut

Upload = tuple[Payload, ...]


class Senders:
    """The updates of a round by what they send, which many have in common.

    ``uploads`` are the different ones, ``upload_of`` is the number of each update's; ``cuts`` has, for each address
    and for the number of each upload that sends it, the part of the server's tensor that is sent (None: all of it).
    """

    def __init__(self, updates: Sequence[Update]):
        self.uploads: list[Upload] = []
        self.upload_of: list[int] = []
        self.cuts: dict[Address, dict[int, list[Cut | None]]] = {}
        known: dict[int, int] = {}
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
