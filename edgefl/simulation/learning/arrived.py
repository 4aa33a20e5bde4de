"""A round's updates at the server: added up as they land, or held until the round ends.

Held updates lie in memory up to a number of bytes, and those beyond on disk.  Results don't depend on where they lie.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from pathlib import Path
from typing import NamedTuple
from weakref import WeakKeyDictionary

from torch import Tensor

from edgefl.methods import ServerState, Update
from edgefl.methods.aggregation.arrivals import AddedUp, Arrivals
from edgefl.methods.aggregation.fold import Fold
from edgefl.planning.planner import Plan, Start
from edgefl.planning.setup import Setup
from edgefl.planning.versions import preinstalled
from edgefl.schedules import Stage
from edgefl.simulation.learning.interface import Arrival, part_of_stage
from edgefl.simulation.learning.spilled import Place, Spill
from edgefl.training import Report, Task
from edgefl.training.task import Sum
from edgefl.work import Address, Form, Result, Scalars, Work
from edgefl.work.packed import Packed
from edgefl.work.sums import Means, averaged

Payloads = Mapping[str, Mapping[str, Tensor]]
Key = tuple[int, int]
"""A client and the number of its dispatch."""


@dataclass(eq=False)
class Shard:
    """Clients whose changes are added up where they train, by ``rule``.

    ``left`` of them haven't landed; ``used`` is whether an update of one that has was accepted.  ``means`` are their
    sums, once the first has landed.
    """

    rule: Sum
    left: int
    used: bool = False
    means: Means | None = None


@dataclass(eq=False)
class Started:
    """A client under way: its plan with the scalars of its round, starting state and training; ``number`` is its
    dispatch's.

    ``task`` is None if it doesn't train; ``future`` is its training, once the executor has it.  ``together`` are the
    clients that the executor gets at once with it, itself among them, until it has them.  ``shard`` is theirs if their
    changes are added up where they train.
    """

    number: int
    plan: Plan
    scalars: Scalars
    state: ServerState
    metered: bool
    task: Task | None
    future: Future[Report] | None = None
    together: Sequence[Started] = ()
    shard: Shard | None = None

    @cached_property
    def work(self) -> Work:
        """The work with its scalars, for the method that aggregates."""
        return self.plan.form.bound(self.scalars)


class _Held(NamedTuple):
    """An update that waits for the end of its round; on disk its tensors lie at ``place``, else in ``result``."""

    started: Started
    result: Result
    bytes: int
    place: Place | None


class Arrived:
    """The updates that arrived and aren't aggregated.

    ``folder`` gets the file of those that don't fit into ``most`` bytes of memory.
    """

    def __init__(self, setup: Setup, folder: Path, most: float = inf):
        self._setup, self._folder, self._most = setup, folder, most
        self._held: dict[Key, _Held] = {}
        self._bytes = 0
        self._spill: Spill | None = None
        self.fold: Fold | None = None
        self._added: dict[Key, Update] = {}
        self._stage: Stage | None = None
        self._expected: dict[Key, Update] = {}
        self._starts: dict[tuple[int, Start], tuple[dict[str, Tensor], dict[Address, Tensor]]] = {}
        self._parts: WeakKeyDictionary[Form, dict[int, Form | None]] = WeakKeyDictionary()
        """By stage: the form with less to send (``part_of_stage``), None if it is no less."""

    def expect(
        self, state: ServerState, arrivals: Sequence[Arrival], under_way: Mapping[int, Started], stage: Stage
    ) -> None:
        """Add updates up as they land, if the method and the rule of aggregation let that be."""
        self.fold, self._added, self._expected, self._stage = None, {}, {}, stage
        method = self._setup.method
        if not method.adds_up:
            return
        for arrival in arrivals:
            started = under_way[arrival.client]
            expected = self._update(arrival, started, stage, _without_values(started.work))
            self._expected[arrival.client, started.number] = expected
        parameters = {a: t for a, t in state.tensors.items() if averaged(a)}
        sent = list(map(method.rebuild, self._expected.values()))
        self.fold = Fold(parameters, sent, method.update_weight, method.setting.aggregation)

    def add(self, client: int, started: Started, result: Result) -> None:
        """Take an update that is accepted.  Raises RunError if it has to lie on disk and can't be written."""
        if self.fold is None:
            self._hold((client, started.number), started, result)
            return
        key = client, started.number
        update = _with_result(self._expected.pop(key), result, self._decoded(started, result))
        self.fold.add(self._setup.method.rebuild(update))
        self._added[key] = replace(update, payloads=AddedUp.of(update.work.up, update.payloads))

    def shard(self, clients: Sequence[tuple[int, Started]]) -> Shard:
        """A shard of clients whose updates are expected."""
        assert self.fold is not None
        totals, weights = self.fold.shared([self._expected[client, started.number] for client, started in clients])
        keep = self._setup.method.setting.aggregation.non_finite == "keep"
        return Shard(Sum(totals, tuple(weights), keep), len(clients))

    def add_to_shard(self, client: int, started: Started, report: Report) -> None:
        """Take the report of a client of a shard, whose sums are added when its last client has landed."""
        shard, fold = started.shard, self.fold
        assert shard is not None and fold is not None
        expected = self._expected.pop((client, started.number))
        if report.sums is not None:
            shard.means = report.sums
        if report.refused is None:
            shard.used = True
            self._added[client, started.number] = _with_result(expected, report.result, expected.payloads)
        shard.left -= 1
        if not shard.left:
            assert shard.means is not None
            if shard.used:
                fold.merge(expected, shard.means)
            shard.means = None

    def add_again(self, client: int, started: Started, result: Result, tables: Payloads) -> None:
        """Take an update whose parameters the restored sums already have; ``tables`` are its other tensors."""
        expected = self._expected.pop((client, started.number))
        payloads = {payload.name: AddedUp(payload, tables.get(payload.name, {})) for payload in expected.work.up}
        self._added[client, started.number] = _with_result(expected, result, payloads)

    def tables(self, client: int, number: int) -> Payloads:
        """The tensors that are left of an update which was added up."""
        payloads = self._added[client, number].payloads
        return {name: sent.tables for name, sent in payloads.items() if isinstance(sent, AddedUp)}

    def take(self, state: ServerState, arrivals: Sequence[Arrival], stage: Stage, *, at_once: bool) -> Arrivals:
        """The updates to aggregate, decoded, each with its starting values; they are held no longer.

        ``at_once``: each is mixed into the current model, ``(1 - a) w + a w_client``.
        """
        updates: list[Update] = []
        for arrival in arrivals:
            key = arrival.client, arrival.number
            if self.fold is not None:
                updates.append(replace(self._added.pop(key), base_round=arrival.round))
                continue
            held = self._held.pop(key)
            self._bytes -= held.bytes
            payloads = self._decoded(held.started, held.result) if held.place is None else self._read(held)
            base = state.base(held.started.work, state.items(held.started.work)) if at_once else None
            updates.append(self._update(arrival, held.started, stage, payloads, held.result, base))
        updates = [update for update in updates if any(p.items for p in update.work.up)]
        fold = self.fold
        self._end()
        return Arrivals.of(updates, fold)

    def forget(self, arrivals: Sequence[Arrival]) -> None:
        """Drop updates that aren't used."""
        for arrival in arrivals:
            if (held := self._held.pop((arrival.client, arrival.number), None)) is not None:
                self._bytes -= held.bytes
        self._end()

    def _end(self) -> None:
        self._starts, self.fold, self._added, self._expected = {}, None, {}, {}
        if not any(held.place for held in self._held.values()):
            self._spill = None

    # one update -----------------------------------------------------------------------------------------------------

    def _hold(self, key: Key, started: Started, result: Result) -> None:
        size, place = sum(item.spec.bytes for p in started.work.up for item in p.items), None
        if self._bytes + size > self._most:
            self._spill = self._spill or Spill(self._folder)
            # decoded, because all of them are read together in the end
            decoded = self._decoded(started, result)
            place = self._spill.add({f"{p}/{n}": t for p, named in decoded.items() for n, t in named.items()})
            result, size = replace(result, payloads={}), 0
        self._held[key] = _Held(started, result, size, place)
        self._bytes += size

    def _read(self, held: _Held) -> Payloads:
        assert self._spill is not None and held.place is not None
        payloads: dict[str, dict[str, Tensor]] = {p.name: {} for p in held.started.work.up}
        for name, tensor in self._spill.read(held.place).items():
            payload, item = name.split("/", 1)
            payloads[payload][item] = tensor
        return payloads

    def _decoded(self, started: Started, result: Result) -> Payloads:
        if all(isinstance(sent, Packed) for sent in result.payloads.values()):
            return result.payloads  # without a codec
        bases = started.plan.form.bases(self._start(started)[0])
        return {p.name: p.decoded(result.payloads[p.name], bases) for p in started.plan.form.up}

    def _update(
        self,
        arrival: Arrival,
        started: Started,
        stage: Stage,
        payloads: Payloads,
        result: Result | None = None,
        base: dict[Address, Tensor] | None = None,
    ) -> Update:
        """The update of a client; without its result one that is expected."""
        work = self._part(started.plan.form, stage).bound(started.scalars)
        expected = Update(
            arrival.client, started.plan.kind, self._private(arrival.client, started.plan.form), work, payloads,
            self._start(started)[1] if base is None else base,
            arrival.round, arrival.staleness, arrival.weight_factor, self._setup.round.equal,
            variant=started.plan.variant,
        )  # fmt: skip
        return expected if result is None else _with_result(expected, result, payloads)

    def _part(self, form: Form, stage: Stage) -> Form:
        """The form with uploads of what trains at this stage only."""
        parts = self._parts.setdefault(form, {})
        if stage.index not in parts:
            part = part_of_stage(form, stage)
            parts[stage.index] = None if part is form else part
        return parts[stage.index] or form

    def _start(self, started: Started) -> tuple[dict[str, Tensor], dict[Address, Tensor]]:
        """Starting values of a client at its dispatch, by item and by address."""
        key = id(started.state), started.plan.start
        if key not in self._starts:
            plan, state = started.plan, started.state
            inputs = state.inputs(plan.form, preinstalled(plan.form, plan.down, state.versions))
            self._starts[key] = inputs, state.base(plan.form, inputs)
        return self._starts[key]

    def _private(self, client: int, form: Form) -> dict[str, int]:
        source = self._setup.clients.client(client)
        return {
            pattern: source.size(replace(p, patterns=(pattern,)))
            for p in form.passes
            if p.data == "private"
            for pattern in p.patterns
        }


def _without_values(work: Work) -> Payloads:
    return {payload.name: AddedUp(payload, {}) for payload in work.up}


def _with_result(expected: Update, result: Result, payloads: Payloads) -> Update:
    """The update that was expected of a client, with what it sent."""
    return replace(expected, payloads=payloads, loss=result.loss, metrics=result.metrics, updates=result.updates)
