"""The server of an emulation: it runs clients as processes under limits, and plays their rounds on the wall clock."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from math import inf
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Self

from edgefl import start_method
from edgefl.data import Federation
from edgefl.planning.planner import Plan
from edgefl.training import Assignment, Inline, worker
from edgefl.training.assignment import serialise
from edgefl.training.remote import RealFlight, checksum, order_of, split_inputs, update_of
from edgefl.work.update import Update
from tools.emulation import client_process as clients
from tools.emulation import frames
from tools.emulation.client_process import ClientOrder, ClientReply, Data, receive_message, send_message
from tools.emulation.journal import MachineJournal
from tools.emulation.kernel import EmulationError, control_groups_here
from tools.emulation.limits import Limits
from tools.emulation.links import UNLIMITED, EmulatedNetwork, Rates, client_of
from tools.emulation.traffic import CrossTraffic

START_SECONDS = 300.0
"""Wall time in which all clients have imported torch and opened their data.

A choice, not measured: they begin side by side, a few seconds of processor time each.  A client that hangs is told of
only after it.
"""


@dataclass(frozen=True)
class EmulatedClient:
    """What an emulated client has: its number in the federation, its core and its share of it, the bytes that tensors
    may take (inf: no limit), and its link's payload bits per second and seconds of latency."""

    client: int
    core: int
    share: float
    memory_bytes: float
    rates: Rates
    latency_seconds: float


@dataclass(frozen=True)
class EmulatedRound(RealFlight):
    """A client's flight, whose process the kernel may end.

    ``frame_bytes`` are those of whole frames, by the kernel's counters; ``cpu_seconds`` are the processor's time for
    its work.
    """

    frame_bytes: tuple[int, int] = (0, 0)
    cpu_seconds: float = 0.0


@dataclass
class _Running:
    """A client's process, its pipe and stream, and its limits."""

    machine: EmulatedClient
    number: int
    process: BaseProcess
    pipe: Connection
    limits: Limits
    stream: socket.socket | None = None
    held: set[str] = field(default_factory=set)
    """Names of the items of which the client holds a copy."""
    prepared: set[str] = field(default_factory=set)


class Emulator:
    """Clients as processes of this machine; an executor of a simulation, whose clients' assignments wait for ``fly``.

    Works of the server run in this process.  A context manager that removes everything that it has made.  Raises
    EmulationError if the kernel refuses a part of it, or a client can't open its data.
    """

    window = None

    def __init__(
        self,
        federation: Federation,
        data: Data,
        machines: Sequence[EmulatedClient],
        line: Rates = UNLIMITED,
        background: tuple[int, float] = (0, inf),
    ):
        self._inline = Inline(federation, "cpu")
        self._assignments: dict[int, tuple[Assignment, Future[Update]]] = {}
        self._running: dict[int, _Running] = {}
        self._journal = MachineJournal()
        self._traffic: CrossTraffic | None = None
        try:
            # the work of their frames isn't the clients', and would be counted as theirs on their cores
            cores = os.sched_getaffinity(0) - {machine.core for machine in machines}
            self.network = EmulatedNetwork(
                self._journal, [machine.rates for machine in machines], line, background, cores
            )
            self._start(machines, data)
            self._traffic = CrossTraffic(self.network, line)
        except BaseException:
            self.close()
            raise

    def _start(self, machines: Sequence[EmulatedClient], data: Data) -> None:
        # the server of worker processes imports edgefl's own modules only: this one imports most of what a client does
        context, groups = start_method.context(worker.__name__), control_groups_here()
        listening = self.network.listen(len(machines))
        with listening:
            for number, machine in enumerate(machines):
                limits = Limits(groups, self._journal, str(number))
                ours, theirs = context.Pipe()
                process = context.Process(
                    target=clients.main, args=(theirs, self.network.client(number), sys.path, data), daemon=True
                )
                process.start()
                assert process.pid is not None
                self._journal.note("processes", process.pid)
                limits.adopt(process.pid)
                # on two cores a part of the quota would lie idle at the core that its threads have left
                os.sched_setaffinity(process.pid, {machine.core})
                theirs.close()
                self._running[machine.client] = _Running(machine, number, process, ours, limits)
            by_number = {running.number: running for running in self._running.values()}
            until = time.monotonic() + START_SECONDS
            for running in by_number.values():
                self._await_start(running, until)
            listening.settimeout(10.0)
            for _ in machines:
                stream, (address, _) = listening.accept()
                stream.settimeout(None)
                frames.tune(stream)
                by_number[client_of(address)].stream = stream
        for running in by_number.values():
            # what the process has before any tensor of a work is its runtime's
            running.limits.memory(running.limits.resident + running.machine.memory_bytes)
            running.limits.processor(running.machine.share)

    def _await_start(self, running: _Running, until: float) -> None:
        name = f"client {running.machine.client}"
        if not running.pipe.poll(max(until - time.monotonic(), 0.0)):
            raise EmulationError(f"{name} hasn't begun within {START_SECONDS:g} s")
        try:
            answer, _ = receive_message(running.pipe, ClientReply)
        except (EOFError, OSError):
            raise EmulationError(f"the process of {name} ended before it began") from None
        if "error" in answer:
            raise EmulationError(f"{name} can't begin: {answer['error']}")

    def close(self) -> None:
        """End the clients and the traffic of others, and remove their limits and their network."""
        if self._traffic is not None:
            self._traffic.close()
        for running in self._running.values():
            running.pipe.close()
            if running.stream is not None:
                running.stream.close()
            running.process.kill()
        for running in self._running.values():
            running.process.join()
        self._running = {}
        self._journal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # as an executor -------------------------------------------------------------------------------------------------

    def submit(self, assignment: Assignment) -> Future[Update]:
        """Run a work of the server; keep a client's until it flies."""
        if assignment.client is None:
            return self._inline.submit(assignment)
        future: Future[Update] = Future()
        self._assignments[assignment.client] = assignment, future
        return future

    # clients --------------------------------------------------------------------------------------------------------

    def calibrate(self, client: int, seconds: float) -> ClientReply:
        """Rates of a client's process under its quota, by CPU time, and its ``share`` of a processor's time.

        Its memory isn't limited meanwhile.
        """
        running = self._running[client]
        running.limits.memory(inf)
        send_message(running.pipe, {"do": "calibrate", "seconds": seconds})
        answer = self._answer(running)[0]
        running.limits.memory(running.limits.resident + running.machine.memory_bytes)
        return answer

    def process(self, client: int) -> BaseProcess:
        """The process of a client."""
        return self._running[client].process

    def time_works(self, orders: Mapping[int, tuple[str, Assignment]]) -> dict[int, float]:
        """Wall seconds in which each client's process trains its work once under its quota; all begin together.

        An order is the work's key and its assignment.
        """
        for client, (key, assignment) in orders.items():
            self._prepare(self._running[client], key, assignment)
        for client, (_, assignment) in orders.items():
            send_message(self._running[client].pipe, _order("time_work", assignment), serialise(assignment.tensors()))
        return {client: float(self._answer(self._running[client])[0]["seconds"]) for client in orders}

    def fly(self, plans: Mapping[int, Plan], deadline: float = inf) -> dict[int, EmulatedRound]:
        """Play the round of these clients at the same time; their assignments have been submitted.

        After ``deadline`` seconds the server gives up those whose update isn't there; they take part no more, and
        neither do those whose process has ended.
        """
        assignments = {client: self._assignments.pop(client) for client in plans}
        there = {client: plan for client, plan in plans.items() if self._running[client].process.is_alive()}
        for client, plan in there.items():
            self._prepare(self._running[client], plan.key, assignments[client][0])
        flown = {client: EmulatedRound(client, 0.0, 0.0, 0.0, 0, 0, ended_in="start") for client in plans}
        for client in plans.keys() - there.keys():
            assignments[client][1].cancel()
        start = threading.Barrier(max(len(there), 1))
        with ThreadPoolExecutor(max(len(there), 1)) as pool:
            flights = {
                client: pool.submit(self._fly, self._running[client], plan, *assignments[client], start, deadline)
                for client, plan in there.items()
            }
            return flown | {client: flight.result() for client, flight in flights.items()}

    def _prepare(self, running: _Running, key: str, assignment: Assignment) -> None:
        """Let a client train a work once before its first round with it, at the full speed of this machine."""
        if key in running.prepared:
            return
        running.prepared.add(key)
        running.limits.processor(inf)
        try:
            send_message(running.pipe, _order("prepare", assignment), serialise(assignment.tensors()))
            self._answer(running)
        except (EOFError, OSError):
            running.process.join()  # the round finds that it has ended
        finally:
            running.limits.processor(running.machine.share)

    def _fly(
        self,
        running: _Running,
        plan: Plan,
        assignment: Assignment,
        future: Future[Update],
        start: threading.Barrier,
        deadline: float,
    ) -> EmulatedRound:
        machine, stream = running.machine, running.stream
        assert stream is not None
        downloads, own = split_inputs(assignment, plan.down)
        new = {name: tensor for name, tensor in own.items() if name not in running.held or name in assignment.form.keep}
        sums = {name: checksum(tensor) for name, tensor in own.items() if name not in new}
        up = [payload for payload in assignment.form.up if payload.items]
        order: ClientOrder = {
            **_order("train", assignment), "payloads": len(downloads), "check": sums,
            "latency": machine.latency_seconds,
        }  # fmt: skip
        before = self.network.link_counters(running.number)
        receiver, began = frames.Receiver(stream), time.monotonic()
        try:
            try:
                send_message(running.pipe, order, serialise(new))
                self._answer(running)
            finally:
                start.wait()
            began = time.monotonic()
            if downloads:
                time.sleep(machine.latency_seconds)
                frames.send(stream, downloads)
            arrived = receiver.payloads(len(up), began + deadline)
            ended = time.monotonic()
            answer, kept = self._answer(running)
            times = answer["times"]
        except (EOFError, OSError, frames.StreamBroken) as error:
            future.cancel()
            return self._abandon_client(running, receiver, began, sum(map(len, downloads)), error)
        running.held |= new.keys() | {item.name for payload in plan.down for item in payload.items}
        future.set_result(update_of(answer["facts"], assignment, arrived, kept))
        counted = self.network.link_counters(running.number)
        downloaded = times["downloaded"] if downloads else began
        return EmulatedRound(
            machine.client,
            downloaded - began,
            times["computed"] - downloaded,
            ended - times["computed"] if up else 0.0,
            sum(map(len, downloads)),
            receiver.received,
            frame_bytes=(counted[0].bytes - before[0].bytes, counted[1].bytes - before[1].bytes),
            cpu_seconds=times["cpu_seconds"],
        )

    def _abandon_client(
        self, running: _Running, receiver: frames.Receiver, began: float, sent: int, error: Exception
    ) -> EmulatedRound:
        """What is known of a client whose update isn't there: its process has ended, or the deadline is over.

        Its computing ends with the first byte that arrived, less the latency.  When its download was complete is only
        said with its update, so the download is counted as computing.
        """
        ended = time.monotonic()
        late = running.process.is_alive() and isinstance(error, frames.StreamBroken)
        running.process.kill()
        running.process.join()
        computed = ended if receiver.first is None else receiver.first - running.machine.latency_seconds
        return EmulatedRound(
            running.machine.client,
            0.0,
            computed - began,
            ended - computed,
            sent,
            receiver.received,
            ended_in="compute" if receiver.first is None else "upload",
            killed=running.limits.oom_kills > 0,
            late=late,
        )

    def _answer(self, running: _Running) -> tuple[ClientReply, bytes]:
        answer, body = receive_message(running.pipe, ClientReply)
        if "error" in answer:
            raise EmulationError(answer["error"])
        return answer, body


def _order(do: str, assignment: Assignment) -> ClientOrder:
    order = order_of(assignment)
    return {"do": do, "form": order["form"], "facts": order["facts"]}
