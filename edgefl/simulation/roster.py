"""The roster: eligibility of all clients for a round.

Clients of equal group, device, link, stage and stale copies share a cell (``Plan``).  Arrays hold the cell, stage and
verdict of each client.  A client is judged again only when they may have changed: at another stage, or when its copies
have changed.  So the cost of a round scales with cohort size, not fleet size.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from edgefl.arrays import Booleans, Floats, Integers
from edgefl.cost.phases import numbers_of
from edgefl.devices.caps import CAPPED, DAY, JOB
from edgefl.planning.eligibility import Verdicts, gate
from edgefl.planning.judge import choose_stages
from edgefl.planning.planner import Plan, PlanCell, Planner, WorkKey
from edgefl.planning.versions import ClientVersions, Versions, current_version, frozen_addresses, older
from edgefl.schedules import Stage
from edgefl.work import Address

CHUNK = 1 << 17
"""Number of clients that are judged at a time, which bounds the memory of temporary arrays: 1 MiB for each of float64.
A choice: a call of NumPy doesn't count beside so many numbers."""
NO_CELL = -1
"""Cell number of a client that doesn't take part."""


class Roster:
    """Verdicts and cells of all clients: arrays `[clients]`.

    ``stage`` is the index of the first candidate stage that fits the client's budgets, or of the nearest one if none
    fits; ``binding`` indexes ``names`` (-1: unlimited); ``cell`` indexes ``cells``.
    """

    def __init__(self, planner: Planner, client_versions: ClientVersions):
        self.planner, self.client_versions = planner, client_versions
        clients = len(planner.setup.clients.client_kind)
        self.eligible = np.zeros(clients, bool)
        self.binding = np.full(clients, -1, np.int8)
        self.stage = np.zeros(clients, np.int16)
        self.cell = np.full(clients, NO_CELL, np.int32)
        self.cells: list[Plan] = []
        self.caps = planner.setup.fleet.caps
        self.spent = None if self.caps is None else self.caps.nothing_spent()
        """What each client has spent of its caps, if there are any."""
        self._spenders: list[Integers] = []
        self._numbers: dict[tuple[Any, ...], int] = {}
        self.names = planner.setup.fleet.budget_names
        self._costs = np.zeros((0, len(self.names)))
        self._key: frozenset[Any] | None = None
        self._order: tuple[int, ...] = ()
        self._olds: dict[tuple[int, str, Hashable, int], tuple[Address, ...]] = {}
        self._frozen: dict[WorkKey, tuple[Address, ...]] = {}
        self._versions: dict[WorkKey, tuple[int, ...]] = {}
        self._numbers_of = np.zeros((0, 0))
        self._able: dict[str, Integers] = {}
        self.changes = 0
        """Number of changes of eligibility so far."""
        self._able_samples: dict[str, int] = {}

    # reading --------------------------------------------------------------------------------------------------------

    def able(self, kind: str) -> Integers:
        """Eligible clients of a kind, ascending."""
        if kind not in self._able:
            members = self.planner.setup.of_kind(kind)
            self._able[kind] = members[self.eligible[members]]
        return self._able[kind]

    def able_samples(self, kind: str) -> int:
        """Total number of private samples of the eligible clients of a kind."""
        if kind not in self._able_samples:
            self._able_samples[kind] = int(self.planner.setup.clients.client_samples[self.able(kind)].sum())
        return self._able_samples[kind]

    @property
    def numbers(self) -> Floats:
        """The numbers of each cell's round, `[cells, NUMBERS]` (edgefl.cost.phases)."""
        plans = self.cells[len(self._numbers_of) :]
        new = []
        for plan in plans:
            cool, busy = plan.compute.cool(plan.device)
            moved = plan.traffic.serialised_download_bytes, plan.traffic.serialised_upload_bytes
            new.append(numbers_of(*moved, cool, plan.device, plan.link, busy, [plan.compute.exchange]))
        if new:
            self._numbers_of = np.concatenate([self._numbers_of.reshape(-1, len(new[0])), new])
        return self._numbers_of

    def of_cells(self, number: str) -> Floats:
        """One cost of each cell, `[cells]`; ``number`` is one of ``names``."""
        return self._costs[:, self.names.index(number)]

    def plans(self, clients: Integers) -> list[Plan]:
        """Plans of these clients."""
        return [self.cells[cell] for cell in self.cell[clients].tolist()]

    def budgets(self, clients: Integers) -> dict[str, Floats]:
        """Budgets of these clients now (``Setup.budgets``)."""
        return self.planner.setup.budgets(clients, spent=self.spent)

    def verdicts(self, clients: Integers) -> Verdicts:
        """Verdicts on these clients, with all margins."""
        setup, costs = self.planner.setup, {n: self.of_cells(n)[self.cell[clients]] for n in self.names}
        of_device, of_caps = setup.fleet.memory_of_device[clients], setup.cap_limits(clients, self.spent)
        peaks = np.array([plan.compute.peak_memory_bytes for plan in self.cells])[self.cell[clients]]
        return gate(costs, self.budgets(clients), of_device, of_caps, peaks)

    # judging --------------------------------------------------------------------------------------------------------

    @property
    def may_change(self) -> bool:
        """Whether the verdict on a client may change with each of its rounds."""
        return self.client_versions.keeping or (self.caps is not None and bool(self.caps.names(JOB)))

    def spend(self, clients: Integers, amounts: Mapping[str, Floats], at: Floats) -> None:
        """Add what rounds that ended ``at`` these times took, by budget, to what these distinct clients have spent.

        Those with a cap for all rounds are judged again.
        """
        if self.caps is not None and self.spent is not None:
            self.caps.spend(self.spent, clients, amounts, at)
            for name in self.caps.names(JOB):
                self._spenders.append(clients[self.caps.amounts[name][clients] < np.inf])

    def within_day(self, clients: Integers, at: float) -> Booleans:
        """Whether the next round of these clients fits what their caps leave of the day: `[clients]`."""
        if self.caps is None or self.spent is None or not self.caps.names(DAY):
            return np.ones(len(clients), bool)
        cells = self.cell[clients]
        # whoever takes no part costs nothing
        costs = {name: np.where(cells == NO_CELL, 0.0, self.of_cells(name)[cells]) for name in CAPPED}
        return self.caps.ready(self.spent, clients, costs, at)

    def judge(self, round: int, current: Versions) -> Integers:
        """Update to this round; return clients whose stage, eligibility or binding budget has changed, ascending."""
        setup = self.planner.setup
        stages = setup.schedule.candidates(round)
        kinds = [kind for kind in setup.clients.kinds if setup.participates(kind, round)]
        variants = [(kind, variant) for kind, variant in setup.variants if kind in kinds]
        works = {(k, v, s.index): (self.planner.form(k, round, s, v)[0], s) for k, v in variants for s in stages}
        key = frozenset((at, self.planner.revisions[at]) for at in works)
        before, self._order = self._order, tuple(stage.index for stage in stages)
        updated = self.client_versions.pop_changed_clients()
        if self._spenders:
            updated, self._spenders = np.unique(np.concatenate([updated, *self._spenders])), []
        if self.client_versions.keeping and (self.client_versions.is_crowded or key != self._key):
            # asynchronous runs have many versions, but few sets of stale copies
            self.client_versions.thin(current)
            self._olds = {}
        if key != self._key:
            self._key = key
            self._versions, self._numbers = {}, {}
            self.cells, self._costs, self._numbers_of = [], self._costs[:0], self._numbers_of[:0]
            self._frozen = {at: frozen_addresses(work, stage) for at, (work, stage) in works.items()}
            takes_part = np.zeros(len(self.cell), bool)
            for kind in kinds:
                takes_part[setup.of_kind(kind)] = True
            for kind in setup.clients.kinds:
                if kind not in kinds:
                    self.cell[setup.of_kind(kind)] = NO_CELL
            affected: Integers = np.flatnonzero(takes_part)
            self._note_frozen(current)
        else:
            moved = self._note_frozen(current)
            if before != self._order:  # the offered stages take turns
                same = next(i for i, (a, b) in enumerate(zip(before, self._order, strict=True)) if a != b)
                moved = np.union1d(moved, np.flatnonzero(~self._fitting_mask(self._order[:same])))
            affected = np.union1d(updated, moved) if len(moved) else updated
            affected = affected[self.cell[affected] != NO_CELL]
        changed = [self._judge(affected[i : i + CHUNK], round, stages, current) for i in range(0, len(affected), CHUNK)]
        return np.concatenate(changed) if changed else np.zeros(0, np.int64)

    def _note_frozen(self, current: Versions) -> Integers:
        """Clients whose copies of frozen parts have been replaced at the server since the last call."""
        moved: list[Integers] = []
        for key, addresses in self._frozen.items() if self.client_versions.keeping else ():
            versions = tuple(current_version(address, current) for address in addresses)
            if self._versions.setdefault(key, versions) != versions:
                self._versions[key] = versions
                self._olds = {known: old for known, old in self._olds.items() if known[1:] != key}
                members = self.planner.setup.of_variant(*key[:2])
                # clients that fit an earlier stage don't use this one
                moved.append(members[~self._fitting_mask(self._order[: self._order.index(key[2])], members)])
        return np.unique(np.concatenate(moved)) if moved else np.zeros(0, np.int64)

    def _fitting_mask(self, stages: Sequence[int], clients: Integers | slice = slice(None)) -> Booleans:
        """Mask of these clients (default: all) that fit one of these stages, by their last verdicts."""
        fits: Booleans = self.eligible[clients] & np.isin(self.stage[clients], stages)
        return fits

    def _judge(self, clients: Integers, round: int, stages: Sequence[Stage], current: Versions) -> Integers:
        def offer(stage: Stage, left: Integers) -> tuple[Integers, dict[str, Floats]]:
            cells = self._cells(clients[left], round, stage, current)
            return cells, {name: self.of_cells(name)[cells] for name in self.names}

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

    def _cells(self, clients: Integers, round: int, stage: Stage, current: Versions) -> Integers:
        """Cell numbers of these clients at a stage; new cells are planned."""
        setup = self.planner.setup
        held = self.client_versions.of[clients] if self.client_versions.keeping else np.zeros(len(clients), np.int32)
        # one integer encodes group, device, link and state; few values are distinct in a large fleet
        code = setup.client_group[clients].astype(np.int64)
        codes = len(setup.representative)
        for factor, size in (
            (setup.fleet.device_index[clients], len(setup.fleet.devices)),
            (setup.fleet.link_index[clients], len(setup.fleet.links)),
            (held, len(self.client_versions.states)),
        ):
            code, codes = code * size + factor, codes * size
        first, inverse = _distinct(code, codes)
        numbers, new = np.empty(len(first), np.int32), list[PlanCell]()
        for index, position in enumerate(first):
            client = int(clients[position])
            cell = PlanCell(*setup.cell_indices(client), self._old(int(held[position]), client, stage, current))
            number = self._numbers.get((cell, stage.index))
            if number is None:
                number = self._numbers[cell, stage.index] = len(self.cells) + len(new)
                new.append(cell)
            numbers[index] = number
        if new:
            plans = self.planner.plans(new, round, stage)
            self.cells += plans
            costs = [list(plan.amounts.values()) for plan in plans]
            self._costs = np.concatenate([self._costs, costs])
        return numbers[inverse]

    def _old(self, state: int, client: int, stage: Stage, current: Versions) -> tuple[Address, ...]:
        """Addresses of a stage's frozen part that are stale in a client's state of ``client_versions``."""
        if not self.client_versions.keeping:
            return ()
        at = self.planner.setup.kind_of(client), self.planner.setup.variant_of(client), stage.index
        key = (state, *at)
        if key not in self._olds:
            self._olds[key] = older(self._frozen[at], self.client_versions.states[state], current)
        return self._olds[key]


def _distinct(code: Integers, codes: int) -> tuple[Integers, Integers]:
    """First position of each distinct code, and the index of each element's code; codes are below ``codes``."""
    if codes > 8 * len(code):
        _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
        return first, inverse
    # a table of all codes is faster than sorting
    first_of = np.full(codes, -1, np.int64)
    first_of[code[::-1]] = np.arange(len(code) - 1, -1, -1)
    present = first_of >= 0
    return first_of[present], (np.cumsum(present) - 1)[code]
