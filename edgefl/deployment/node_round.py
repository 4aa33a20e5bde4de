"""What a real node does with an order: it takes what came and what it holds, trains, and says what it took."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from edgefl import __version__, terminal
from edgefl.deployment.own_samples import NodeSamples, open_own
from edgefl.deployment.transport import Message, NodeReport
from edgefl.errors import EdgeflError
from edgefl.runs.durable import replace_file
from edgefl.scenario import Scenario
from edgefl.setup.compose import federation_of
from edgefl.training import Assignment, Node
from edgefl.training.assignment import deserialise, serialise
from edgefl.training.node import Sources
from edgefl.training.remote import inputs_of, missing_copies, upload_bodies
from edgefl.work import Form
from edgefl.work.torch_device import device_of

HELD, OWN = "held.safetensors", "own.safetensors"
"""Files of a node's folder: copies of the server's tensors, and what the client keeps for itself."""


@dataclass(frozen=True)
class NodeSetup:
    """What a node is: its client, where it keeps copies, what it computes on, and the samples that it has of its own.

    Without ``data``, a folder or a table, it has the samples that the scenario's set gives its client.
    """

    scenario: Scenario
    folder: Path
    client: object
    device: str = "cpu"
    data: str | None = None
    kind: str | None = None

    def answer(self, order: Message, began: float) -> Message:
        """The reply to an order, in a process that began at this time."""
        if order.facts["do"] == "train":
            return play_order(lambda: Node(self._sources(), device_of(self.device)), self.folder, order, began)
        said: dict[str, object] = {"version": __version__, "client": self.client}
        if self.data is not None:
            try:
                said["own"] = self._open_own(self.data, order.facts["scales"]).count().to_data()
            except EdgeflError as error:
                return Message({"error": str(error)})
        return Message(said)

    def _sources(self) -> Sources:
        return federation_of(self.scenario, terminal.say) if self.data is None else self._open_own(self.data, {})

    def _open_own(self, data: str, scales: Mapping[str, Any]) -> NodeSamples:
        return open_own(self.scenario, Path(data), self.kind, self.folder, scales)


def play_order(open_node: Callable[[], Node], folder: Path, order: Message, began: float) -> Message:
    """Play a round's order; ``folder`` holds the copies between rounds, and what the client keeps, which never leaves.

    The process began at the time ``began``, as ``time.time`` has it.  A reply says what went wrong (``error``).
    """
    if (theirs := order.facts["version"]) != __version__:
        return Message({"error": f"it runs edgefl {__version__}, the server {theirs}: install the same on both"})
    try:
        return _play(open_node(), folder, order, max(time.time() - began, 0.0))
    except EdgeflError as error:
        return Message({"error": str(error)})


def _play(node: Node, folder: Path, order: Message, start_up: float) -> Message:
    facts, opened = order.facts, time.monotonic()
    form = Form.decode(facts["form"])
    held, own = _read_tensors(folder / HELD), _read_tensors(folder / OWN)
    for body in order.payloads:
        held |= deserialise(body)
    needed = {name for payload in form.down for item in payload.items for name in payload.wire(item)} | set(form.keep)
    lacks = sorted({*missing_copies(held, facts["check"]), *(needed - held.keys() - own.keys())})
    computed = began = time.monotonic()
    payloads: list[bytes] = []
    said: dict[str, Any] = {"lacks": lacks, "metrics": {}}
    if not lacks:
        assignment = Assignment.from_data(facts["assignment"], form, inputs_of(form, held | own))
        began = time.monotonic()
        update = node.run_assignment(assignment)
        computed = time.monotonic()
        payloads = upload_bodies(update.payloads.values())
        if update.kept:
            _store(folder / OWN, {**own, **update.kept}, synced=True)
        said |= {name: getattr(update, name) for name in ("seed", "loss", "metrics", "updates")}
    if order.payloads:
        _store(folder / HELD, held, synced=False)  # the server sends again what a power cut takes
    stored, metering = time.monotonic(), 0.0
    rss = psutil.Process().memory_info().rss
    if not lacks and facts["meter"]:  # the meter takes longer than the work, so a work that is timed has none
        said["peak_memory_bytes"] = node.run_assignment(replace(assignment, metered=True)).peak_memory_bytes
        metering = time.monotonic() - stored
    report = NodeReport(
        start_up_seconds=start_up,
        storage_seconds=(began - opened) + (stored - computed),
        compute_seconds=computed - began,
        metering_seconds=metering,
        rss_bytes=rss,
        process=os.getpid(),
        **said,
    )
    return Message(report.to_data(), tuple(payloads))


def _read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file, as pages of it; none if it isn't there, or is damaged."""
    try:
        return dict(safetensors.torch.load_file(path)) if path.exists() else {}
    except SafetensorError:
        return {}


def _store(path: Path, tensors: Mapping[str, Tensor], *, synced: bool) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(
        path, serialise(tensors), synced=synced
    )  # a new file: the old one's pages are read until the process ends
