"""The server of an emulation: it runs clients as processes under limits, and plays their rounds on the wall clock."""

from __future__ import annotations

import multiprocessing
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
from typing import Any, Self

from torch import Tensor

from edgefl.data import Federation
from edgefl.emulation import client as clients
from edgefl.emulation import frames
from edgefl.emulation.client import Data, checksum, tell, told
from edgefl.emulation.journal import Journal
from edgefl.emulation.kernel import control_groups_here
from edgefl.emulation.limits import Limits
from edgefl.emulation.links import UNLIMITED, Network, Rates, client_of
from edgefl.errors import EmulationError, TrainingError
from edgefl.planning import Plan
from edgefl.training import Inline, Report, Task
from edgefl.training.task import deserialised, serialised
from edgefl.work import Work

START_SECONDS = 300.0
"""Wall time in which all clients have imported torch and opened their data."""


@dataclass(frozen=True)
class Machine:
    """What an emulated client has: its number in the federation, its core and its share of it, the bytes that tensors
    may take (inf: no limit), and its link's payload bits per second and seconds of latency."""

    client: int
    core: int
    share: float
    memory_bytes: float
    rates: Rates
    latency_seconds: float


@dataclass(frozen=True)
class Flown:
    """A client's round on the wall clock: seconds of each phase, and the bytes that were sent.

    ``ended_in`` is the phase in which it failed, None if its update arrived; ``killed`` says that the kernel ended it
    for lack of memory.  ``frame_bytes`` are those of whole frames, by the kernel's counters; ``cpu_seconds`` are the
    processor's time for its work.
    """

    client: int
    download_seconds: float
    compute_seconds: float
    upload_seconds: float
    download_bytes: int
    upload_bytes: int
    frame_bytes: tuple[int, int] = (0, 0)
    cpu_seconds: float = 0.0
    ended_in: str | None = None
    killed: bool = False


@dataclass
class _Running:
    """A client's process, its pipe and stream, and its limits."""

    machine: Machine
    number: int
    process: BaseProcess
    pipe: Connection
    limits: Limits
    stream: socket.socket | None = None
    held: dict[str, int] = field(default_factory=dict)
    """Sums of the copies that the client holds, by item name."""
    prepared: set[str] = field(default_factory=set)


class Emulator:
    """Clients as processes of this machine; an executor of a simulation, whose clients' tasks wait for ``fly``.

    Works of the server run in this process.  A context manager that removes everything that it has made.  Raises
    EmulationError if the kernel refuses a part of it, or a client can't open its data.
    """

    window = None

    def __init__(self, federation: Federation, data: Data, machines: Sequence[Machine], line: Rates = UNLIMITED):
        self._inline = Inline(federation, "cpu")
        self._tasks: dict[int, tuple[Task, Future[Report]]] = {}
        self._running: dict[int, _Running] = {}
        self._journal = Journal()
        try:
            self.network = Network(self._journal, [machine.rates for machine in machines], line)
            self._start(machines, data)
        except BaseException:
            self.close()
            raise

    def _start(self, machines: Sequence[Machine], data: Data) -> None:
        spawn, groups = multiprocessing.get_context("spawn"), control_groups_here()
        listening = self.network.listen(len(machines))
        with listening:
            for number, machine in enumerate(machines):
                limits = Limits(groups, self._journal, str(number))
                ours, theirs = spawn.Pipe()
                process = spawn.Process(
                    target=clients.main,
                    args=(theirs, os.getpid(), self.network.client(number), sys.path, data),
                    daemon=True,
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
            answer, _ = told(running.pipe)
        except (EOFError, OSError):
            raise EmulationError(f"the process of {name} ended before it began") from None
        if "error" in answer:
            raise EmulationError(f"{name} can't begin: {answer['error']}")

    def close(self) -> None:
        """End the clients, and remove their limits and their network."""
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

    def submit(self, task: Task) -> Future[Report]:
        """Run a work of the server; keep a client's until it flies."""
        if task.client is None:
            return self._inline.submit(task)
        future: Future[Report] = Future()
        self._tasks[task.client] = task, future
        return future

    # clients --------------------------------------------------------------------------------------------------------

    def calibrate(self, client: int, seconds: float) -> dict[str, float]:
        """Rates of a client's process under its quota, by CPU time, and its ``share`` of a processor's time."""
        running = self._running[client]
        tell(running.pipe, {"do": "calibrate", "seconds": seconds})
        return self._answer(running)[0]

    def timed(self, client: int, key: str, task: Task, times: int) -> float:
        """Wall seconds in which a client's process trains a work under its quota: the median of so many times."""
        running = self._running[client]
        self._prepare(running, key, task)
        tell(running.pipe, {"do": "timed", "times": times, **_order(task)}, serialised(task.tensors()))
        return float(self._answer(running)[0]["seconds"])

    def fly(self, plans: Mapping[int, Plan]) -> dict[int, Flown]:
        """Play the round of these clients at the same time; their tasks have been submitted."""
        tasks = {client: self._tasks.pop(client) for client in plans}
        for client, plan in plans.items():
            self._prepare(self._running[client], plan.key, tasks[client][0])
        start = threading.Barrier(len(plans))
        with ThreadPoolExecutor(len(plans)) as pool:
            flights = {
                client: pool.submit(self._fly, self._running[client], plan, *tasks[client], start)
                for client, plan in plans.items()
            }
            return {client: flight.result() for client, flight in flights.items()}

    def _prepare(self, running: _Running, key: str, task: Task) -> None:
        """Let a client train a work once before its first round with it, at the full speed of this machine."""
        if key in running.prepared:
            return
        running.prepared.add(key)
        running.limits.processor(inf)
        try:
            tell(running.pipe, {"do": "prepare", **_order(task)}, serialised(task.tensors()))
            self._answer(running)
        except (EOFError, OSError):
            pass  # the round finds that it has ended
        finally:
            running.limits.processor(running.machine.share)

    def _fly(
        self, running: _Running, plan: Plan, task: Task, future: Future[Report], start: threading.Barrier
    ) -> Flown:
        machine, stream = running.machine, running.stream
        assert stream is not None
        sent = {item.name: payload for payload in plan.down for item in payload.items}
        inputs = task.tensors()
        downloads = [
            serialised({item.name: inputs[item.name] for item in payload.items})
            for payload in plan.down
            if payload.items
        ]
        own = {name: tensor for name, tensor in inputs.items() if name not in sent}
        new = {name: tensor for name, tensor in own.items() if name not in running.held or name in task.work.keep}
        sums = {name: checksum(tensor) for name, tensor in own.items() if name not in new}
        up = [payload for payload in task.work.up if payload.items]
        order = {
            "do": "train", **_order(task), "payloads": len(downloads), "check": sums,
            "latency": [machine.latency_seconds] * 2,
        }  # fmt: skip
        watch = _Watch()
        before = self.network.counted(running.number)
        try:
            try:
                tell(running.pipe, order, serialised(new))
                self._answer(running)
            finally:
                start.wait()
            watch.begin("download")
            if downloads:
                time.sleep(machine.latency_seconds)
                frames.send(stream, downloads)
                watch.sent = sum(map(len, downloads))
            arrived = frames.receive(stream, len(up))
            watch.begin("done")
            answer, kept = self._answer(running)
        except (EOFError, OSError, EmulationError) as error:
            return self._ended(running, watch, future, error)
        running.held |= dict.fromkeys([*sent, *new], 0)
        report = _report(answer["facts"], task.work, arrived, kept)
        future.set_result(report)
        times = answer["times"]
        counted = self.network.counted(running.number)
        down = times["downloaded"] - watch.began if downloads else 0.0
        return Flown(
            machine.client,
            down,
            times["computed"] - watch.began - down,
            watch.ended - times["computed"] if up else 0.0,
            sum(map(len, downloads)),
            sum(map(len, arrived)),
            (counted[0].bytes - before[0].bytes, counted[1].bytes - before[1].bytes),
            times["cpu_seconds"],
        )

    def _ended(self, running: _Running, watch: _Watch, future: Future[Report], error: Exception) -> Flown:
        """What is known of a client whose process has ended in a round."""
        client = running.machine.client
        if isinstance(error, EmulationError) and running.process.is_alive():
            raise TrainingError(f"client {client}: {error}") from None
        running.process.join(5.0)
        future.cancel()
        took = time.monotonic() - watch.began
        phase = "compute" if watch.sent else "download"
        seconds = {"download": 0.0, "compute": 0.0, phase: took}
        killed = running.limits.killed > 0
        return Flown(client, seconds["download"], seconds["compute"], 0.0, watch.sent, 0, ended_in=phase, killed=killed)

    def _answer(self, running: _Running) -> tuple[dict[str, Any], bytes]:
        answer, body = told(running.pipe)
        if "error" in answer:
            raise EmulationError(answer["error"])
        return answer, body


def _order(task: Task) -> dict[str, Any]:
    """A task without its tensors, as an order says it; what a client kept travels with them."""
    return {"work": task.work.encode(), "facts": {**task.facts(), "metered": False, "kept": None}}


@dataclass
class _Watch:
    """When a client's round began and ended, on the machine's monotonic clock, and the bytes that were sent to it."""

    began: float = field(default_factory=time.monotonic)
    ended: float = 0.0
    sent: int = 0

    def begin(self, phase: str) -> None:
        if phase == "download":
            self.began = time.monotonic()
        else:
            self.ended = time.monotonic()


def _report(facts: Mapping[str, Any], work: Work, arrived: Sequence[bytearray], kept: bytes) -> Report:
    """The report of a client from its facts, its payloads and what it keeps."""
    tensors: dict[str, Tensor] = {f"kept/{name}": tensor for name, tensor in deserialised(kept).items()}
    names = [payload.name for payload in work.up if payload.items]
    for name, body in zip(names, arrived, strict=True):
        index = facts["payloads"].index(name)
        tensors |= {f"{index}/{item}": tensor for item, tensor in deserialised(bytes(body)).items()}
    return Report.of(facts, tensors)
