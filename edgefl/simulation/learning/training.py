"""Real training behind futures: a round's trainings, what arrives, and its aggregation."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgefl import seeds
from edgefl.methods import ServerState, Update
from edgefl.methods.aggregation.combine import Fold, Folded
from edgefl.methods.state import averaged
from edgefl.planning.planner import Plan, Planner, Start
from edgefl.planning.setup import Setup
from edgefl.planning.versions import preinstalled
from edgefl.schedules import Stage
from edgefl.simulation.attackers import attack_of
from edgefl.simulation.inflight.closed_form import Dispatch, Flights
from edgefl.simulation.kept import Deposited, KeptValues
from edgefl.simulation.learning.interface import MOST_WORKS, Arrival, part_of_stage
from edgefl.simulation.refusal import FiniteCheck, why_refused
from edgefl.training import Executor, Report, Task
from edgefl.training.stacked import grouped, submit_together
from edgefl.work import Address, Work, distinct

Floats = NDArray[np.float64]
Integers = NDArray[Any]


@dataclass(eq=False)
class _Started:
    """A client under way: its work, starting state and training; ``number`` is its dispatch's.

    ``task`` is None if it doesn't train; ``future`` is its training, once the executor has it.  ``together`` are the
    clients that train at once with it, itself among them, until the executor has them.
    """

    number: int
    plan: Plan
    work: Work
    state: ServerState
    metered: bool
    task: Task | None
    future: Future[Report] | None = None
    together: Sequence[_Started] = ()


LOOK_SECONDS = 0.5
"""Wall time between two looks at how many clients have trained, while one of them is waited for."""


class Training:
    """Real training.  ``kept`` has what clients keep, ``metered`` the cost keys of measured works.

    ``on_trained(done, of)`` is called when more of the clients under way have trained, as far as somebody waits.
    """

    def __init__(self, setup: Setup, planner: Planner, executor: Executor, state: ServerState, kept: KeptValues):
        self.setup, self.planner, self.executor, self.state, self.kept = setup, planner, executor, state, kept
        self.metered: set[str] = set()
        self.under_way: dict[int, _Started] = {}
        self._landed: dict[tuple[int, int], tuple[_Started, Report]] = {}
        self._finite = FiniteCheck()
        self.on_trained: Callable[[int, int], None] = lambda done, of: None
        self._waiting: deque[_Started] = deque()
        self._submitted: list[Future[Report]] = []
        self._window = executor.window
        stack = setup.method.setting.training.stack
        self._stack = 1 if stack == "off" else stack
        self._of, self._landed_now, self._told = 0, 0, 0
        self._fold: Fold | None = None
        self._added: dict[tuple[int, int], Update] = {}
        self._stage: Stage | None = None
        self._light: dict[int, tuple[Work, dict[str, dict[str, Tensor]]]] = {}
        self._works: dict[int, tuple[Work, Work, Work]] = {}
        self._starts: dict[tuple[int, Start], tuple[dict[str, Tensor], dict[Address, Tensor]]] = {}

    def send(self, flights: Flights, go: NDArray[np.bool_], *, in_order: bool = False) -> None:
        """Submit the works of the flights in ``go``, and of those that are the first with their cost key.

        In a large cohort that lands ``in_order`` the executor gets them one by one, so that few reports wait.
        """
        self._submitted = [future for future in self._submitted if not future.done()]
        self._of, self._landed_now, self._told = len(self._submitted), 0, 0
        few = self.executor.window
        few = None if few is None else few * self._stack
        self._window = few if few == 0 or (few is not None and in_order and len(flights.plans) > 2 * few) else None
        chosen = []
        for client, plan, trains in zip(flights.client.tolist(), flights.plans, go.tolist(), strict=True):
            metered = self.setup.measure == "all" or plan.key not in self.metered
            self.metered.add(plan.key)
            chosen.append((client, plan, metered, trains))
        wires: dict[Start, dict[str, Tensor]] = {}
        if self._window is None:
            # longest first, which balances the load of the workers; results don't depend on the order
            chosen.sort(key=lambda entry: -entry[1].cost.budgets()["flops"])
        for client, plan, metered, trains in chosen:
            self._begin(client, plan, self.state, flights.dispatch, metered, trains or metered, wires)
        if self._stack > 1 and in_order:  # these have all landed when a checkpoint is written
            self._group([self.under_way[client] for client in flights.client.tolist()])
        self._feed()

    def _group(self, started: Sequence[_Started]) -> None:
        """Decide which of these clients train at once: by the dispatch alone, whatever the executor."""
        training = [(each, each.task) for each in started if each.task is not None]
        counts: dict[int, tuple[int, ...]] = {}
        for each, task in training:
            if each.plan.group not in counts and task.client is not None:
                source = self.setup.clients.client(task.client)
                passes = distinct(each.work)
                counts[each.plan.group] = tuple(n for p in passes for n in source.counts(p).values())
        classes = [(each.plan.kind, counts[each.plan.group]) for each, _ in training]
        for members in grouped([task for _, task in training], classes, self._stack):
            together = [training[member][0] for member in members]
            for each in together:
                each.together = together

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
        current, _ = self.planner.work(plan.kind, dispatch.round, plan.stage)
        work = self._with_scalars(plan.work, current)
        task = None
        if trains:
            if plan.start not in wires:
                wires[plan.start] = state.wire(work, preinstalled(work, plan.down, state.versions))
            inputs, kept = wires[plan.start], self.kept.of(client, work.keep) if work.keep else None
            seed, attack = self._seed(client, dispatch.number), attack_of(self.setup, client)
            task = Task(work, inputs, client, seed, metered, attack, kept)
        self.under_way[client] = started = _Started(dispatch.number, plan, work, state, metered, task)
        if task is not None:
            self._of += 1
            self._waiting.append(started)

    def _feed(self) -> None:
        """Give the executor what waits: all, or so much that ``_window`` trainings haven't landed."""
        while self._waiting and (self._window is None or len(self._submitted) < self._window):
            self._submit(self._waiting.popleft())

    def _submit(self, started: _Started) -> Future[Report]:
        assert started.task is not None
        if started.together:
            return self._submit_together(started)
        future = self.executor.submit(started.task)
        started.future = Deposited(future, self.kept) if started.work.keep else future
        self._submitted.append(started.future)
        self._tell()
        return started.future

    def _submit_together(self, started: _Started) -> Future[Report]:
        """Give the executor all clients that train at once with ``started``, of whom some may not be waited for."""
        together = started.together
        tasks = [each.task for each in together if each.task is not None]
        for each, future in zip(together, submit_together(self.executor, tasks, self._stack), strict=True):
            each.future, each.together = future, ()
            if each is started or each in self._waiting:
                self._submitted.append(future)
            if each in self._waiting:
                self._waiting.remove(each)
        self._tell()
        assert started.future is not None
        return started.future

    def _with_scalars(self, planned: Work, current: Work) -> Work:
        """The planned work with this round's scalars: the plan may be an earlier round's.  Clients share it."""
        known = self._works.get(id(planned))
        if known is None or known[1] is not current:
            if len(self._works) >= MOST_WORKS:
                self._works = {}
            self._works[id(planned)] = known = planned, current, replace(planned, scalars=current.scalars)
        return known[2]

    def land(self, client: int, arrived: bool) -> Report | None:
        """Report of a client; None if its update doesn't arrive and its measurement isn't needed."""
        started = self.under_way.pop(client)
        if started.task is None:
            return None
        future = started.future
        if future is None:  # one that has not begun: those before it haven't landed, or aren't needed
            self._waiting.remove(started)
        if not arrived and not started.metered:
            if future is not None:
                future.cancel()  # no effect on a training that has begun; its result is ignored
                self._leave_window(future)
            return None
        future = future or self._submit(started)
        while not wait((future,), timeout=LOOK_SECONDS).done:
            self._tell()
        report = future.result()
        started.future = started.task = None  # the report may be large
        self._leave_window(future)
        if arrived:
            self._landed[client, started.number] = started, report
            if isinstance(future, Deposited) and future.left is not None:
                self.kept.settle(client, future.left)
        return report

    def _leave_window(self, future: Future[Report]) -> None:
        """Note that a training has landed, and give the executor the next one."""
        self._tell()
        if future in self._submitted:
            self._submitted.remove(future)
            self._landed_now += 1
        self._feed()

    def _tell(self) -> None:
        """Call ``on_trained`` if more clients have trained than it was told."""
        done = self._landed_now + sum(future.done() for future in self._submitted)
        if done > self._told:
            self._told = done
            self.on_trained(done, self._of)

    def rejects(self, client: int, number: int) -> str | None:
        """Why an arrived update is refused, which drops it; None if it is accepted."""
        started, report = self._landed[client, number]
        seed = self._seed(client, number)
        keep = self.setup.method.setting.aggregation.non_finite == "keep"
        reason = why_refused(started.work, report, seed, keep_non_finite=keep)
        if reason is not None:
            del self._landed[client, number]
        elif self._fold is not None and self._stage is not None:
            del self._landed[client, number]
            update = self._update(Arrival(client, started.plan, 0, number), started, report, self._stage)
            self._fold.add(update)
            self._added[client, number] = replace(update, payloads=self._without_parameters(update))
        return reason

    def expect(self, arrivals: Sequence[Arrival], stage: Stage) -> None:
        """Add updates up as they land, if the method and the rule of aggregation let that be."""
        self._fold, self._added, self._stage = None, {}, stage
        method = self.setup.method
        if not method.streams or method.setting.aggregation.rule != "mean":
            return
        expected = [self._update(a, self.under_way[a.client], None, stage) for a in arrivals]
        parameters = {a: t for a, t in self.state.tensors.items() if averaged(a)}
        self._fold = Fold(parameters, expected, method.update_weight, method.setting.aggregation)

    def _without_parameters(self, update: Update) -> dict[str, dict[str, Tensor]]:
        """The tables of an update, and tensors without values for its parameters."""
        light, kept = self._light_payloads(update.work), {}
        for payload in update.work.up:
            values, names = update.payloads[payload.name], light[payload.name]
            kept[payload.name] = {
                i.name: names[i.name] if averaged(i.source) else values[i.name] for i in payload.items
            }
        return kept

    def _light_payloads(self, work: Work) -> dict[str, dict[str, Tensor]]:
        """The uploads of a work as tensors without values, which clients with the same work share."""
        key = id(work.up)
        if key not in self._light:
            if len(self._light) >= MOST_WORKS:
                self._light = {}
            with torch.device("meta"):
                payloads = {p.name: {i.name: i.spec.empty() for i in p.items} for p in work.up}
            self._light[key] = work, payloads
        return self._light[key][1]

    def non_finite(self) -> list[str]:
        """The addresses of the state whose tensors have a NaN or an infinity."""
        return self._finite.bad(self.state)

    def _seed(self, client: int, number: int) -> int:
        """The seed of a client's training in a dispatch."""
        return seeds.key(self.setup.seed, "training", client, number)

    def aggregate(self, arrivals: Sequence[Arrival], stage: Stage, *, at_once: bool = False) -> None:
        """Decode these updates and aggregate them, each with its starting values."""
        updates: list[Update] = []
        for arrival in arrivals:
            key = arrival.client, arrival.number
            if self._fold is not None:
                updates.append(replace(self._added.pop(key), base_round=arrival.round))
            else:
                updates.append(self._update(arrival, *self._landed.pop(key), stage, at_once=at_once))
        updates = [update for update in updates if any(p.items for p in update.work.up)]
        if self._fold is not None:
            updates = Folded(updates, self._fold)
        self._starts, self._fold, self._added = {}, None, {}
        if updates:
            self.state = self.setup.method.aggregate(self.state, updates)

    def _update(
        self, arrival: Arrival, started: _Started, report: Report | None, stage: Stage, *, at_once: bool = False
    ) -> Update:
        """The update of a client; without its report one that is expected, with tensors without values."""
        inputs, base = self._start(started)
        work = part_of_stage(started.work, stage)
        learnt: dict[str, Any] = {}
        if report is None:
            payloads = self._light_payloads(started.work)
        else:
            bases, values = started.work.bases(inputs), report.result.payloads
            payloads = {p.name: p.decoded(values[p.name], bases) for p in started.work.up}
            result = report.result
            learnt = {"loss": result.loss, "metrics": result.metrics, "updates": result.updates}
        if at_once:
            # mixed into the current model: (1 - a) w + a w_client
            base = self.state.base(started.work, self.state.items(started.work))
        return Update(
            arrival.client, started.plan.kind, self._private(arrival.client, work), work, payloads, base,
            arrival.round, arrival.staleness, arrival.weight_factor, self.setup.round.equal, **learnt,
        )  # fmt: skip

    def forget(self, arrivals: Sequence[Arrival]) -> None:
        """Drop updates that arrived and aren't used."""
        for arrival in arrivals:
            self._landed.pop((arrival.client, arrival.number), None)
        self._fold, self._added = None, {}

    def _start(self, started: _Started) -> tuple[dict[str, Tensor], dict[Address, Tensor]]:
        """Starting values of a client at its dispatch, by item and by address."""
        key = id(started.state), started.plan.start
        if key not in self._starts:
            inputs = started.state.inputs(
                started.work, preinstalled(started.work, started.plan.down, started.state.versions)
            )
            self._starts[key] = inputs, started.state.base(started.work, inputs)
        return self._starts[key]

    def _private(self, client: int, work: Work) -> dict[str, int]:
        source = self.setup.clients.client(client)
        return {
            pattern: source.size(replace(p, patterns=(pattern,)))
            for p in work.passes
            if p.data == "private"
            for pattern in p.patterns
        }

    def submit(self, work: Work, when: str, round: int, index: int) -> Future[Report] | None:
        """Submit a work of the server."""
        key, _ = self.planner.server(work)
        metered = self.setup.measure == "all" or key not in self.metered
        self.metered.add(key)
        seed = seeds.key(self.setup.seed, f"server {when}", round, index)
        return self.executor.submit(Task(work, self.state.inputs(work), None, seed, metered))

    def absorb(self, work: Work, report: Report | None) -> None:
        """Apply the result of a work of the server to the state."""
        assert report is not None
        self.state = self.setup.method.absorb(self.state, work, report.result)

    def leave(self) -> None:
        """Cancel works that no worker has begun, because another run may need the workers."""
        self._waiting.clear()
        for started in self.under_way.values():
            if started.future is not None:
                started.future.cancel()
