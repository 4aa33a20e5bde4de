"""Real training behind futures: a round's trainings, what arrives, and its aggregation."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from weakref import WeakKeyDictionary

import numpy as np
from torch import Tensor

from edgefl import seeds
from edgefl.methods import ServerState
from edgefl.methods.aggregation.mean import Fold
from edgefl.methods.aggregation.noise import ExpectedSenders, Noise
from edgefl.methods.aggregation.updates import AddedUp, Updates
from edgefl.planning.planner import Plan, Planner, Start
from edgefl.planning.setup import Setup
from edgefl.planning.versions import preinstalled_items
from edgefl.runs.tensor_file import Spilled, TensorFile
from edgefl.schedules import Stage
from edgefl.simulation.attackers import attack_of, excess_attackers
from edgefl.simulation.closed_form import Dispatch
from edgefl.simulation.kept import Deposited, KeptValues
from edgefl.simulation.learning.interface import Arrival, Learning, Sent, part_of_stage
from edgefl.simulation.learning.shards import Shard, largest_shard, may_share, share
from edgefl.simulation.server_turns import order_of
from edgefl.training import Assignment, Executor
from edgefl.training.refusal import why_refused
from edgefl.training.summed import decode_payloads
from edgefl.training.together import submit_together
from edgefl.work import Address, Form, Item, Payload, Work
from edgefl.work.packed import is_finite
from edgefl.work.sums import is_averaged
from edgefl.work.update import Update

Payloads = Mapping[str, Mapping[str, Tensor]]

LOOK_SECONDS = 0.5
"""Wall time between two looks at how many clients have trained, while one of them is waited for.  It is for progress
alone: a shorter one takes time from a training in a thread of this process."""


@dataclass(eq=False)
class Started:
    """A client under way: its dispatch's ``number``, its plan, the state that it starts from, and its training.

    ``assignment`` is None if it doesn't train; ``future`` is its training, once the executor has it.  ``expected`` is
    its update without what it will send, if it is known before that it arrives.  ``shard`` is its clients' if their
    changes are added up where they train.  ``computes`` is False for one that trains to be measured alone.
    """

    client: int
    number: int
    plan: Plan
    state: ServerState
    assignment: Assignment | None
    future: Future[Update] | None = None
    expected: Update | None = None
    shard: Shard | None = None
    computes: bool = True


class FiniteCheck:
    """Finds the tensors of a server's state that aren't finite; each version of a tensor is read once."""

    def __init__(self) -> None:
        self._checked: dict[str, int] = {}
        self._bad: dict[str, int] = {}

    def bad(self, state: ServerState) -> list[str]:
        """The addresses whose tensors have a NaN or an infinity, in the state's order."""
        versions = {address: state.versions.get(address, 0) for address in state.tensors}
        new = {a: state.tensors[a] for a, version in versions.items() if self._checked.get(a) != version}
        if not self._bad and is_finite({"": new}):
            self._checked |= {address: versions[address] for address in new}
            return []
        for address, tensor in new.items():
            self._checked[address] = version = versions[address]
            self._bad.pop(address, None)
            if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                self._bad[address] = version
        return [address for address in state.tensors if address in self._bad] if self._bad else []


class Training(Learning):
    """Real training.  ``kept`` has what clients keep, ``metered`` the cost keys of measured works.

    Updates that wait for the end of their round take at most ``most`` bytes of memory; the others lie in a file in
    ``folder``.  ``on_trained(done, of)`` is called when more of the clients under way have trained, as far as somebody
    waits.
    """

    def __init__(
        self,
        setup: Setup,
        planner: Planner,
        executor: Executor,
        state: ServerState,
        kept: KeptValues,
        folder: Path,
        most: float = inf,
    ):
        self.setup, self.planner, self.executor, self.state, self.kept = setup, planner, executor, state, kept
        self.metered: set[str] = set()
        self.under_way: dict[int, Started] = {}
        self._finite = FiniteCheck()
        self.on_trained: Callable[[int, int], None] = lambda done, of: None
        self._waiting: deque[Started] = deque()
        self._submitted: dict[Future[Update], object] = {}
        """Trainings that haven't landed, and for each what the executor runs in one piece: itself, or a shard."""
        self._window = executor.window
        self._shares, self._may_share = False, may_share(setup)
        self._of, self._landed_now, self._told = 0, 0, 0
        self._updates = Updates()
        """Those that were accepted and aren't aggregated."""
        self._folder, self._most, self._bytes = folder, most, 0
        self._spill: TensorFile | None = None
        self._starts: dict[tuple[int, Start], tuple[ServerState, Mapping[str, Tensor], Mapping[Address, Tensor]]] = {}
        """By the identity of a state, which is held here, and by start: values by item and by address."""
        self._parts: WeakKeyDictionary[Form, dict[int, Form | None]] = WeakKeyDictionary()
        """By stage: the form with less to send (``part_of_stage``), None if it is no less."""
        self._visits: deque[Started] = deque()
        """Clients that train the server's one half in this order; ``_half`` is that half as the last one left it."""
        self._half: dict[Address, Tensor] = {}
        self._overrun = False
        """Whether it was told that attackers were too many for the rule."""

    def send(self, sent: Sequence[Sent], dispatch: Dispatch, *, in_order: bool = False) -> None:
        """Submit the works of those that may return an update, and of those that are the first with their cost key.

        In a large cohort that lands ``in_order`` the executor gets them one by one, so that few reports wait.
        """
        self._submitted = {future: of for future, of in self._submitted.items() if not future.done()}
        self._of, self._landed_now, self._told = len(self._submitted), 0, 0
        few = self.executor.window
        self._window = few if few == 0 or (few is not None and in_order and len(sent) > 2 * few) else None
        chosen = []
        for client, plan, trains in sent:
            metered = self._measures(plan.key)
            self.metered.add(plan.key)
            chosen.append((client, plan, metered, trains))
        wires: dict[Start, dict[str, Tensor]] = {}
        if self._window is None:
            # longest first, which balances the load of the workers; a training's seed is by client and dispatch, so
            # that results don't depend on the order
            chosen.sort(key=lambda entry: -entry[1].amounts["flops"])
        for client, plan, metered, trains in chosen:
            self._begin(client, plan, self.state, dispatch, metered, trains or metered, wires)
            self.under_way[client].computes = trains
        if chosen[0][1].form.in_turn:
            waiting = {started.client: started for started in self._waiting}
            clients = np.array([client for client, *_ in sent])
            order = clients[order_of(self.setup.seed, dispatch.number, clients)].tolist()
            self._visits = deque(waiting[client] for client in order if client in waiting)
            self._waiting.clear()
        self._shares = self._may_share and in_order and largest_shard(len(sent)) > 1
        if not self._shares:  # else when it is known who arrives
            self._feed()

    def resume(
        self, client: int, plan: Plan, state: ServerState, dispatch: Dispatch, metered: bool, trains: bool
    ) -> None:
        """Restart the training of a client under way."""
        self._begin(client, plan, state, dispatch, metered, trains, {})
        self._feed()

    def _begin(
        self,
        client: int,
        plan: Plan,
        state: ServerState,
        dispatch: Dispatch,
        metered: bool,
        trains: bool,
        wires: dict[Start, dict[str, Tensor]],
    ) -> None:
        assignment = None
        if trains:
            if plan.start not in wires:
                wires[plan.start] = state.wire(plan.form, preinstalled_items(plan.form, plan.down, state.versions))
            scalars = self.planner.scalars(plan.kind, dispatch.round, plan.stage, plan.variant)
            keep = plan.form.keep
            inputs, kept = wires[plan.start], self.kept.client_values(client, keep) if keep else None
            seed = seeds.key(self.setup.seed, "training", client, dispatch.number)
            attack = attack_of(self.setup, client, seed)
            peak = plan.compute.peak_memory_bytes
            assignment = Assignment(plan.form, scalars, inputs, client, seed, metered, attack, kept, peak=peak)
        self.under_way[client] = started = Started(client, dispatch.number, plan, state, assignment)
        if assignment is not None:
            self._of += 1
            self._waiting.append(started)

    def _feed(self) -> None:
        """Give the executor what waits: all, or so much that ``_window`` trainings haven't landed."""
        while self._waiting and (self._window is None or len(set(self._submitted.values())) < self._window):
            self._submit(self._waiting.popleft())

    def _submit(self, started: Started) -> Future[Update]:
        assert started.assignment is not None
        if started.shard is not None:
            return self._submit_together(started, started.shard)
        future = self.executor.submit(started.assignment)
        started.future = Deposited(future, self.kept) if started.plan.form.keep else future
        self._submitted[started.future] = started.future
        self._tell()
        return started.future

    def _submit_together(self, started: Started, shard: Shard) -> Future[Update]:
        """Give the executor all clients of a shard, some of whom may not be waited for."""
        members, shard.members = shard.members, ()
        assignments = [each.assignment for each in members if each.assignment is not None]
        for each, future in zip(members, submit_together(self.executor, assignments, shard.rule), strict=True):
            each.future = future
            if each is started or each in self._waiting:
                self._submitted[future] = shard
            if each in self._waiting:
                self._waiting.remove(each)
        self._tell()
        assert started.future is not None
        return started.future

    def receive(self, arrival: Arrival, stage: Stage, *, arrived: bool) -> Update | None:
        """Wait for the training of a client that has landed, and take its update if it has ``arrived``."""
        started = self.under_way.pop(arrival.client)
        assignment, future = started.assignment, started.future
        if assignment is None:
            return None
        if future is None and started in self._visits:
            if arrived or assignment.metered:
                self._visit(started)
                future = started.future
        elif future is None:  # one that has not begun: those before it haven't landed, or aren't needed
            self._waiting.remove(started)
        if not arrived and not assignment.metered:
            if future is not None:
                # no effect on a training that has begun: nobody waits for it, so no number depends on its result
                future.cancel()
                self._leave_window(future)
            return None
        future = future or self._submit(started)
        update = self._wait_for(future)
        started.future = None  # the update may be large
        self._leave_window(future)
        if not arrived:
            return replace(update, payloads={}, loss=None, metrics={})
        if isinstance(update.kept, Spilled):
            self.kept.settle(arrival.client, update.kept)
        if started.shard is None:
            update = replace(update, refused=self._why_refused(assignment, update))
        if started.shard is not None or update.refused is None:
            self._accept(started, started.expected or self._expected_update(started, arrival, stage), update)
        started.assignment = None
        return replace(update, payloads={}, means=None)

    def _wait_for(self, future: Future[Update]) -> Update:
        """The update of a training, once it is over; meanwhile it is told how many have trained."""
        while not wait((future,), timeout=LOOK_SECONDS).done:
            self._tell()
        return future.result()

    def _why_refused(self, assignment: Assignment, update: Update) -> str | None:
        keep = self.setup.method.setting.aggregation.non_finite == "keep"
        return why_refused(assignment.form, update, assignment.seed, keep_non_finite=keep)

    def _visit(self, last: Started) -> None:
        """Train clients with the server's one half, one after the other, until this one has."""
        while last in self._visits:
            started = self._visits.popleft()
            assignment = started.assignment
            assert assignment is not None
            half = {i.name: self._half[i.source] for i in _in_turn(assignment.form.down) if i.source in self._half}
            started.assignment = replace(assignment, inputs={**assignment.inputs, **half})
            update = self._wait_for(self._submit(started))
            if started.computes and self._why_refused(assignment, update) is None:
                trained = {name: tensor for named in update.payloads.values() for name, tensor in named.items()}
                self._half |= {item.source: trained[item.name].clone() for item in _in_turn(assignment.form.up)}

    def _leave_window(self, future: Future[Update]) -> None:
        """Note that a training has landed, and give the executor the next one."""
        self._tell()
        if self._submitted.pop(future, None) is not None:
            self._landed_now += 1
        self._feed()

    def _tell(self) -> None:
        """Call ``on_trained`` if more clients have trained than it was told."""
        done = self._landed_now + sum(future.done() for future in self._submitted)
        if done > self._told:
            self._told = done
            self.on_trained(done, self._of)

    def _accept(self, started: Started, expected: Update, update: Update) -> None:
        """Take an update, decoded, with what the server knows of it."""
        payloads, mean, shard = update.payloads, self._updates.mean, started.shard
        if shard is not None:
            payloads = expected.payloads
            if update.means is not None:  # the first of a shard has the sums of all
                shard.means = update.means
            shard.left -= 1
            shard.used |= update.refused is None
            if shard.used and not shard.left:
                assert mean is not None and shard.means is not None
                mean.merge(expected, shard.means)
        else:
            form = started.plan.form
            payloads = decode_payloads(form, payloads, lambda: form.bases(self._start(started)[0]))
            payloads = {payload.name: payloads[payload.name] for payload in expected.work.up}
        if update.refused is None and any(payload.items for payload in expected.work.up):
            payloads = payloads if mean is not None else self._within_memory(started.plan.form, payloads)
            self._updates.add(
                replace(expected, payloads=payloads, loss=update.loss, metrics=update.metrics, updates=update.updates)
            )

    def _within_memory(self, form: Form, payloads: Payloads) -> Payloads:
        """These payloads, on disk if they don't fit into memory beside the others that wait."""
        size = sum(item.spec.bytes for payload in form.up for item in payload.items)
        if self._bytes + size <= self._most:
            self._bytes += size
            return payloads
        self._spill = spill = self._spill or TensorFile(self._folder)
        return {name: spill.add(named) for name, named in payloads.items()}

    def expect(self, arrivals: Sequence[Arrival], stage: Stage) -> None:
        """Add updates up as they land, if the method and the rule of aggregation let that be."""
        method, shares, self._shares = self.setup.method, self._shares, False
        if method.adds_up:
            coming = [self.under_way[arrival.client] for arrival in arrivals]
            for started, arrival in zip(coming, arrivals, strict=True):
                started.expected = self._expected_update(started, arrival, stage)
            expected = [each.expected for each in coming if each.expected is not None]
            mean = self._mean(list(map(method.rebuild, expected)), stage)
            self._updates = Updates(mean=mean, rebuild=method.rebuild)
            if shares:
                share(self.setup, self.state, coming, stage, mean)
        if shares:
            self._feed()

    def _mean(self, expected: Sequence[Update], stage: Stage) -> Fold:
        """The mean that grows as these updates arrive, with the round's noise if there is some."""
        method, noise = self.setup.method, None
        if self.expected is not None:
            round, deviation, plans = self.expected()
            senders = [ExpectedSenders(plan.kind, part_of_stage(plan.form, stage), n) for plan, n in plans]
            noise = Noise(self.setup.seed, round, deviation, senders)
        parameters = {a: t for a, t in self.state.tensors.items() if is_averaged(a)}
        return Fold(parameters, expected, method.update_weight, method.setting.aggregation, noise)

    def _expected_update(self, started: Started, arrival: Arrival, stage: Stage) -> Update:
        """What is known of an update before it lands: all that isn't the node's."""
        plan, assignment, parts = started.plan, started.assignment, self._parts.setdefault(started.plan.form, {})
        assert assignment is not None
        if stage.index not in parts:
            part = part_of_stage(plan.form, stage)
            parts[stage.index] = None if part is plan.form else part
        work, source = (
            (parts[stage.index] or plan.form).bind(assignment.scalars),
            self.setup.clients.client(arrival.client),
        )
        samples = {
            pattern: source.size(replace(each, patterns=(pattern,)))
            for each in plan.form.passes
            if each.data == "private"
            for pattern in each.patterns
        }
        return Update(
            arrival.client, plan.kind, samples, work, {payload.name: AddedUp(payload, {}) for payload in work.up},
            self._start(started)[1], arrival.round, arrival.staleness, arrival.weight_factor,
            self.setup.round.has_equal_weights, variant=self.setup.method.method_of(plan.variant)[1],
            dispatch=arrival.number,
        )  # fmt: skip

    def _start(self, started: Started) -> tuple[Mapping[str, Tensor], Mapping[Address, Tensor]]:
        """Starting values of a client at its dispatch, by item and by address."""
        plan, state = started.plan, started.state
        key = id(state), plan.start  # the state is held beside the values
        if key not in self._starts:
            inputs = state.inputs(plan.form, preinstalled_items(plan.form, plan.down, state.versions))
            self._starts[key] = state, inputs, state.base(plan.form, inputs)
        return self._starts[key][1:]

    def non_finite(self) -> list[str]:
        """The addresses of the state whose tensors have a NaN or an infinity."""
        return self._finite.bad(self.state)

    def _measures(self, key: str) -> bool:
        """Whether a work with this cost key is to be measured."""
        measure = self.setup.measure
        return measure == "all" or (measure == "first" and key not in self.metered)

    def aggregate(self, arrivals: Sequence[Arrival], stage: Stage, *, at_once: bool = False) -> None:
        """Aggregate these updates; warn once if attackers among them are too many for the rule."""
        updates = self._updates.take({(arrival.client, arrival.number) for arrival in arrivals})
        state, method = self.state, self.setup.method
        if self._visits:  # of clients that computed, and whose updates were lost
            self._visit(self._visits[-1])
        half, self._half = self._half, {}
        self._free()
        if self.expected is not None and updates.mean is None:  # nobody was drawn: the round's change is its noise
            updates = Updates(mean=self._mean([], stage))
        if at_once:
            updates = Updates(replace(each, base=state.base(each.work, state.items(each.work))) for each in updates)
        if (
            self.setup.fleet.attackers is not None
            and not self._overrun
            and (many := excess_attackers(self.setup, updates))
        ):
            self._overrun = True
            warnings.warn(
                f"{many}: they may move the model as they like; more updates a round (round.cohort, round.buffer, "
                "round.quorum) withstand more.  Later rounds with too many aren't told",
                RuntimeWarning,
                stacklevel=2,
            )
        if updates or self.expected is not None:
            self.state = method.aggregate(state, updates)
        if half:
            dtypes = {address: state.tensors[address].dtype for address in half}
            self.state = self.state.with_tensors({a: tensor.to(dtypes[a]) for a, tensor in half.items()})

    def forget(self, arrivals: Sequence[Arrival]) -> None:
        """Drop updates that arrived and aren't used."""
        self._updates.take({(arrival.client, arrival.number) for arrival in arrivals})
        self._free()

    def _free(self) -> None:
        """Drop what was held for updates that have been taken."""
        self._starts, self._half = {}, {}
        self._visits.clear()
        if not self._updates:
            self._bytes, self._spill = 0, None

    def submit(self, work: Work, when: str, round: int, index: int) -> Future[Update] | None:
        """Submit a work of the server."""
        key, computed = self.planner.server(work)
        metered = self._measures(key)
        self.metered.add(key)
        seed = seeds.key(self.setup.seed, f"server {when}", round, index)
        return self.executor.submit(
            Assignment(
                work.form, work.scalars, self.state.inputs(work), None, seed, metered, peak=computed.peak_memory_bytes
            )
        )

    def absorb(self, work: Work, report: Update | None) -> None:
        """Apply the result of a work of the server to the state."""
        assert report is not None
        self.state = self.setup.method.absorb(self.state, work, report)

    def leave(self) -> None:
        """Cancel works that no worker has begun, because another run may need the workers."""
        self._waiting.clear()
        self._visits.clear()
        for started in self.under_way.values():
            if started.future is not None:
                started.future.cancel()


def _in_turn(payloads: Sequence[Payload]) -> list[Item]:
    return [item for payload in payloads if payload.in_turn for item in payload.items]
