"""Selections: choice of the candidates that take part in a round.

A selection asks candidates one after another, in an order of its own, whether they are ready, until its places are
filled.  Its cost scales with cohort size, not fleet size.
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

NO_CLIENTS = np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class Candidates:
    """Clients that a selection may draw from, and the data that it may use.

    ``groups`` has the clients by kind, ascending, including those under way.  Pass the same arrays again while nothing
    has changed, because results are cached by array.  ``population`` counts all clients of those kinds.  For clients
    `[n]`, ``samples`` returns their numbers of private samples (constant in a run), ``seconds`` the predicted duration
    of their round, and ``ready`` whether they are online, have power and are not under way.
    """

    groups: Mapping[str, Integers]
    population: Mapping[str, int]
    samples: Callable[[Integers], NDArray[Any]]
    seconds: Callable[[Integers], NDArray[Any]]
    ready: Callable[[Integers], NDArray[Any]]


@dataclass(frozen=True)
class Chosen:
    """Clients that take part, number of clients asked, and number of those that were not ready."""

    clients: Integers
    asked: int
    unready: int


@dataclass(frozen=True)
class Places:
    """A draw of ``count`` clients from one group; every call of ``generator()`` starts the same random numbers."""

    name: str
    clients: Integers
    count: int
    round: int
    candidates: Candidates
    generator: Callable[[], np.random.Generator]


class Order(Protocol):
    """An order of distinct positions in a group, returned in pieces."""

    def take(self, wanted: int) -> Integers:
        """The next positions, about ``wanted`` of them; empty at the end of the order."""
        ...


class Selection(ABC):
    """Draws a cohort from each kind of clients, or from their union.

    A subclass overrides ``pick``; if it keeps state also ``learn``, ``rows`` and ``restore``; and ``Options``, whose
    fields a scenario gives beside the ``name``.  ``needs_loss`` says whether it learns from training.
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
        self._merged: tuple[tuple[Integers, ...], Integers] = ((), NO_CLIENTS)

    @classmethod
    def blind(cls, options: BaseModel) -> bool:
        """Whether it works without losses: it never needs them, or its options have a ``proxy``."""
        return not cls.needs_loss or getattr(options, "proxy", None) is not None

    def choose(self, candidates: Candidates, round: int, count: int | None = None) -> Chosen:
        """Choose the clients that take part in ``round``.

        Without a ``count``, the scenario's cohort with its over-selection, as far as each group has ready clients.  A
        ``count`` is met exactly while clients are ready: it is apportioned to the groups by size, fractions by a draw,
        and places that a group can't fill go to the others.
        """
        self._round, self._call = round, self._call + 1 if round == self._round else 0
        groups, population = dict(candidates.groups), dict(candidates.population)
        if not self.options.stratify:
            groups, population = {"": self._union(groups)}, {"": sum(population.values())}
        seats = self._cohort(population) if count is None else self._apportioned(count, groups, population, 0)
        chosen: dict[str, Chosen] = {}
        open_places, turn = seats, 0
        while open_places:
            for index, (name, clients) in enumerate(groups.items()):
                if name in open_places:
                    seats[name] = min(seats.get(name, 0), len(clients))
                    share = Places(name, clients, seats[name], round, candidates, self._draws(index))
                    chosen[name] = self.pick(share) if share.count else Chosen(NO_CLIENTS, 0, 0)
            # places of a count that other groups can fill; a group that fell short has no ready clients left
            turn += 1
            left = (count or 0) - sum(len(c.clients) for c in chosen.values())
            open_groups = {n: g for n, g in groups.items() if n in chosen and seats[n] < len(g)}
            open_groups = {n: g for n, g in open_groups.items() if len(chosen[n].clients) == seats[n]}
            open_places = self._apportioned(left, open_groups, population, turn) if left > 0 else {}
            seats.update({name: seats[name] + more for name, more in open_places.items()})
            open_places = {name: more for name, more in open_places.items() if more}
        for name, choice in chosen.items():
            self.process_arrivals(name, choice.clients)
        clients = np.sort(np.concatenate([NO_CLIENTS, *(c.clients for c in chosen.values())]))
        return Chosen(clients, sum(c.asked for c in chosen.values()), sum(c.unready for c in chosen.values()))

    @abstractmethod
    def pick(self, share: Places) -> Chosen:
        """Clients of one group, at most ``share.count``, in the order in which they were asked.

        It must not change the selection, because it may be called again with a higher count.
        """

    def process_arrivals(self, group: str, clients: Integers) -> None:
        """Note the clients of a group that take part, as ``pick`` returned them."""

    def learn(
        self, clients: Integers, losses: NDArray[Any], seconds: NDArray[Any], samples: Integers, round: int
    ) -> None:
        """Learn from clients whose update arrived: arrays `[n]`; a missing loss is NaN."""

    def rows(self) -> dict[str, Any]:
        """State that later choices depend on, as plain data for a checkpoint."""
        return {"round": self._round, "call": self._call}

    def restore(self, rows: Mapping[str, Any]) -> None:
        """Go on from ``rows``."""
        self._round, self._call = int(rows["round"]), int(rows["call"])

    def _draws(self, index: int) -> Callable[[], np.random.Generator]:
        later = (self._call,) if self._call else ()
        round = self._round  # a caller may use the generator later
        return lambda: seeds.generator(self.seed, "cohort", round, index, *later)

    def _cohort(self, population: Mapping[str, int]) -> dict[str, int]:
        """Places of each group: the cohort's, times 1 + over-selection, rounded up."""
        if not any(population.values()):
            return {}
        more = 1 + self.options.over_selection
        cohort = self.options.cohort
        # rounded first, so that 10 x 1.1 gives 11
        if isinstance(cohort, int):
            return places(ceil(round(cohort * more, 6)), population)
        return {group: ceil(round(n * more, 6)) for group, n in places(cohort, population).items()}

    def _apportioned(
        self, count: int, groups: Mapping[str, Integers], population: Mapping[str, int], turn: int
    ) -> dict[str, int]:
        """Apportion ``count`` places by group size: on average the exact share, and never more than one place off.

        One draw decides all fractions (systematic sampling): otherwise a policy that fills one place at a time would
        always choose the largest group.
        """
        total = sum(population[name] for name in groups)
        if not total or len(groups) == 1:
            return dict.fromkeys(groups, count if total else 0)
        offset = (seeds.key(self.seed, "cohort places", self._round, self._call, turn) >> 10) / 2**53
        ends = (round(n * count / total, 9) for n in accumulate(population[name] for name in groups))
        places = [int(end + offset) for end in ends]
        return {name: end - start for name, start, end in zip(groups, [0, *places], places, strict=False)}

    def _union(self, groups: Mapping[str, Integers]) -> Integers:
        arrays = tuple(groups.values())
        if len(arrays) == 1:
            return arrays[0]
        known, merged = self._merged
        if len(known) != len(arrays) or any(a is not b for a, b in zip(known, arrays, strict=True)):
            merged = np.sort(np.concatenate([NO_CLIENTS, *arrays]))
            self._merged = arrays, merged
        return merged


class Random(Selection):
    """Uniform draw without replacement from the ready clients."""

    class Options(Selection.Options):
        """Fields of ``selection: {name: random}``."""

        name: Literal["random"] = "random"

    def pick(self, share: Places) -> Chosen:
        """The first ready clients of a random order."""
        return first_ready(RandomOrder(share.generator(), len(share.clients)), share)


class RoundRobin(Selection):
    """Each group in the order of its clients, from where the last round stopped; clients not ready are skipped."""

    class Options(Selection.Options):
        """Fields of ``selection: {name: round-robin}``."""

        name: Literal["round-robin"] = "round-robin"

    def __init__(self, options: RoundOptions, seed: int):
        super().__init__(options, seed)
        self._last: dict[str, int] = {}

    def pick(self, share: Places) -> Chosen:
        """The next ready clients after the last one that took part."""
        start = int(np.searchsorted(share.clients, self._last.get(share.name, -1), side="right"))
        return first_ready(_Circle(len(share.clients), start), share)

    def process_arrivals(self, group: str, clients: Integers) -> None:
        """Note the last client, after which the next round starts."""
        if len(clients):
            self._last[group] = int(clients[-1])

    def rows(self) -> dict[str, Any]:
        """State of the base class, and the last client of each group that took part."""
        return {**super().rows(), "last": dict(self._last)}

    def restore(self, rows: Mapping[str, Any]) -> None:
        """Go on from ``rows``."""
        super().restore(rows)
        self._last = {group: int(client) for group, client in rows["last"].items()}


# --- orders ----------------------------------------------------------------------------------------------------------


def first_ready(order: Order, share: Places, count: int | None = None, known: Integers | None = None) -> Chosen:
    """The first ``count`` (or ``share.count``) ready clients of an order, in that order.

    Clients in ``known`` (ascending) are skipped without being asked.  ``asked`` counts the others up to the last one
    taken, or to the end of the order.
    """
    left = share.count if count is None else count
    wanted, taken, asked, unready, seen = left, [NO_CLIENTS], 0, 0, 0
    while left > 0:
        positions = order.take(wanted)
        if not len(positions):
            break
        seen += len(positions)
        clients = share.clients[positions]
        if known is not None:
            clients = clients[~contains(known, clients)]
        ready = np.asarray(share.candidates.ready(clients), dtype=bool) if len(clients) else np.empty(0, dtype=bool)
        hits = ready.nonzero()[0]
        if len(hits) >= left:
            clients, ready = clients[: hits[left - 1] + 1], ready[: hits[left - 1] + 1]
        taken.append(clients[ready])
        left -= len(taken[-1])
        asked, unready = asked + len(clients), unready + len(clients) - len(taken[-1])
        # estimated from the share of ready clients so far, with a margin
        wanted = int(1.2 * left * (seen + 1) / (asked - unready + 1)) + 16
    return Chosen(np.concatenate(taken), asked, unready)


def contains(clients: Integers, wanted: Integers) -> Booleans:
    """Mask of ``wanted`` that are in ``clients`` (ascending)."""
    if not len(clients):
        return np.zeros(len(wanted), dtype=bool)
    mask: Booleans = clients[np.minimum(np.searchsorted(clients, wanted), len(clients) - 1)] == wanted
    return mask


class RandomOrder:
    """Positions 0 to ``size`` - 1 in random order: uniform, or drawn by weight without replacement.

    ``sums`` `[size]` are the cumulative weights.  The cost scales with the positions taken, until half of them (by
    weight) are; then the remaining ones are ordered at once.  The first piece of a uniform order is
    ``draw.choice(size, wanted, replace=False)``.
    """

    def __init__(self, draw: np.random.Generator, size: int, sums: Floats | None = None):
        self._draw, self._size, self._sums = draw, size, sums
        self._taken = NO_CLIENTS
        self._weight = 0.0
        self._remaining: Integers | None = None

    def take(self, wanted: int) -> Integers:
        """The next positions, about ``wanted`` of them; empty when all are taken."""
        if self._remaining is None and self._sums is None and not len(self._taken):
            return self._marked_taken(self._draw.choice(self._size, min(wanted, self._size), replace=False))
        while self._remaining is None and self._sparse(wanted):
            positions = self._drawn(wanted)
            _, first = np.unique(positions, return_index=True)
            positions = positions[np.sort(first)]
            positions = positions[~np.isin(positions, self._taken)]
            if len(positions):
                return self._marked_taken(positions)
        if self._remaining is None:
            free = np.ones(self._size, dtype=bool)
            free[self._taken] = False
            self._remaining = self._shuffled(free.nonzero()[0])
        positions, self._remaining = self._remaining[:wanted], self._remaining[wanted:]
        return positions

    def _sparse(self, wanted: int) -> bool:
        if 2 * (len(self._taken) + wanted) > self._size:
            return False
        return self._sums is None or 2 * self._weight < self._sums[-1]

    def _drawn(self, wanted: int) -> Integers:
        if self._sums is None:
            return self._draw.integers(self._size, size=wanted)
        positions: Integers = np.searchsorted(self._sums, self._draw.random(wanted) * self._sums[-1], side="right")
        positions = np.minimum(positions, self._size - 1)  # a product may round up to the last sum
        return positions

    def _shuffled(self, positions: Integers) -> Integers:
        if self._sums is None:
            return self._draw.permutation(positions)
        return positions[by_weight(self._draw, self._weights(positions))]

    def _weights(self, positions: Integers) -> Floats:
        assert self._sums is not None
        return self._sums[positions] - np.where(positions > 0, self._sums[positions - 1], 0.0)

    def _marked_taken(self, positions: Integers) -> Integers:
        self._taken = np.concatenate([self._taken, positions])
        if self._sums is not None:
            self._weight += float(self._weights(positions).sum())
        return positions


def by_weight(draw: np.random.Generator, weights: Floats) -> Integers:
    """All positions of ``weights``, drawn by weight without replacement; zero weights come last.

    Positions are sorted by exponential waiting times whose rates are the weights: each comes first with a probability
    proportional to its weight (Efraimidis and Spirakis 2006).
    """
    order = draw.permutation(len(weights))
    with np.errstate(divide="ignore"):
        waits = draw.exponential(size=len(weights)) / weights[order]
    return order[np.argsort(waits, kind="stable")]


class _Circle:
    """Positions in cyclic order from ``start``."""

    def __init__(self, size: int, start: int):
        self._size, self._start, self._given = size, start, 0

    def take(self, wanted: int) -> Integers:
        """The next ``wanted`` positions; empty after one cycle."""
        count = min(wanted, self._size - self._given)
        positions = (self._start + self._given + np.arange(count)) % max(self._size, 1)
        self._given += count
        return positions
