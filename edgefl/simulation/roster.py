"""The roster: who can take part in a round, of all clients at once.

Clients that are alike share a cell (``Plan``): one of each kind of cost, device, link and stale copies.  A client has
the number of its cell, its stage and its verdict in arrays, and is judged again only when one of them may have changed:
at another stage, or once it holds other copies than before.  So a round costs what its cohort costs, however many
clients are registered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.planning import (
    BUDGETS,
    ClientVersions,
    Plan,
    Planner,
    Verdicts,
    Versions,
    choose_stages,
    frozen,
    gate,
    older,
)
from edgefl.schedules import Stage
from edgefl.work import Address

Integers = NDArray[Any]
Floats = NDArray[np.float64]

CHUNK = 1 << 17
"""Clients that are judged at a time: what a verdict takes besides what is kept of it stays small."""
NOBODY = -1
"""The cell of a client that its method leaves out."""


class Roster:
    """Verdicts and cells of all clients: arrays `[clients]`.

    ``stage`` is the index of the first candidate stage that fits the client's budgets, or of the one that comes nearest
    to them, which refuses it; ``binding`` indexes BUDGETS (-1: unlimited); ``cell`` indexes ``cells``.
    """

    def __init__(self, planner: Planner, client_versions: ClientVersions):
        self.planner, self.client_versions = planner, client_versions
        clients = len(planner.setup.clients.client_kind)
        self.eligible = np.zeros(clients, bool)
        self.binding = np.full(clients, -1, np.int8)
        self.stage = np.zeros(clients, np.int16)
        self.cell = np.full(clients, NOBODY, np.int32)
        self.cells: list[Plan] = []
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._costs = _Rows(len(BUDGETS))
        self._sign: tuple[Any, ...] | None = None
        self._order: tuple[int, ...] = ()
        self._olds: dict[tuple[int, str, int], tuple[Address, ...]] = {}
        self._frozen: dict[tuple[str, int], tuple[Address, ...]] = {}
        self._versions: dict[tuple[str, int], tuple[int, ...]] = {}
        self._numbers_of = _Rows()
        self._able: dict[str, Integers] = {}
        self.changes = 0
        """How often it changed who is eligible."""
        self._able_samples: dict[str, int] = {}

    # reading --------------------------------------------------------------------------------------------------------

    def able(self, kind: str) -> Integers:
        """Eligible clients of a kind, ascending."""
        if kind not in self._able:
            mine = self.planner.setup.of_kind(kind)
            self._able[kind] = mine[self.eligible[mine]]
        return self._able[kind]

    def able_samples(self, kind: str) -> int:
        """Private samples of the eligible clients of a kind together."""
        if kind not in self._able_samples:
            self._able_samples[kind] = int(self.planner.setup.clients.client_samples[self.able(kind)].sum())
        return self._able_samples[kind]

    def numbers(self, of: Callable[[Plan], Sequence[float]]) -> Floats:
        """What ``of`` gives of each cell's plan, `[cells, numbers]`; the same ``of`` throughout."""
        for plan in self.cells[len(self._numbers_of) :]:
            self._numbers_of.append(of(plan))
        return self._numbers_of.array

    def of_cells(self, number: str) -> Floats:
        """A cost of each cell, by the keys of BUDGETS: `[cells]`."""
        return self._costs.array[:, BUDGETS.index(number)]

    def plan(self, client: int) -> Plan:
        """What this client would do."""
        return self.cells[int(self.cell[client])]

    def budgets(self, clients: Integers) -> dict[str, Floats]:
        """What these clients may use; a round's deadline is a budget of seconds for everyone."""
        return self.planner.setup.budgets(clients)

    def verdicts(self, clients: Integers) -> Verdicts:
        """The verdicts on some clients, with every margin."""
        return gate({n: self.of_cells(n)[self.cell[clients]] for n in BUDGETS}, self.budgets(clients))

    # judging --------------------------------------------------------------------------------------------------------

    def judge(self, round: int, current: Versions) -> Integers:
        """Bring everything up to this round; clients whose stage, eligibility or binding budget is new, ascending."""
        setup = self.planner.setup
        stages = setup.schedule.candidates(round)
        kinds = [kind for kind in setup.clients.kinds if setup.participates(kind, round)]
        works = {(k, s.index): self.planner.work(k, round, s)[0] for k in kinds for s in stages}
        sign = tuple(sorted((key, self.planner.revisions[key]) for key in works))
        before, self._order = self._order, tuple(stage.index for stage in stages)
        told = self.client_versions.changed()
        if self.client_versions.keeping and (self.client_versions.crowded or sign != self._sign):
            # an asynchronous run sends another version with each flight: few differ in what is old
            self.client_versions.thin(current)
            self._olds = {}
        if sign != self._sign:
            self._sign = sign
            self._versions, self._numbers = {}, {}
            self.cells, self._costs, self._numbers_of = [], _Rows(len(BUDGETS)), _Rows()
            self._frozen = {(k, s.index): frozen(works[k, s.index], s) for k in kinds for s in stages}
            takes_part = np.zeros(len(self.cell), bool)
            for kind in kinds:
                takes_part[setup.of_kind(kind)] = True
            for kind in setup.clients.kinds:
                if kind not in kinds:
                    self.cell[setup.of_kind(kind)] = NOBODY
            who = np.flatnonzero(takes_part)
            self._note_frozen(current)
        else:
            moved = self._note_frozen(current)
            if before != self._order:  # what is offered takes turns
                same = next(i for i, (a, b) in enumerate(zip(before, self._order, strict=True)) if a != b)
                moved = np.union1d(moved, np.flatnonzero(~self._placed(self._order[:same])))
            who = np.union1d(told, moved) if len(moved) else told
            who = who[self.cell[who] != NOBODY]
        changed = [self._judge(who[i : i + CHUNK], round, stages, current) for i in range(0, len(who), CHUNK)]
        return np.concatenate(changed) if changed else np.zeros(0, np.int64)

    def _note_frozen(self, current: Versions) -> Integers:
        """Clients whose copies of frozen parts the server has replaced since the last look."""
        moved: list[Integers] = []
        for key, addresses in self._frozen.items() if self.client_versions.keeping else ():
            versions = tuple(current[address] for address in addresses)
            if self._versions.setdefault(key, versions) != versions:
                self._versions[key] = versions
                self._olds = {known: old for known, old in self._olds.items() if known[1:] != key}
                mine = self.planner.setup.of_kind(key[0])
                # whoever fits what is offered before has no use for it
                moved.append(mine[~self._placed(self._order[: self._order.index(key[1])], mine)])
        return np.unique(np.concatenate(moved)) if moved else np.zeros(0, np.int64)

    def _placed(self, stages: Sequence[int], clients: Integers | slice = slice(None)) -> NDArray[np.bool_]:
        """Whether these clients, by default all, fit one of these stages, as far as was judged."""
        found: NDArray[np.bool_] = self.eligible[clients] & np.isin(self.stage[clients], stages)
        return found

    def _judge(
        self,
        clients: Integers,
        round: int,
        stages: Sequence[Stage],
        current: Versions,
    ) -> Integers:
        def offer(stage: Stage, left: Integers) -> tuple[Integers, dict[str, Floats]]:
            cells = self._cells(clients[left], round, stage, current)
            return cells, {name: self.of_cells(name)[cells] for name in BUDGETS}

        chosen = choose_stages({stage.index: partial(offer, stage) for stage in stages}, self.budgets(clients))
        as_before = chosen.eligible == self.eligible[clients]
        same = as_before & (chosen.stage == self.stage[clients]) & (chosen.binding == self.binding[clients])
        self.stage[clients], self.cell[clients] = chosen.stage, chosen.row
        self.eligible[clients], self.binding[clients] = chosen.eligible, chosen.binding
        if not as_before.all():
            self._able, self._able_samples = {}, {}
            self.changes += 1
        changed: Integers = clients[~same]
        return changed

    def _cells(
        self,
        clients: Integers,
        round: int,
        stage: Stage,
        current: Versions,
    ) -> Integers:
        """Numbers of the cells of these clients at a stage; new ones are planned."""
        setup = self.planner.setup
        held = self.client_versions.of[clients] if self.client_versions.keeping else np.zeros(len(clients), np.int32)
        # one integer that says group, device, link and state: few distinct ones, however many clients
        code = np.asarray(setup.clients.client_group)[clients].astype(np.int64)
        codes = len(setup.representative)
        for index, size in (
            (setup.fleet.device_index[clients], len(setup.fleet.devices)),
            (setup.fleet.link_index[clients], len(setup.fleet.links)),
            (held, len(self.client_versions.states)),
        ):
            code, codes = code * size + index, codes * size
        first, inverse = _distinct(code, codes)
        numbers = np.empty(len(first), np.int32)
        for place, position in enumerate(first):
            client = int(clients[position])
            kind = setup.kind_of(client)
            old = self._old(int(held[position]), kind, stage, current)
            where = setup.place(client)
            key = (*where, stage.index, old)
            number = self._numbers.get(key)
            if number is None:
                number = self._numbers[key] = len(self.cells)
                plan = self.planner.plan(*where, round, stage, old)
                self.cells.append(plan)
                costs = plan.cost.budgets()
                self._costs.append([costs[name] for name in BUDGETS])
            numbers[place] = number
        return numbers[inverse]

    def _old(self, state: int, kind: str, stage: Stage, current: Versions) -> tuple[Address, ...]:
        """What of a stage's frozen part is old in a state of the client_versions."""
        if not self.client_versions.keeping:
            return ()
        key = (state, kind, stage.index)
        if key not in self._olds:
            self._olds[key] = older(self._frozen[kind, stage.index], self.client_versions.states[state], current)
        return self._olds[key]


class _Rows:
    """Rows of numbers that grow one by one; ``array`` `[rows, numbers]` is a view."""

    def __init__(self, width: int = 0):
        self._held: Floats = np.zeros((0, width))
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def array(self) -> Floats:
        """All rows so far."""
        return self._held[: self._count]

    def append(self, row: Sequence[float]) -> None:
        """Another row."""
        if self._count == len(self._held):
            held = np.zeros((max(2 * self._count, 16), len(row)))
            if self._count:
                held[: self._count] = self._held
            self._held = held
        self._held[self._count] = row
        self._count += 1


def _distinct(code: Integers, codes: int) -> tuple[Integers, Integers]:
    """Where each distinct code stands first, and which of them every place has; codes are below ``codes``."""
    if codes > 8 * len(code):
        _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
        return first, inverse
    # a table of all codes takes less time than sorting
    first_of = np.full(codes, -1, np.int64)
    first_of[code[::-1]] = np.arange(len(code) - 1, -1, -1)
    there = first_of >= 0
    return first_of[there], (np.cumsum(there) - 1)[code]
