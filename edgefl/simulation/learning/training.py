"""Real training behind futures: a round's trainings, what arrives, and its aggregation."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from edgefl import seeds
from edgefl.methods import ServerState
from edgefl.planning.planner import Plan, Planner, Start
from edgefl.planning.setup import Setup
from edgefl.planning.versions import preinstalled
from edgefl.schedules import Stage
from edgefl.simulation.attackers import attack_of, overrun
from edgefl.simulation.closed_form import Dispatch, Flights
from edgefl.simulation.finite import FiniteCheck
from edgefl.simulation.kept import Deposited, KeptValues
from edgefl.simulation.learning.arrived import Arrived, Started
from edgefl.simulation.learning.interface import Arrival, Received
from edgefl.simulation.learning.shards import largest_shard, may_share, shards_of
from edgefl.training import Executor, TrainingTask
from edgefl.training.refusal import why_refused
from edgefl.training.together import submit_together
from edgefl.work import Work
from edgefl.work.update import Update

Floats = NDArray[np.float64]
Integers = NDArray[Any]


LOOK_SECONDS = 0.5
"""Wall time between two looks at how many clients have trained, while one of them is waited for."""


class Training:
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
        self._arrived = Arrived(setup, folder, most)
        self._overrun = False
        """Whether it was told that attackers were too many for the rule."""

    def send(self, flights: Flights, go: NDArray[np.bool_], *, in_order: bool = False) -> None:
        """Submit the works of the flights in ``go``, and of those that are the first with their cost key.

        In a large cohort that lands ``in_order`` the executor gets them one by one, so that few reports wait.
        """
        self._submitted = {future: of for future, of in self._submitted.items() if not future.done()}
        self._of, self._landed_now, self._told = len(self._submitted), 0, 0
        few = self.executor.window
        self._window = few if few == 0 or (few is not None and in_order and len(flights.plans) > 2 * few) else None
        chosen = []
        for client, plan, trains in zip(flights.client.tolist(), flights.plans, go.tolist(), strict=True):
            metered = self._measures(plan.key)
            self.metered.add(plan.key)
            chosen.append((client, plan, metered, trains))
        wires: dict[Start, dict[str, Tensor]] = {}
        if self._window is None:
            # longest first, which balances the load of the workers; results don't depend on the order
            chosen.sort(key=lambda entry: -entry[1].cost.budgets()["flops"])
        for client, plan, metered, trains in chosen:
            self._begin(client, plan, self.state, flights.dispatch, metered, trains or metered, wires)
        self._shares = self._may_share and in_order and largest_shard(len(flights.plans)) > 1
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
        scalars = self.planner.scalars(plan.kind, dispatch.round, plan.stage, plan.variant)
        task = None
        if trains:
            if plan.start not in wires:
                wires[plan.start] = state.wire(plan.form, preinstalled(plan.form, plan.down, state.versions))
            keep = plan.form.keep
            inputs, kept = wires[plan.start], self.kept.of(client, keep) if keep else None
            seed = self._seed(client, dispatch.number)
            attack = attack_of(self.setup, client, seed)
            peak = plan.cost.compute.peak_memory_bytes
            task = TrainingTask(plan.form, scalars, inputs, client, seed, metered, attack, kept, peak=peak)
        self.under_way[client] = started = Started(dispatch.number, plan, scalars, state, metered, task)
        if task is not None:
            self._of += 1
            self._waiting.append(started)

    def _feed(self) -> None:
        """Give the executor what waits: all, or so much that ``_window`` trainings haven't landed."""
        while self._waiting and (self._window is None or len(set(map(id, self._submitted.values()))) < self._window):
            self._submit(self._waiting.popleft())

    def _submit(self, started: Started) -> Future[Update]:
        assert started.task is not None
        if started.together:
            return self._submit_together(started)
        future = self.executor.submit(started.task)
        started.future = Deposited(future, self.kept) if started.plan.form.keep else future
        self._submitted[started.future] = started.future
        self._tell()
        return started.future

    def _submit_together(self, started: Started) -> Future[Update]:
        """Give the executor all clients of a shard with ``started``, some of whom may not be waited for."""
        together, shard = started.together, started.shard
        tasks = [each.task for each in together if each.task is not None]
        assert shard is not None
        for each, future in zip(together, submit_together(self.executor, tasks, shard.rule), strict=True):
            each.future, each.together = future, ()
            if each is started or each in self._waiting:
                self._submitted[future] = shard
            if each in self._waiting:
                self._waiting.remove(each)
        self._tell()
        assert started.future is not None
        return started.future

    def receive(self, client: int, arrived: bool) -> Received | None:
        """Take the report of a client that has landed, and its update if that has ``arrived``.

        None if the update hasn't and its measurement isn't needed.
        """
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
        left = future.left if isinstance(future, Deposited) else None
        if arrived and left is not None:
            self.kept.settle(client, left)
        return Received(report, self._accept(client, started, report) if arrived else None)

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

    def _accept(self, client: int, started: Started, report: Update) -> str | None:
        """Add an update that has arrived to the round's; return why it is refused, if it is."""
        if started.shard is not None:
            self._arrived.add_to_shard(client, started, report)
            return report.refused
        keep = self.setup.method.setting.aggregation.non_finite == "keep"
        seed = self._seed(client, started.number)
        refusal = why_refused(started.plan.form, report, seed, keep_non_finite=keep)
        if refusal is None:
            self._arrived.add(client, started, report)
        return refusal

    def expect(self, arrivals: Sequence[Arrival], stage: Stage) -> None:
        """Add updates up as they land, if the method and the rule of aggregation let that be."""
        self._arrived.expect(self.state, arrivals, self.under_way, stage)
        if self._shares:
            if self._arrived.fold is not None:
                self._divide(arrivals, stage)
            self._shares = False
            self._feed()

    def _divide(self, arrivals: Sequence[Arrival], stage: Stage) -> None:
        """Decide which clients' changes are added up where they train."""
        clients = [(arrival.client, self.under_way[arrival.client]) for arrival in arrivals]
        for members in shards_of(self.setup, self.state, clients, stage):
            shard = self._arrived.shard(members)
            together = [started for _, started in members]
            for started in together:
                started.shard, started.together = shard, together

    def non_finite(self) -> list[str]:
        """The addresses of the state whose tensors have a NaN or an infinity."""
        return self._finite.bad(self.state)

    def _measures(self, key: str) -> bool:
        """Whether a work with this cost key is to be measured."""
        measure = self.setup.measure
        return measure == "all" or (measure == "first" and key not in self.metered)

    def _seed(self, client: int, number: int) -> int:
        """The seed of a client's training in a dispatch."""
        return seeds.key(self.setup.seed, "training", client, number)

    def aggregate(self, arrivals: Sequence[Arrival], stage: Stage, *, at_once: bool = False) -> None:
        """Decode these updates and aggregate them, each with its starting values."""
        updates = self._arrived.take(self.state, arrivals, stage, at_once=at_once)
        if not self._overrun and (many := overrun(self.setup, updates)):
            self._overrun = True
            warnings.warn(
                f"{many}: they may move the model as they like; more updates a round (round.cohort, round.buffer, "
                "round.quorum) withstand more.  Later rounds with too many aren't told",
                RuntimeWarning,
                stacklevel=2,
            )
        if updates:
            self.state = self.setup.method.aggregate(self.state, updates)

    def forget(self, arrivals: Sequence[Arrival]) -> None:
        """Drop updates that arrived and aren't used."""
        self._arrived.forget(arrivals)

    def submit(self, work: Work, when: str, round: int, index: int) -> Future[Update] | None:
        """Submit a work of the server."""
        key, computed = self.planner.server(work)
        metered = self._measures(key)
        self.metered.add(key)
        seed = seeds.key(self.setup.seed, f"server {when}", round, index)
        return self.executor.submit(
            TrainingTask(
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
        for started in self.under_way.values():
            if started.future is not None:
                started.future.cancel()
