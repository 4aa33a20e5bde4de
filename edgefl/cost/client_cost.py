"""The cost of one client's round on any device: what it computes, and its traffic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from edgefl.arrays import Floats
from edgefl.cost.step_seconds import StepSeconds, step_seconds
from edgefl.devices import Device, Hardware
from edgefl.work import (
    FINISH,
    START,
    UPDATE,
    Address,
    Description,
    Item,
    Payload,
    Source,
    StepCost,
    StepTrace,
    TensorSpec,
    distinct,
    serialised_bytes,
)
from edgefl.work.optimizer.zeroth_order import without_gradients

MODEL_PARTS = ("embedding", "blocks", "norm", "rep", "head", "pooler")
"""The parts of a tower whose parameters are transferred."""

EXCHANGE = "exchange"
"""The payload of all tensors that the halves of a split model exchange in a round."""

TRAFFIC_PARTS = (*MODEL_PARTS, "buffers", "tables")
"""The parts that traffic is split into; ``tables`` are tensors outside the model (prototypes, representations)."""


@dataclass(frozen=True)
class ExchangeCost:
    """What a client exchanges with the server while it trains half of a split model, in a round.

    Bytes are those of tensors, and serialised with headers.  The server computes its half between two messages, by
    itself for each client: ``server`` is its cost, and ``server_seconds`` are those on the fleet's server.
    """

    trips: int
    upload_bytes: int
    serialised_upload_bytes: int
    download_bytes: int
    serialised_download_bytes: int
    server: ComputeCost
    server_seconds: float


@dataclass(frozen=True)
class ComputeCost:
    """The device-independent cost of a round on a client or the server: memory in bytes, FLOPs, and its operators.

    ``peak_memory_bytes`` is the peak of live storage and kernels' scratch, ``live_memory_bytes`` that of live storage.
    ``memory_assumed`` is true if the scratch at the peak is the upper end of a range.  ``host_memory_bytes`` lie in the
    memory of a GPU's host, beside the peak.  ``reserved_memory_bytes`` are the least that a GPU's allocator must be
    able to reserve for the live storage; 0 for a CPU.
    ``operators`` is ``[n, 4]`` float64: FLOPs, bytes read and written, how often that operator runs in the round, and
    its class (``OperatorClass``).  ``more_kernels`` are those that run beside on a device without ``Processor.lists``.
    ``fvcore_macs_per_sample`` counts one sample in one local epoch, forward and backward, by the papers' convention:
    the backward pass has twice the forward MACs of the parts that train, and none for frozen parts.  In a part of which
    only some parameters train (adapters), it has those of each product once for every operand that a gradient reaches.
    ``fvcore_macs`` counts all batches of the round by the same convention; passes that don't train count their forward
    MACs only.  ``exchange`` is what half of a split model exchanges.
    """

    peak_memory_bytes: int
    memory_bytes: Mapping[str, int]
    forward_flops: int
    backward_flops: int
    fvcore_macs_per_sample: float
    operators: Floats
    fvcore_macs: float = 0.0
    precision: str = "float32"
    live_memory_bytes: int = 0
    memory_assumed: bool = False
    host_memory_bytes: int = 0
    reserved_memory_bytes: int = 0
    more_kernels: int = 0
    exchange: ExchangeCost | None = None

    @property
    def tensor_bytes(self) -> int:
        """What tensors take of a device: the peak, or what a GPU's allocator reserves if that is more."""
        return max(self.peak_memory_bytes, self.reserved_memory_bytes)

    @property
    def loaded_bytes(self) -> int:
        """Bytes of parameters and buffers, which a client reads from storage before it computes."""
        return sum(self.memory_bytes.get(part, 0) for part in ("parameters", "buffers"))

    def load_seconds(self, device: Device) -> float:
        """Seconds of reading the model from a device's storage."""
        return self.loaded_bytes / device.storage_bytes_per_second

    def cool(self, device: Device, *, loads: bool = True) -> tuple[float, float]:
        """Seconds of loading the model (with ``loads``) and computing, and the share of them that isn't waiting."""
        spent, load = self.seconds_by_class(device), self.load_seconds(device) if loads else 0.0
        seconds = spent.total + load
        return seconds, (spent.busy + load) / seconds if seconds else 1.0

    def seconds(self, device: Hardware) -> float:
        """Seconds of all operators on a device, by the formula of its processor, in the precision of training."""
        return self.seconds_by_class(device).total

    def seconds_by_class(self, device: Hardware) -> StepSeconds:
        """The same by class of operator."""
        return step_seconds(self.operators, device, self.precision, self.more_kernels)


def operator_table(operators: Mapping[tuple[int, int, int], int]) -> Floats:
    """``ComputeCost.operators`` from how often each (FLOPs, bytes, class) runs."""
    return np.array([(f, b, n, c) for (f, b, c), n in operators.items()], dtype=np.float64).reshape(-1, 4)


def compute_cost(work: Description, source: Source, trace: StepTrace, without: str | None = None) -> ComputeCost:
    """The cost of all passes and batches of a work, from the trace of its distinct steps.

    The trace has each distinct step once; here it is multiplied by the number of times that the step runs.  Passes of
    the step ``without`` aren't computed; the peak stays that of the whole work.
    """
    order = distinct(work)
    occurrences = Counter(order.index(p) for p in work.passes)
    operators: Counter[tuple[int, int, int]] = Counter()
    forward = backward = more_kernels = 0
    macs = per_sample = 0.0
    # The meter names a part by the first two components of a parameter name, or three for a block.
    components = [name.split(".") for name in work.trainable]
    trained = {".".join(name[:n]) for name in components for n in (2, 3) if len(name) > n}
    for (index, pattern), step in trace.steps.items():
        pass_ = order[index]
        if pass_.step == without:
            continue
        once = pattern in (START, FINISH, UPDATE)
        times = occurrences[index] * (1 if once else source.counts(pass_)[pattern])
        if pattern == UPDATE:
            times *= -(-sum(source.counts(pass_).values()) // work.accumulation)
        forward += times * step.forward_flops
        backward += times * step.backward_flops
        more_kernels += times * step.more_kernels
        for operator, count in step.operators.items():
            operators[operator] += times * count
        step_macs = _convention_macs(step, trained if pass_.train and not once and not without_gradients(work) else ())
        macs += times * step_macs
        if pass_.train and not once:
            per_sample += step_macs / pass_.batch
    table = operator_table(operators)
    return ComputeCost(
        trace.peak_memory_bytes, trace.memory_bytes, forward, backward, per_sample, table, macs, work.precision,
        trace.live_memory_bytes, trace.assumed, trace.host_bytes, trace.reserved_bytes, more_kernels,
    )  # fmt: skip


def _convention_macs(step: StepCost, trained: Container[str]) -> float:
    """Forward MACs of all parts, and backward twice as many of those that train, or what their gradients take.

    The rest of a tower or of a model, which has no parameters, has the backward MACs that gradients take.
    """
    backward = sum(step.gradient_macs.get(part, 2 * macs if part in trained else 0) for part, macs in step.macs.items())
    return float(sum(step.macs.values()) + backward)


def exchange_cost(work: Description, source: Source, server: ComputeCost, hardware: Hardware) -> ExchangeCost:
    """What the halves of a split work exchange in a round, if the server's half takes ``server`` on its hardware."""
    trips, moved = 0, (0, 0, 0, 0)
    for pass_ in work.passes:
        for pattern, count in source.counts(pass_).items():
            assert pass_.exchange is not None
            batch = source.spec(pass_, pattern)
            up, down = pass_.exchange.up(batch), pass_.exchange.down(batch)
            a, b, c, d = moved
            moved = (
                a + count * _tensor_bytes(up), b + count * serialised_bytes(up),
                c + count * _tensor_bytes(down), d + count * serialised_bytes(down),
            )  # fmt: skip
            trips += count
    return ExchangeCost(trips, *moved, server, server.seconds(hardware))


def _tensor_bytes(specs: Mapping[str, TensorSpec]) -> int:
    return sum(spec.bytes for spec in specs.values())


@dataclass(frozen=True)
class Traffic:
    """Bytes transferred in one client's round: tensor bytes by payload and by part, and serialised bytes with headers.

    The parts are ``TRAFFIC_PARTS``; the weights of a partner tower (FedCola) count under their own part.
    """

    download_bytes_by_payload: Mapping[str, int]
    upload_bytes_by_payload: Mapping[str, int]
    download_bytes_by_part: Mapping[str, int]
    upload_bytes_by_part: Mapping[str, int]
    serialised_download_bytes: int
    serialised_upload_bytes: int

    def with_exchange(self, exchange: ExchangeCost) -> Traffic:
        """The traffic with what the halves of a split model exchange while they train, as a payload."""
        down, up = exchange.download_bytes, exchange.upload_bytes
        parts = self.download_bytes_by_part, self.upload_bytes_by_part
        return Traffic(
            {**self.download_bytes_by_payload, EXCHANGE: down},
            {**self.upload_bytes_by_payload, EXCHANGE: up},
            {**parts[0], "tables": parts[0]["tables"] + down},
            {**parts[1], "tables": parts[1]["tables"] + up},
            self.serialised_download_bytes + exchange.serialised_download_bytes,
            self.serialised_upload_bytes + exchange.serialised_upload_bytes,
        )

    @property
    def download_bytes(self) -> int:
        """Tensor bytes that the client downloads, without headers."""
        return sum(self.download_bytes_by_payload.values())

    @property
    def upload_bytes(self) -> int:
        """Tensor bytes that the client uploads, without headers."""
        return sum(self.upload_bytes_by_payload.values())


def traffic_part(item: Item, buffers: Container[Address] = ()) -> str:
    """The one of ``TRAFFIC_PARTS`` that an item belongs to; ``buffers`` are the addresses of the models' buffers."""
    if item.is_beside_model:
        return "tables"
    if item.source in buffers:
        return "buffers"
    tower, part = (*item.name.split("."), "", "")[:2]
    if tower == "joint" and part not in MODEL_PARTS:
        return "head"  # layers that fuse modalities for the joint classifier
    return part if part in MODEL_PARTS else "tables"


def _by_part(payloads: Iterable[Payload], buffers: Container[Address]) -> dict[str, int]:
    part_bytes = dict.fromkeys(TRAFFIC_PARTS, 0)
    for payload in payloads:
        for item in payload.items:
            part_bytes[traffic_part(item, buffers)] += payload.bytes_of(item)
    return part_bytes


def traffic(down: tuple[Payload, ...], up: tuple[Payload, ...], buffers: Container[Address] = frozenset()) -> Traffic:
    """The traffic of downloaded (``down``) and uploaded (``up``) payloads.

    ``buffers`` are the addresses of the models' buffers.
    """
    return Traffic(
        {p.name: p.tensor_bytes for p in down},
        {p.name: p.tensor_bytes for p in up},
        _by_part(down, buffers),
        _by_part(up, buffers),
        sum(p.serialised_bytes for p in down),
        sum(p.serialised_bytes for p in up),
    )


NO_COMPUTE = ComputeCost(0, {}, 0, 0, 0.0, np.empty((0, 4)))
"""The cost of a node that computes nothing."""
