"""What an emulated client does: a process that receives payloads over its link, trains, and sends its update back.

Payloads travel over a stream socket through the client's shaped link.  Orders and reports (which work, its loss, times)
travel over a pipe beside it, as a device has its program and its method's options before a round.  Times are those of
the machine's monotonic clock, which all processes share.
"""

from __future__ import annotations

import json
import signal
import socket
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import IO, Any, TypedDict, TypeVar

import safetensors.torch
import torch
from torch import Tensor

from edgefl import registry, start_method, terminal
from edgefl.errors import EdgeflError, text_of
from edgefl.machine.microbenchmarks import CPU, calibrate_here, small_layers, threads_of
from edgefl.training import Assignment, Node
from edgefl.training.assignment import serialise
from edgefl.training.remote import inputs_of, missing_copies, upload_bodies
from edgefl.training.worker import open_node
from edgefl.work import NO_METER, Form
from edgefl.work.packed import buffer_bytes
from edgefl.work.update import Update
from tools.emulation import frames
from tools.emulation.kernel import enter
from tools.emulation.links import PORT, SERVER

PAUSE = 0.5
"""Seconds without work before a work is timed: after a download the processor's caches hold other things.

A choice, not measured: longer ones make a calibration longer by as much for each work.
"""


@dataclass(frozen=True)
class Data:
    """What a client opens its data and plug-ins with; see ``edgefl.training.worker.open_node``."""

    data: str
    seed: int
    tokens: int
    cache: str | None
    held_out: float
    registered: registry.ForWorkers


class ClientOrder(TypedDict, total=False):
    """What a client is told to ``do``, the name of a method of ``_Client``, and the arguments of this method."""

    do: str
    seconds: float
    form: str
    facts: dict[str, Any]
    payloads: int
    check: Mapping[str, int]
    latency: float


class Times(TypedDict):
    """When the download of a round was complete and its computing ended, by the machine's clock, and what it took."""

    downloaded: float
    computed: float
    cpu_seconds: float


class ClientReply(TypedDict, total=False):
    """What a client says: an ``error``, that it is ``ready`` to receive, or what the method that it ran returns."""

    error: str
    ready: bool
    seconds: float
    share: float
    flops_per_second: float
    memory_bytes_per_second: float
    seconds_per_operator: float
    arithmetic: tuple[float, ...]
    memory: tuple[float, ...]
    times: Times
    facts: dict[str, Any]


def send_message(pipe: Connection, facts: ClientOrder | ClientReply, body: bytes = b"") -> None:
    """Send an order or a report."""
    pipe.send_bytes(json.dumps(facts).encode())
    pipe.send_bytes(body)


Said = TypeVar("Said", ClientOrder, ClientReply)


def receive_message(pipe: Connection, expected: type[Said]) -> tuple[Said, bytes]:
    """Receive an order or an answer.  Raises EOFError or OSError if the other side has ended."""
    said: Said = json.loads(pipe.recv_bytes())
    return said, pipe.recv_bytes()


def main(pipe: Connection, namespace: str, path: list[str], data: Data) -> None:
    """Run a client in a network namespace until the pipe is closed."""
    start_method.end_with_parent()
    terminal.guard()
    warnings.showwarning = terminal.warn
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # on Ctrl-C the parent ends its clients
    sys.path[:] = path
    try:
        enter(namespace)
        node = open_node(data.data, data.seed, data.tokens, data.cache, data.held_out, data.registered, "cpu")
        stream = socket.create_connection((SERVER, PORT))
        frames.tune(stream)
        with threads_of(1), torch.enable_grad():  # what the first step imports and reserves belongs to the runtime
            small_layers(CPU)(NO_METER)
        send_message(pipe, {})
        client = _Client(pipe, stream, node)
        while True:
            # a list, from which the body is taken so that its memory is free again
            order, *body = receive_message(pipe, ClientOrder)
            try:
                send_message(pipe, *getattr(client, order.pop("do"))(body=body, **order))
            except EdgeflError as error:
                send_message(pipe, {"error": str(error)})
    except (EOFError, ConnectionError, frames.StreamBroken):
        return
    except BaseException as error:  # said by the server, as nobody reads this process's own words
        send_message(pipe, {"error": text_of(error) or type(error).__name__})


class _Client:
    """One client: its node, and the copies of the server's tensors that it holds, by item name."""

    def __init__(self, pipe: Connection, stream: socket.socket, node: Node):
        self._pipe, self._stream, self._node = pipe, stream, node
        self._held: dict[str, Tensor] = {}

    def _run(self, assignment: Assignment) -> Update:
        """Run an assignment, with new memory for its update: what a node keeps for the next would count in its peak."""
        size = buffer_bytes(assignment.form.up)
        return self._node.run_assignment(assignment, None if size is None else torch.empty(size, dtype=torch.uint8))

    def _compute_round(self, assignment: Assignment) -> tuple[Update, list[bytes]]:
        """What a round computes: the assignment's report, and its payloads as they are sent."""
        report = self._run(assignment)
        return report, upload_bodies(report.payloads.values())

    def calibrate(self, seconds: float, body: list[bytes]) -> tuple[ClientReply, bytes]:
        """Measure the rates of this process by CPU time, and its ``share`` of a processor's time."""
        wall, cpu = time.monotonic(), time.process_time()
        device = calibrate_here(seconds)
        share = (time.process_time() - cpu) / (time.monotonic() - wall)
        return {
            "share": share, "flops_per_second": device.flops_per_second,
            "memory_bytes_per_second": device.memory_bytes_per_second,
            "seconds_per_operator": device.seconds_per_operator,
            "arithmetic": device.processor.arithmetic, "memory": device.processor.memory,
        }, b""  # fmt: skip

    def time_work(self, form: str, facts: dict[str, Any], body: list[bytes]) -> tuple[ClientReply, bytes]:
        """Train a work after a pause, as in a round; the wall seconds."""
        # new files, whose pages are touched for the first time as those of a download
        assignment = Assignment.from_data(facts, Form.decode(form), mapped_tensors(lambda file: file.write(body.pop())))
        time.sleep(PAUSE)
        began = time.monotonic()
        self._compute_round(assignment)
        return {"seconds": time.monotonic() - began}, b""

    def prepare(self, form: str, facts: dict[str, Any], body: list[bytes]) -> tuple[ClientReply, bytes]:
        """Train a work once outside all clocks, so that what is made at a first use is there."""
        self._run(Assignment.from_data(facts, Form.decode(form), mapped_tensors(lambda file: file.write(body.pop()))))
        return {}, b""

    def train(
        self,
        form: str,
        facts: dict[str, Any],
        payloads: int,
        check: Mapping[str, int],
        latency: float,
        body: list[bytes],
    ) -> tuple[ClientReply, bytes]:
        """A round: receive ``payloads``, train, and send the update.

        ``body`` has what the client holds without a download: preinstalled or kept by itself.  ``check`` are sums of
        all other copies that it should hold.  The upload begins ``latency`` seconds after the update is ready.
        """
        self._held |= mapped_tensors(lambda file: file.write(body.pop()))
        if lacks := missing_copies(self._held, check):
            return {"error": f"it doesn't hold the copy of {lacks[0]} that the versions say"}, b""
        decoded = Form.decode(form)
        send_message(self._pipe, {"ready": True})
        receiver = frames.Receiver(self._stream)
        for number in range(payloads):
            self._held |= mapped_tensors(partial(receiver.into, number=number))
        downloaded = time.monotonic()
        inputs = inputs_of(decoded, self._held)
        cpu = time.process_time()
        report, uploads = self._compute_round(Assignment.from_data(facts, decoded, inputs))
        computed, spent = time.monotonic(), time.process_time() - cpu
        if uploads:
            time.sleep(latency)
            frames.send(self._stream, uploads)
        kept = report.kept
        self._held |= kept
        times: Times = {"downloaded": downloaded, "computed": computed, "cpu_seconds": spent}
        return {"times": times, "facts": report.to_data()}, serialise(kept)


def mapped_tensors(write: Callable[[IO[bytes]], object]) -> dict[str, Tensor]:
    """The tensors of a safetensors file on disk, which ``write`` writes.

    They are pages of the file, as a model on a device's storage: the kernel takes them back where memory is short.
    """
    with tempfile.NamedTemporaryFile(suffix=".safetensors") as file:
        write(file)
        file.flush()
        return dict(safetensors.torch.load_file(file.name))
