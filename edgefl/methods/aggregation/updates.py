"""The updates of a round as a method's ``aggregate`` gets them: with their values, or added up as they arrived."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import overload

from torch import Tensor

from edgefl.errors import MethodError, ValuesGone
from edgefl.methods.aggregation import robust_deltas
from edgefl.methods.aggregation.mean import Fold
from edgefl.methods.aggregation.options import AggregationOptions
from edgefl.methods.aggregation.rules import ByCoordinate, ByUpdate, rule
from edgefl.methods.aggregation.senders import Cohort
from edgefl.work import Address, Payload
from edgefl.work.sums import is_averaged
from edgefl.work.update import Update

_client = attrgetter("client")


class AddedUp(Mapping[str, Tensor]):
    """A payload whose parameters were added up as it arrived; its ``tables`` alone can be read.

    Raises ValuesGone for the others.
    """

    def __init__(self, payload: Payload, tables: Mapping[str, Tensor]):
        self.payload, self.tables = payload, tables

    @classmethod
    def of(cls, work_up: Iterable[Payload], payloads: Mapping[str, Mapping[str, Tensor]]) -> dict[str, AddedUp]:
        """The payloads of an upload with copies of their tables, which don't hold what lies beside them in memory."""
        return {
            p.name: cls(p, {i.name: payloads[p.name][i.name].clone() for i in p.items if not is_averaged(i.source)})
            for p in work_up
        }

    def __getitem__(self, name: str) -> Tensor:
        if name in self.tables:
            return self.tables[name]
        if name not in self.payload.names:
            raise KeyError(name)
        raise ValuesGone(
            f"the values of {name!r} in the payload {self.payload.name!r} were added up as they arrived: where streams "
            "is true, only combine() and the tables of updates may be read; a method with streams = False gets all"
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self.tables)

    def __len__(self) -> int:
        return len(self.tables)


class Updates(Sequence[Update]):
    """The updates of a round at the server, by client.

    With a ``mean`` each is added up as it is taken, and its payloads are ``AddedUp`` from then on; else it is held.
    ``rebuild`` makes of an update what is added up (``Method.rebuild``).
    """

    def __init__(
        self,
        updates: Iterable[Update] = (),
        mean: Fold | None = None,
        rebuild: Callable[[Update], Update] = lambda update: update,
    ):
        # sorted, because the bits of robust rules and of sums depend on the order
        self._updates = sorted(updates, key=_client)
        self.mean: Fold | None = updates.mean if isinstance(updates, Updates) else mean
        self._rebuild = rebuild

    @overload
    def __getitem__(self, index: int) -> Update: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Update]: ...

    def __getitem__(self, index: int | slice) -> Update | Sequence[Update]:
        return self._updates[index]

    def __iter__(self) -> Iterator[Update]:
        return iter(self._updates)

    def __len__(self) -> int:
        return len(self._updates)

    def add(self, update: Update) -> None:
        """Take an update: hold it, or add it to the mean, unless it was added up where it trained."""
        if self.mean is not None and not all(isinstance(sent, AddedUp) for sent in update.payloads.values()):
            self.mean.add(self._rebuild(update))
            update = replace(update, payloads=AddedUp.of(update.work.up, update.payloads))
        insort(self._updates, update, key=_client)

    def take(self, numbers: Collection[tuple[int, int]]) -> Updates:
        """The updates of these clients and dispatches, which aren't held any longer; nor is the mean."""
        taken = [update for update in self._updates if (update.client, update.dispatch) in numbers]
        self._updates = [update for update in self._updates if (update.client, update.dispatch) not in numbers]
        mean, self.mean = self.mean, None
        return Updates(taken, mean)

    def deltas(
        self, tensors: Mapping[Address, Tensor], weight: Callable[[Update], float], options: AggregationOptions
    ) -> tuple[dict[Address, Tensor], Cohort]:
        """The changes of addresses by the rule of ``options``, and the cohort's counts.

        The mean is ``D_b = sum_i n_i (w_i,b - base_i,b) / sum_i n_i`` over the updates that sent b, n_i their
        ``weight``.  With compensation the denominator is over all updates of the kind that b belongs to.  A policy's
        weight factor multiplies an update's share without entering the denominator.  Raises MethodError for another
        ``weight`` than that by which they were added up.
        """
        if self.mean is not None:
            if weight != self.mean.weight:
                raise MethodError(
                    "combine() can't weigh updates that were added up as they arrived: define update_weight() in place "
                    "of combine(weight=...), or set streams = False"
                )
            return self.mean.deltas(self._updates)
        named = rule(options)
        if isinstance(named, ByCoordinate | ByUpdate):
            return robust_deltas.deltas(tensors, self._updates, weight, named)
        fold = Fold(tensors, self._updates, weight, options)
        for update in self._updates:
            fold.add(update)
        return fold.deltas()
