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
from edgefl.simulation.tensor_file import Spilled, TensorFile
from edgefl.training import TrainingTask
from edgefl.training.task import Sum
from edgefl.work import Address, Form, Scalars, Work
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
    task: TrainingTask | None
    future: Future[Update] | None = None
    together: Sequence[Started] = ()
    shard: Shard | None = None

    @cached_property
    def work(self) -> Work:
        """The work with its scalars, for the method that aggregates."""
        return self.plan.form.bound(self.scalars)


class Arrived:
    """The updates that arrived and aren't aggregated.

    ``folder`` gets the file of those that don't fit into ``most`` bytes of memory.
    """

    def __init__(self, setup: Setup, folder: Path, most: float = inf):
        self._setup, self._folder, self._most = setup, folder, most
        self._landed: dict[Key, tuple[Started, Update]] = {}
        self._bytes = 0
        self._spill: TensorFile | None = None
        self.fold: Fold | None = None
        self._stage: Stage | None = None
        self._expected: dict[Key, Update] = {}
        self._starts: dict[tuple[int, Start], tuple[dict[str, Tensor], dict[Address, Tensor]]] = {}
        self._parts: WeakKeyDictionary[Form, dict[int, Form | None]] = WeakKeyDictionary()
        """By stage: the form with less to send (``part_of_stage``), None if it is no less."""

    def expect(
        self, state: ServerState, arrivals: Sequence[Arrival], under_way: Mapping[int, Started], stage: Stage
    ) -> None:
        """Add updates up as they land, if the method and the rule of aggregation let that be."""
        self.fold, self._expected, self._stage = None, {}, stage
        method = self._setup.method
        if not method.adds_up:
            return
        for arrival in arrivals:
            started = under_way[arrival.client]
            self._expected[arrival.client, started.number] = self._expected_of(arrival, started, stage)
        parameters = {a: t for a, t in state.tensors.items() if averaged(a)}
        sent = list(map(method.rebuild, self._expected.values()))
        self.fold = Fold(parameters, sent, method.update_weight, method.setting.aggregation)

    def add(self, client: int, started: Started, update: Update) -> None:
        """Take an update that is accepted.  Raises RunError if it has to lie on disk and can't be written."""
        key = client, started.number
        if self.fold is None:
            self._landed[key] = started, self._within_memory(started, update)
            return
        update = _filled(self._expected.pop(key), update, self._decoded(started, update))
        self.fold.add(self._setup.method.rebuild(update))
        self._landed[key] = started, replace(update, payloads=AddedUp.of(update.work.up, update.payloads))

    def shard(self, clients: Sequence[tuple[int, Started]]) -> Shard:
        """A shard of clients whose updates are expected."""
        assert self.fold is not None
        totals, weights = self.fold.shared([self._expected[client, started.number] for client, started in clients])
        keep = self._setup.method.setting.aggregation.non_finite == "keep"
        return Shard(Sum(totals, tuple(weights), keep), len(clients))

    def add_to_shard(self, client: int, started: Started, update: Update) -> None:
        """Take the update of a client of a shard, whose means are added when its last client has landed."""
        shard, fold, key = started.shard, self.fold, (client, started.number)
        assert shard is not None and fold is not None
        expected = self._expected.pop(key)
        if update.means is not None:
            shard.means = update.means
        if update.refused is None:
            shard.used = True
            self._landed[key] = started, _filled(expected, update, expected.payloads)
        shard.left -= 1
        if not shard.left:
            assert shard.means is not None
            if shard.used:
                fold.merge(expected, shard.means)
            shard.means = None

    def take(self, state: ServerState, arrivals: Sequence[Arrival], stage: Stage, *, at_once: bool) -> Arrivals:
        """The updates to aggregate, decoded, each with its starting values; they are held no longer.

        ``at_once``: each is mixed into the current model, ``(1 - a) w + a w_client``.
        """
        updates: list[Update] = []
        for arrival in arrivals:
            started, update = self._landed.pop((arrival.client, arrival.number))
            if self.fold is not None:
                updates.append(replace(update, base_round=arrival.round))
                continue
            self._bytes -= _bytes_in_memory(update)
            base = state.base(started.work, state.items(started.work)) if at_once else None
            expected = self._expected_of(arrival, started, stage, base)
            updates.append(_filled(expected, update, self._decoded(started, update)))
        updates = [update for update in updates if any(p.items for p in update.work.up)]
        fold = self.fold
        self._end()
        return Arrivals.of(updates, fold)

    def forget(self, arrivals: Sequence[Arrival]) -> None:
        """Drop updates that aren't used."""
        for arrival in arrivals:
            if (landed := self._landed.pop((arrival.client, arrival.number), None)) is not None:
                self._bytes -= _bytes_in_memory(landed[1])
        self._end()

    def _end(self) -> None:
        self._starts, self.fold, self._expected = {}, None, {}
        if not any(isinstance(p, Spilled) for _, update in self._landed.values() for p in update.payloads.values()):
            self._spill = None

    # one update -----------------------------------------------------------------------------------------------------

    def _within_memory(self, started: Started, update: Update) -> Update:
        """The update, with its payloads on disk if they don't fit into memory."""
        size = _bytes_in_memory(update)
        if self._bytes + size <= self._most:
            self._bytes += size
            return update
        self._spill = spill = self._spill or TensorFile(self._folder)
        # decoded, because all of them are read together in the end
        return replace(update, payloads={n: spill.add(named) for n, named in self._decoded(started, update).items()})

    def _decoded(self, started: Started, update: Update) -> Payloads:
        if all(isinstance(sent, Packed | Spilled) for sent in update.payloads.values()):
            return update.payloads  # without a codec, or decoded
        bases = started.plan.form.bases(self._start(started)[0])
        return {p.name: p.decoded(update.payloads[p.name], bases) for p in started.plan.form.up}

    def _expected_of(
        self, arrival: Arrival, started: Started, stage: Stage, base: dict[Address, Tensor] | None = None
    ) -> Update:
        """What is known of an update before it lands: all that isn't the node's."""
        work = self._part(started.plan.form, stage).bound(started.scalars)
        return Update(
            arrival.client, started.plan.kind, self._private(arrival.client, started.plan.form), work,
            {payload.name: AddedUp(payload, {}) for payload in work.up},
            self._start(started)[1] if base is None else base,
            arrival.round, arrival.staleness, arrival.weight_factor, self._setup.round.equal,
            variant=started.plan.variant,
        )  # fmt: skip

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


def _filled(expected: Update, update: Update, payloads: Payloads) -> Update:
    """The update that was expected of a client, with what it sent."""
    return replace(expected, payloads=payloads, loss=update.loss, metrics=update.metrics, updates=update.updates)


def _bytes_in_memory(update: Update) -> int:
    """Bytes of what was sent, without what lies on disk."""
    in_memory = {name for name, sent in update.payloads.items() if not isinstance(sent, Spilled)}
    return sum(item.spec.bytes for p in update.work.up if p.name in in_memory for item in p.items)
