"""The updates of a round as a method's ``aggregate`` gets them: with their values, or added up as they arrived."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import overload

from torch import Tensor

from edgefl.errors import MethodError, ValuesGone
from edgefl.methods.aggregation import robust_deltas
from edgefl.methods.aggregation.fold import Fold
from edgefl.methods.aggregation.options import AggregationOptions
from edgefl.methods.aggregation.rules import ByCoordinate, ByUpdate, rule
from edgefl.methods.aggregation.senders import Cohort
from edgefl.work import Address, Payload
from edgefl.work.sums import averaged
from edgefl.work.update import Update


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
            p.name: cls(p, {i.name: payloads[p.name][i.name].clone() for i in p.items if not averaged(i.source)})
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


@dataclass(frozen=True, eq=False)
class Arrivals(Sequence[Update]):
    """The updates of a round by client.  Where they were added up in ``mean``, their payloads are ``AddedUp``."""

    updates: tuple[Update, ...]
    mean: Fold | None = None

    @classmethod
    def of(cls, updates: Sequence[Update], mean: Fold | None = None) -> Arrivals:
        """These updates in the order of their clients."""
        if isinstance(updates, Arrivals):
            return updates
        return cls(tuple(sorted(updates, key=lambda update: update.client)), mean)

    @overload
    def __getitem__(self, index: int) -> Update: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Update]: ...

    def __getitem__(self, index: int | slice) -> Update | Sequence[Update]:
        return self.updates[index]

    def __len__(self) -> int:
        return len(self.updates)

    def each(self, change: Callable[[Update], Update]) -> Arrivals:
        """These arrivals with ``change`` made of every update."""
        return replace(self, updates=tuple(map(change, self.updates)))

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
            return self.mean.deltas(self.updates)
        named = rule(options)
        if isinstance(named, ByCoordinate | ByUpdate):
            return robust_deltas.deltas(tensors, self.updates, weight, named)
        fold = Fold(tensors, self.updates, weight, options)
        for update in self.updates:
            fold.add(update)
        return fold.deltas()
