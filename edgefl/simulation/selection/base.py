"""Selections: who of the candidates takes part in a round.

A selection asks candidates one after another, in an order of its own, whether they are ready, until its places are
filled; what it costs goes with the places and not with the clients that are registered.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from math import ceil
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from edgefl import seeds
from edgefl.planning.places import places
from edgefl.planning.round_options import RoundOptions

Integers = NDArray[np.integer[Any]]
Floats = NDArray[np.float64]
Booleans = NDArray[np.bool_]

NOBODY = np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class Candidates:
    """Whom a selection may draw from, and what it may know of them.

    ``groups`` has the clients by kind, ascending, also those that are under way; pass the same arrays again while
    nothing has changed, as what was made of them is kept.  ``population`` counts all clients of those kinds.  Of
    clients `[n]`, ``samples`` gives their private samples (the same throughout a run), ``seconds`` how long their
    round is predicted to take, and ``ready`` whether they are there, have power and are not under way.
    """

    groups: Mapping[str, Integers]
    population: Mapping[str, int]
    samples: Callable[[Integers], NDArray[Any]]
    seconds: Callable[[Integers], NDArray[Any]]
    ready: Callable[[Integers], NDArray[Any]]


@dataclass(frozen=True)
class Chosen:
    """Clients that take part, how many were asked for it, and how many of these were not ready."""

    clients: Integers
    asked: int
    unready: int


@dataclass(frozen=True)
class Places:
    """What is to be drawn from one group: ``count`` of ``clients``, by the numbers that ``generator()`` starts anew."""

    name: str
    clients: Integers
    count: int
    round: int
    candidates: Candidates
    generator: Callable[[], np.random.Generator]


class Order(Protocol):
    """An order of distinct clients, given out piece by piece."""

    def take(self, wanted: int) -> Integers:
        """The next about ``wanted`` clients; empty when everyone was named."""
        ...


class Selection(ABC):
    """Draws a cohort from each kind of clients, or from their union.

    A subclass overrides ``pick``, what it keeps in ``learn``, ``rows`` and ``restore``, and ``Options``, whose fields
    a scenario gives beside the ``name``.  ``needs_loss`` says whether it learns from training.
    """

    class Options(BaseModel):
        """Fields beside the name: none."""

        model_config = ConfigDict(extra="forbid", frozen=True)

        name: str = ""

    needs_loss: ClassVar[bool] = False

    def __init__(self, options: RoundOptions, seed: int):
        self.options, self.seed = options, seed
        own: object = options.selection
        self.own: Any = own if isinstance(own, self.Options) else self.Options.model_validate({})
        self._round, self._call = -1, 0
        self._merged: tuple[tuple[Integers, ...], Integers] = ((), NOBODY)

    @classmethod
    def blind(cls, options: BaseModel) -> bool:
        """Whether it does without losses: it never needs any, or the ``proxy`` of its options stands for them."""
        return not cls.needs_loss or getattr(options, "proxy", None) is not None

    def choose(self, candidates: Candidates, round: int, count: int | None = None) -> Chosen:
        """Who takes part in ``round``.

        Without a ``count`` the scenario's cohort, with its over-selection, as far as each group has enough who are
        ready.  A ``count`` is met exactly while anyone is ready: dealt to the groups by their size, a fraction of a
        place by lot, and what one group can't fill goes to the others.
        """
        self._round, self._call = round, self._call + 1 if round == self._round else 0
        groups, population = dict(candidates.groups), dict(candidates.population)
        if not self.options.stratify:
            groups, population = {"": self._union(groups)}, {"": sum(population.values())}
        seats = self._cohort(population) if count is None else self._dealt(count, groups, population, 0)
        found: dict[str, Chosen] = {}
        want, turn = seats, 0
        while want:
            for index, (name, clients) in enumerate(groups.items()):
                if name in want:
                    seats[name] = min(seats.get(name, 0), len(clients))
                    share = Places(name, clients, seats[name], round, candidates, self._draws(index))
                    found[name] = self.pick(share) if share.count else Chosen(NOBODY, 0, 0)
            # a count's places that somebody else could fill; a group that fell short has nobody left
            turn += 1
            left = (count or 0) - sum(len(c.clients) for c in found.values())
            able = {n: g for n, g in groups.items() if n in found and seats[n] < len(g)}
            able = {n: g for n, g in able.items() if len(found[n].clients) == seats[n]}
            want = self._dealt(left, able, population, turn) if left > 0 else {}
            seats.update({name: seats[name] + more for name, more in want.items()})
            want = {name: more for name, more in want.items() if more}
        for name, one in found.items():
            self.process_arrivals(name, one.clients)
        clients = np.sort(np.concatenate([NOBODY, *(one.clients for one in found.values())]))
        return Chosen(clients, sum(c.asked for c in found.values()), sum(c.unready for c in found.values()))

    @abstractmethod
    def pick(self, share: Places) -> Chosen:
        """Clients of one group, at most ``share.count``, in the order in which they were asked.

        It changes nothing of the selection: it may be asked again for more.
        """

    def process_arrivals(self, group: str, clients: Integers) -> None:
        """These clients of a group, as ``pick`` gave them, take part."""

    def learn(
        self, clients: Integers, losses: NDArray[Any], seconds: NDArray[Any], samples: Integers, round: int
    ) -> None:
        """What was heard from clients whose update arrived, arrays `[n]`; a loss is nan where there is none."""

    def rows(self) -> dict[str, Any]:
        """What later choices depend on, as plain data for a checkpoint."""
        return {"round": self._round, "call": self._call}

    def restore(self, rows: Mapping[str, Any]) -> None:
        """Go on from ``rows``."""
        self._round, self._call = int(rows["round"]), int(rows["call"])

    def _draws(self, index: int) -> Callable[[], np.random.Generator]:
        later = (self._call,) if self._call else ()
        round = self._round  # a caller may keep it for longer
        return lambda: seeds.generator(self.seed, "cohort", round, index, *later)

    def _cohort(self, population: Mapping[str, int]) -> dict[str, int]:
        """Places of each group: the cohort's, times 1 + over-selection, rounded up."""
        if not any(population.values()):
            return {}
        more = 1 + self.options.over_selection
        cohort = self.options.cohort
        # rounded first, so that 10 x 1.1 is eleven
        if isinstance(cohort, int):
            return places(ceil(round(cohort * more, 6)), population)
        return {group: ceil(round(n * more, 6)) for group, n in places(cohort, population).items()}

    def _dealt(
        self, count: int, groups: Mapping[str, Integers], population: Mapping[str, int], turn: int
    ) -> dict[str, int]:
        """``count`` places by the groups' sizes: on average to the exact share, never further than one place from it.

        One draw decides about all fractions (systematic sampling), as a policy that fills places one at a time would
        otherwise always turn to the largest group.
        """
        total = sum(population[name] for name in groups)
        if not total or len(groups) == 1:
            return dict.fromkeys(groups, count if total else 0)
        lot = (seeds.key(self.seed, "cohort places", self._round, self._call, turn) >> 10) / 2**53
        ends = (round(n * count / total, 9) for n in accumulate(population[name] for name in groups))
        places = [int(end + lot) for end in ends]
        return {name: end - start for name, start, end in zip(groups, [0, *places], places, strict=False)}

    def _union(self, groups: Mapping[str, Integers]) -> Integers:
        arrays = tuple(groups.values())
        if len(arrays) == 1:
            return arrays[0]
        known, merged = self._merged
        if len(known) != len(arrays) or any(a is not b for a, b in zip(known, arrays, strict=True)):
            merged = np.sort(np.concatenate([NOBODY, *arrays]))
            self._merged = arrays, merged
        return merged


class Random(Selection):
    """Uniformly without replacement from those who are ready."""

    class Options(Selection.Options):
        """Fields of ``selection: {name: random}``."""

        name: Literal["random"] = "random"

    def pick(self, share: Places) -> Chosen:
        """The first ready ones of a random order."""
        return first_ready(RandomOrder(share.generator(), len(share.clients)), share)


class RoundRobin(Selection):
    """Each group in the order of its clients, going on where the last round stopped; who isn't ready is passed over."""

    class Options(Selection.Options):
        """Fields of ``selection: {name: round-robin}``."""

        name: Literal["round-robin"] = "round-robin"

    def __init__(self, options: RoundOptions, seed: int):
        super().__init__(options, seed)
        self._last: dict[str, int] = {}

    def pick(self, share: Places) -> Chosen:
        """The next ready ones after the one that was taken last."""
        start = int(np.searchsorted(share.clients, self._last.get(share.name, -1), side="right"))
        return first_ready(_Circle(len(share.clients), start), share)

    def process_arrivals(self, group: str, clients: Integers) -> None:
        """The last of them is where the next round starts."""
        if len(clients):
            self._last[group] = int(clients[-1])

    def rows(self) -> dict[str, Any]:
        """With the client of each group that was taken last."""
        return {**super().rows(), "last": dict(self._last)}

    def restore(self, rows: Mapping[str, Any]) -> None:
        """Go on from ``rows``."""
        super().restore(rows)
        self._last = {group: int(client) for group, client in rows["last"].items()}


# --- orders ----------------------------------------------------------------------------------------------------------


def first_ready(order: Order, share: Places, count: int | None = None, known: Integers | None = None) -> Chosen:
    """The first ``count`` (or ``share.count``) ready clients of an order, in that order.

    Those in ``known``, ascending, are left out without being asked.  Asked are those up to the last one that was
    taken, or everyone.
    """
    left = share.count if count is None else count
    wanted, taken, asked, unready, seen = left, [NOBODY], 0, 0, 0
    while left > 0:
        found = order.take(wanted)
        if not len(found):
            break
        seen += len(found)
        found = share.clients[found]
        if known is not None:
            found = found[~contains(known, found)]
        ready = np.asarray(share.candidates.ready(found), dtype=bool) if len(found) else np.empty(0, dtype=bool)
        there = ready.nonzero()[0]
        if len(there) >= left:
            found, ready = found[: there[left - 1] + 1], ready[: there[left - 1] + 1]
        taken.append(found[ready])
        left -= len(taken[-1])
        asked, unready = asked + len(found), unready + len(found) - len(taken[-1])
        # as many as will do by what was seen so far, and some more
        wanted = int(1.2 * left * (seen + 1) / (asked - unready + 1)) + 16
    return Chosen(np.concatenate(taken), asked, unready)


def contains(clients: Integers, wanted: Integers) -> Booleans:
    """Which of ``wanted`` are among ``clients``, which ascend."""
    if not len(clients):
        return np.zeros(len(wanted), dtype=bool)
    found: Booleans = clients[np.minimum(np.searchsorted(clients, wanted), len(clients) - 1)] == wanted
    return found


class RandomOrder:
    """Positions 0 to ``size`` - 1 in random order: uniform, or one after the other with chances by weight.

    ``sums`` `[size]` are the running sums of the weights.  Costs go with the positions taken, until half of all (by
    weight) are; then the rest is put in order at once.  The first piece of a uniform order is
    ``draw.choice(size, wanted, replace=False)``.
    """

    def __init__(self, draw: np.random.Generator, size: int, sums: Floats | None = None):
        self._draw, self._size, self._sums = draw, size, sums
        self._taken = NOBODY
        self._weight = 0.0
        self._rest: Integers | None = None

    def take(self, wanted: int) -> Integers:
        """The next about ``wanted`` positions; empty when all were taken."""
        if self._rest is None and self._sums is None and not len(self._taken):
            return self._gone(self._draw.choice(self._size, min(wanted, self._size), replace=False))
        while self._rest is None and self._sparse(wanted):
            found = self._drawn(wanted)
            _, first = np.unique(found, return_index=True)
            found = found[np.sort(first)]
            found = found[~np.isin(found, self._taken)]
            if len(found):
                return self._gone(found)
        if self._rest is None:
            left = np.ones(self._size, dtype=bool)
            left[self._taken] = False
            self._rest = self._shuffled(left.nonzero()[0])
        found, self._rest = self._rest[:wanted], self._rest[wanted:]
        return found

    def _sparse(self, wanted: int) -> bool:
        if 2 * (len(self._taken) + wanted) > self._size:
            return False
        return self._sums is None or 2 * self._weight < self._sums[-1]

    def _drawn(self, wanted: int) -> Integers:
        if self._sums is None:
            return self._draw.integers(self._size, size=wanted)
        found: Integers = np.searchsorted(self._sums, self._draw.random(wanted) * self._sums[-1], side="right")
        found = np.minimum(found, self._size - 1)  # a product may round up to the last sum
        return found

    def _shuffled(self, rest: Integers) -> Integers:
        if self._sums is None:
            return self._draw.permutation(rest)
        return rest[by_weight(self._draw, self._weights(rest))]

    def _weights(self, found: Integers) -> Floats:
        assert self._sums is not None
        return self._sums[found] - np.where(found > 0, self._sums[found - 1], 0.0)

    def _gone(self, found: Integers) -> Integers:
        self._taken = np.concatenate([self._taken, found])
        if self._sums is not None:
            self._weight += float(self._weights(found).sum())
        return found


def by_weight(draw: np.random.Generator, weights: Floats) -> Integers:
    """All positions of ``weights``, drawn one after the other with chances by weight; those without weight come last.

    The shortest of exponential waiting times, each with its weight as rate, is one's with the chance of its weight
    (Efraimidis and Spirakis 2006).
    """
    order = draw.permutation(len(weights))
    with np.errstate(divide="ignore"):
        waits = draw.exponential(size=len(weights)) / weights[order]
    return order[np.argsort(waits, kind="stable")]


class _Circle:
    """Positions from ``start`` on, and then those before it."""

    def __init__(self, size: int, start: int):
        self._size, self._start, self._given = size, start, 0

    def take(self, wanted: int) -> Integers:
        """The next ``wanted`` positions; empty after a full turn."""
        more = min(wanted, self._size - self._given)
        found = (self._start + self._given + np.arange(more)) % max(self._size, 1)
        self._given += more
        return found
