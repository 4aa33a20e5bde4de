"""Selections: choice of the candidates that take part in a round.

A selection asks candidates one after another, in an order of its own, whether they are ready, until its places are
filled.  Its cost scales with cohort size, not fleet size.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import ceil
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import BaseModel

from edgefl import seeds
from edgefl.arrays import AnyArray, Booleans, Integers
from edgefl.devices import Device
from edgefl.planning.privacy import Sampling
from edgefl.planning.round_options import RoundOptions, places
from edgefl.registry.answers import check_answers, describe_answer
from edgefl.registry.part_fields import NamedFields
from edgefl.simulation.selection.orders import NO_CLIENTS, Circle, RandomOrder, SelectionOrder


@dataclass(frozen=True)
class Candidates:
    """Clients that a selection may draw from, and what it may know of them; its functions take clients `[n]`."""

    groups: Mapping[str, Integers]
    """Clients by kind, ascending, also those under way.  Pass the same arrays again while nothing has changed, because
    results are cached by array."""
    population: Mapping[str, int]
    """Number of all clients by kind."""
    samples: Callable[[Integers], AnyArray]
    """Their private samples, constant in a run."""
    seconds: Callable[[Integers], AnyArray]
    """How long their round is predicted to take."""
    watts: Callable[[Integers], AnyArray]
    """The highest power that their round draws, as of the budget ``power``."""
    devices: Callable[[Integers], Sequence[Device]]
    """Their devices."""
    ready: Callable[[Integers], AnyArray]
    """Whether they are available, have enough power and are not under way."""
    charge: Callable[[Integers], AnyArray] = np.ones_like
    """The share of their batteries that is left now, from 0 to 1; 1 on mains power."""


@dataclass(frozen=True)
class Chosen:
    """What ``pick`` returns."""

    clients: Integers
    """Clients that take part."""
    asked: int
    """How many were asked."""
    unready: int
    """How many of these were not ready."""


NOBODY = Chosen(NO_CLIENTS, 0, 0)


@dataclass(frozen=True)
class GroupDraw:
    """A draw of ``count`` clients from one group; every call of ``generator()`` starts the same random numbers."""

    name: str
    """Name of the group: a kind, or ``""`` for all."""
    clients: Integers
    """Clients of the group, ascending."""
    count: int
    """How many are wanted."""
    round: int
    """The round."""
    candidates: Candidates
    """What a selection may know about clients."""
    generator: Callable[[], np.random.Generator]
    """A numpy generator for this draw."""


def _misfit(selection: Selection, arguments: tuple[GroupDraw], answer: object) -> str:
    """What is wrong with an answer of ``pick``."""
    (share,) = arguments
    if not isinstance(answer, Chosen):
        return f"returned {describe_answer(answer)}, not a Chosen"
    clients = np.asarray(answer.clients)
    if not len(clients):
        return ""
    if clients.ndim != 1 or clients.dtype.kind not in "iu":
        return f"chose {clients.dtype} {[*clients.shape]}, not the numbers of clients [n]"
    if len(clients) > share.count and selection.sampling != "poisson":
        return f"chose {len(clients)} clients where share.count is {share.count}"
    if len(np.unique(clients)) < len(clients):
        return f"chose a client twice: {clients.tolist()}"
    if not (known := np.isin(clients, share.clients)).all():
        return f"chose {clients[~known].tolist()}, which share.clients doesn't have"
    if not (ready := np.asarray(share.candidates.ready(clients))).all():
        return f"chose {clients[~ready].tolist()}, for which share.candidates.ready is false"
    return ""


class Selection(ABC):
    """Draws a cohort from each kind of clients, or from their union.

    A subclass overrides ``pick``; if it keeps state also ``learn``, ``to_data`` and ``load_data``; and ``Options``,
    whose fields a scenario gives next to the ``name``.
    """

    class Options(NamedFields):
        """Fields next to the name: none."""

    options: Any
    """The ``Options`` of this selection."""
    section: RoundOptions
    """The scenario's ``round`` section."""
    seed: int
    """The scenario's seed."""
    paper: ClassVar[str] = ""
    """Where it was published: authors and year, or the paper's name."""
    needs_loss: ClassVar[bool] = False
    """Whether it uses clients' losses."""
    sampling: ClassVar[Sampling | None] = None
    """How it draws from clients that are all ready, where accountants of privacy know their chances; None: not so."""

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        if "pick" in vars(cls) and "sampling" not in vars(cls):
            cls.sampling = None
        check_answers(cls, {"pick": _misfit})

    def __init__(self, options: Any, section: RoundOptions, seed: int):
        self.options, self.section, self.seed = options, section, seed
        self._round, self._call = -1, 0
        self._merged: tuple[tuple[Integers, ...], Integers] = ((), NO_CLIENTS)

    @classmethod
    def is_blind(cls, options: BaseModel) -> bool:
        """Whether it works without losses: it never needs them, or its options have a ``proxy``."""
        return not cls.needs_loss or getattr(options, "proxy", None) is not None

    def choose(self, candidates: Candidates, round: int, count: int | None = None) -> Chosen:
        """Choose the clients that take part in ``round``.

        Without a ``count``, the scenario's cohort with its over-selection, as far as each group has ready clients.  A
        ``count`` is met exactly while clients are ready: it is apportioned to the groups by size, fractions by a draw,
        and places that a group can't fill go to the others.
        """
        self._round, self._call = round, self._call + 1 if round == self._round else 0
        # the groups that places go to, and the clients of each, counting those that can't be chosen
        groups, population = dict(candidates.groups), dict(candidates.population)
        if not self.section.stratify:
            groups, population = {"": self._union(groups)}, {"": sum(population.values())}
        seats = self._cohort(population) if count is None else self._apportion(count, groups, population, 0)
        chosen: dict[str, Chosen] = {}
        open_places, turn = seats, 0
        while open_places:
            for index, (name, clients) in enumerate(groups.items()):
                if name in open_places:
                    seats[name] = most = min(seats.get(name, 0), len(clients))
                    chosen[name] = NOBODY
                    if most:
                        share = GroupDraw(name, clients, most, round, candidates, self._draws(index))
                        chosen[name] = self.pick(share)
            # places of a count that other groups can fill; a group that fell short has no ready clients left
            turn += 1
            if (left := (count or 0) - sum(len(c.clients) for c in chosen.values())) <= 0:
                break
            open_groups = {n: g for n, g in groups.items() if n in chosen and seats[n] < len(g)}
            open_groups = {n: g for n, g in open_groups.items() if len(chosen[n].clients) == seats[n]}
            open_places = self._apportion(left, open_groups, population, turn)
            seats.update({name: seats[name] + more for name, more in open_places.items()})
            open_places = {name: more for name, more in open_places.items() if more}
        for name, choice in chosen.items():
            self.note_chosen(name, choice.clients)
        clients = np.sort(np.concatenate([NO_CLIENTS, *(c.clients for c in chosen.values())]))
        return Chosen(clients, sum(c.asked for c in chosen.values()), sum(c.unready for c in chosen.values()))

    @abstractmethod
    def pick(self, share: GroupDraw) -> Chosen:
        """Clients of one group, at most ``share.count``, in the order in which they were asked.

        It must not change the selection, because it may be called again with a higher count.
        """

    def note_chosen(self, group: str, clients: Integers) -> None:
        """Note the clients of a group that take part, as ``pick`` returned them."""

    def learn(self, clients: Integers, losses: AnyArray, seconds: AnyArray, samples: Integers, round: int) -> None:
        """Learn from clients whose update arrived: arrays `[n]`; a missing loss is NaN."""

    def to_data(self) -> dict[str, object]:
        """State that later choices depend on, as plain data for a checkpoint."""
        return {"round": self._round, "call": self._call}

    def load_data(self, raw: Mapping[str, Any]) -> None:
        """Go on from what ``to_data`` returned."""
        self._round, self._call = raw["round"], raw["call"]

    def _draws(self, index: int) -> Callable[[], np.random.Generator]:
        # a caller may use the generator later
        indices = self._round, index, *((self._call,) if self._call else ())
        return lambda: seeds.generator(self.seed, "cohort", *indices)

    def _cohort(self, population: Mapping[str, int]) -> dict[str, int]:
        """Places of each group: the cohort's, times 1 + over-selection, rounded up."""
        if not any(population.values()):
            return {}
        more = 1 + self.section.over_selection
        cohort = self.section.cohort
        # rounded first, so that 10 x 1.1 gives 11
        if isinstance(cohort, int):
            return places(ceil(round(cohort * more, 6)), population)
        return {group: ceil(round(n * more, 6)) for group, n in places(cohort, population).items()}

    def _apportion(
        self, count: int, groups: Mapping[str, Integers], population: Mapping[str, int], turn: int
    ) -> dict[str, int]:
        """Apportion ``count`` places by group size, or by the cohort's sizes if it has one for each kind.

        A group gets its exact share on average, and never more than one place more or less.

        One draw decides all fractions (systematic sampling): otherwise a policy that fills one place at a time would
        always choose the largest group.
        """
        if isinstance(self.section.cohort, dict):
            population = places(self.section.cohort, population)
        total = sum(population[name] for name in groups)
        if not total or len(groups) == 1:
            return dict.fromkeys(groups, count if total else 0)
        offset = (seeds.key(self.seed, "cohort places", self._round, self._call, turn) >> 10) / 2**53
        ends = [int(round(n * count / total, 9) + offset) for n in accumulate(population[name] for name in groups)]
        return {name: end - start for name, start, end in zip(groups, [0, *ends], ends, strict=False)}

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

    sampling: ClassVar[Sampling | None] = "without replacement"

    class Options(Selection.Options):
        """Fields of ``selection: {name: random}``."""

        name: Literal["random"] = "random"

    def pick(self, share: GroupDraw) -> Chosen:
        """The first ready clients of a random order."""
        return first_ready(RandomOrder(share.generator(), len(share.clients)), share)


class RoundRobin(Selection):
    """Each group in the order of its clients, from where the last round stopped; clients not ready are skipped."""

    class Options(Selection.Options):
        """Fields of ``selection: {name: round-robin}``."""

        name: Literal["round-robin"] = "round-robin"

    def __init__(self, options: Any, section: RoundOptions, seed: int):
        super().__init__(options, section, seed)
        self._last: dict[str, int] = {}

    def pick(self, share: GroupDraw) -> Chosen:
        """The next ready clients after the last one that took part."""
        start = int(np.searchsorted(share.clients, self._last.get(share.name, -1), side="right"))
        return first_ready(Circle(len(share.clients), start), share)

    def note_chosen(self, group: str, clients: Integers) -> None:
        """Note the last client, after which the next round starts."""
        if len(clients):
            self._last[group] = int(clients[-1])

    def to_data(self) -> dict[str, object]:
        """State of the base class, and the last client of each group that took part."""
        return {**super().to_data(), "last": dict(self._last)}

    def load_data(self, raw: Mapping[str, Any]) -> None:
        """Go on from what ``to_data`` returned."""
        super().load_data(raw)
        self._last = dict(raw["last"])


MANY_AWAY = 512
"""After so many clients that aren't ready the whole group is asked once.  If 1 % were ready, so many would be away in a
row with a chance of .6 %; asking a million phones in a random order takes longer than in that of the fleet."""

# --- asking ----------------------------------------------------------------------------------------------------------


def first_ready(
    order: SelectionOrder, share: GroupDraw, count: int | None = None, known: Integers | None = None
) -> Chosen:
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
        nobody_yet = known is None and asked == unready and not len(hits)
        # if nobody is there, their order doesn't matter; a round that waits for the night asks every minute
        if nobody_yet and seen - len(positions) < MANY_AWAY <= seen and not any_ready(share):
            return Chosen(NO_CLIENTS, len(share.clients), len(share.clients))
        if len(hits) >= left:
            clients, ready = clients[: hits[left - 1] + 1], ready[: hits[left - 1] + 1]
        taken.append(clients[ready])
        left -= len(taken[-1])
        asked, unready = asked + len(clients), unready + len(clients) - len(taken[-1])
        # estimated from the share of ready clients so far, with a margin
        wanted = int(1.2 * left * (seen + 1) / (asked - unready + 1)) + 16
    return Chosen(np.concatenate(taken), asked, unready)


def any_ready(share: GroupDraw) -> bool:
    """Whether a client of the group is ready."""
    return bool(np.asarray(share.candidates.ready(share.clients), dtype=bool).any())


def contains(clients: Integers, wanted: Integers) -> Booleans:
    """Mask of ``wanted`` that are in ``clients`` (ascending)."""
    if not len(clients):
        return np.zeros(len(wanted), dtype=bool)
    mask: Booleans = clients[np.minimum(np.searchsorted(clients, wanted), len(clients) - 1)] == wanted
    return mask
