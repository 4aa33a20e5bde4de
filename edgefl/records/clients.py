"""``clients.jsonl``: a record per flight, and ``scored.jsonl``: one per evaluation of a client on its own samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from edgefl.records.carbon import CarbonGrams
from edgefl.records.record import UNSET, Bytes, Keys, Maybe, Record, Samples, Share, Unit, types_of
from edgefl.records.relays import FlightRelay

ByPayload = Annotated[Mapping[str, int], Keys("PAYLOAD")]
ByPart = Annotated[Mapping[str, int], Keys("PART")]


class Assigned(Record):
    """Who works, and on which part of the model."""

    kind: str
    """Its kind"""
    device: str
    """Its device"""
    link: str
    """Its link"""
    stage: int
    """The stage that it trained; under `elastic` and `heterofl` the number of the part"""
    part: str | Maybe = UNSET
    """Name of the part; only where a schedule offers several"""
    samples: Samples
    """Its private samples"""


class MemoryParts(Record):
    """What memory holds at its peak, by part."""

    parameters: Bytes
    """At the moment of the peak: the model's parameters"""
    gradients: Bytes
    """Likewise: gradients of the parameters"""
    optimizer: Bytes
    """Likewise: state of the optimizer"""
    activations: Bytes
    """Likewise: what the forward pass keeps for the backward pass"""
    buffers: Bytes
    """Likewise: the model's buffers"""
    inputs: Bytes
    """Likewise: the batch"""
    received: Bytes
    """Likewise: received tables, such as prototypes"""
    reference: Bytes
    """Likewise: the frozen copy of the model at the start (FedProx)"""
    outputs: Bytes
    """Likewise: what steps have allocated for their results"""
    temporaries: Bytes
    """Likewise: gradients of activations, and intermediate results of the optimizer's step"""
    scratch: Bytes
    """Likewise: what the kernel that runs then allocates for itself"""

    def by_part(self) -> dict[str, int]:
        """Bytes by part."""
        return {name: getattr(self, name) for name in types_of(MemoryParts)}


class WorkCost(Record):
    """What a work was predicted to take, whatever became of it."""

    peak_memory_bytes: int
    """Predicted peak of live tensors and kernels' scratch ([memory](../concepts/memory.md#all-memory-figures))"""
    live_memory_bytes: int
    """Predicted peak of live tensors"""
    forward_flops: int
    """Predicted forward FLOPs of the whole work: 2 x MAC of matrix products and convolutions"""
    backward_flops: int
    """Predicted backward FLOPs, likewise"""


class ClientCostRecord(WorkCost):
    """What a client's work was predicted to take."""

    memory_bytes: MemoryParts
    """The peak by part"""
    reserved_memory_bytes: int | Maybe = UNSET
    """The least that a GPU's allocator must be able to reserve for live tensors, in whole segments; absent on a CPU"""
    fvcore_macs: float
    """The whole work in fvcore's convention ([FLOPs](../concepts/flops-and-bytes.md#flops-and-macs))"""
    fvcore_macs_per_sample: float
    """One sample in one local epoch, forward and backward, in that convention; blocks that train in part count what
    trains"""


class Downloads(Record):
    """What a work is to move down, whatever becomes of it."""

    download_bytes: int
    """Planned: tensors down for the whole work"""
    download_bytes_by_payload: ByPayload
    """The same by payload: `model`, `partner`, `prototypes` and others"""
    download_bytes_by_part: ByPart
    """The same by part of the model: `embedding`, `blocks`, `norm`, `rep`, `head`, `pooler`, `buffers`, `tables`"""
    serialised_download_bytes: int
    """The same as safetensors files with their headers, which a link carries if nothing breaks
    off"""


class Uploads(Record):
    """What a work is to move up, whatever becomes of it."""

    upload_bytes: int
    """Planned: tensors up"""
    upload_bytes_by_payload: ByPayload
    """The same by payload"""
    upload_bytes_by_part: ByPart
    """The same by part of the model"""
    serialised_upload_bytes: int
    """The same as safetensors files with their headers, up"""


class ExchangeRecord(Record):
    """What a client was predicted to exchange with the server: for half of a split model, or a secure sum."""

    trips: Annotated[int, Unit("exchanges")]
    """Batches for which tensors go up and come down ([split training](../guides/split.md)), or 3 for keys, shares and
    unmasking ([secure aggregation](../guides/privacy.md#secure-aggregation))"""
    serialised_download_bytes: int
    """Bytes of the gradients and losses as safetensors, or of keys and shares, which are among the bytes down"""
    serialised_upload_bytes: int
    """Bytes of the tokens and labels, or of keys and shares, which are among the bytes up"""
    server_seconds: float
    """Seconds in which the server computes its half, in the time of computing"""
    server_peak_memory_bytes: int
    """Predicted peak of the server's half, for this client alone"""
    server_flops: int
    """FLOPs of the server's half, forward and backward"""


class ExchangedRecord(Record):
    """What a client really exchanged while it trained: counted tensor by tensor."""

    trips: Annotated[int, Unit("exchanges")]
    """How often tensors went up and came down"""
    download_bytes: int
    """Bytes that came down, as safetensors"""
    upload_bytes: int
    """Bytes that went up, likewise"""


class MeasuredRecord(Record):
    """What was measured beside the predictions; null where the work wasn't metered (`training.measure`)."""

    measured_peak_memory_bytes: int | None
    """The peak of torch's allocator, the measured counterpart of `peak_memory_bytes`; `null` where the work wasn't
    metered (`training.measure`)"""
    measured_forward_flops: int | None
    """The measured counterpart of `forward_flops`, likewise"""
    measured_backward_flops: int | None
    """The measured counterpart of `backward_flops`, likewise"""
    memory_error: Share | None
    """(predicted - measured) / measured peak, likewise"""


UNMEASURED = MeasuredRecord(
    measured_peak_memory_bytes=None, measured_forward_flops=None, measured_backward_flops=None, memory_error=None
)


class Planned(ClientCostRecord, Downloads, Uploads, Assigned):
    """What all flights of a plan share."""

    exchange: ExchangeRecord | Maybe = UNSET
    """What is exchanged with the server beside the model; only under `split` and with `aggregation.secure`"""


class Executed(Record):
    """What flights moved and computed, as far as they came."""

    carried_download_bytes: int
    """Serialised bytes that crossed a client's link, down"""
    carried_upload_bytes: int
    """The same, up"""
    lost_download_bytes: int
    """Those of them that were of no use, because the task failed or was late"""
    lost_upload_bytes: int
    """The same, up"""
    executed_flops: int
    """FLOPs that were executed, forward and backward: all of the work's if its computing was over. Until then they grow
    in proportion to the time, from the end of loading the model"""

    @property
    def carried_bytes(self) -> int:
        """Serialised bytes that crossed the link, both ways."""
        return self.carried_download_bytes + self.carried_upload_bytes


class FlightCourse(FlightRelay):
    """Whose a flight was, when it began and ended, and how."""

    round: int
    """The round in which the task ended"""
    base_round: int
    """The round in which the client was sent off"""
    client: int
    """Number of the client, from 0"""
    outcome: str
    """`finished`, `late`, `dropped`, `offline`, `corrupted`, `truncated`, `out of memory`, `battery empty`,
    `relay failed` or `rejected` ([meaning](../concepts/fleets.md#how-a-clients-round-can-end))"""
    phase: str | None
    """Where the task ended: `start`, `download`, `compute` or `upload`; `null` if its update arrived"""
    dispatched_virtual_seconds: float
    """Virtual time at which it was sent off; behind a relay that at which the relay had what the client downloads"""
    ended_virtual_seconds: float
    """Virtual time at which the task ended"""
    download_seconds: float
    """Time of downloading, waiting for the server's line included"""
    compute_seconds: float
    """Time of reading the model from storage and computing"""
    upload_seconds: float
    """Time of uploading"""
    start_up_seconds: float | Maybe = UNSET
    """Time in which the process of a [device of your own](../guides/own-devices.md) began, imported what it needs and
    opened its data, which no simulation has"""
    metering_seconds: float | Maybe = UNSET
    """Likewise: time of the same work once more with a meter"""
    virtual_seconds: float
    """All of these together"""
    server_wait_seconds: float | Maybe = UNSET
    """Time within that of computing in which it waited until the server's device was free for it; only under `split`"""

    @property
    def phase_seconds(self) -> dict[str, float]:
        """Seconds of each phase that the run has, in the order in which they follow."""
        phases = {
            "start-up": self.start_up_seconds, "download": self.download_seconds, "compute": self.compute_seconds,
            "metering": self.metering_seconds, "upload": self.upload_seconds,
        }  # fmt: skip
        return {name: seconds for name, seconds in phases.items() if seconds is not UNSET}


class FlightOutcome(Executed, CarbonGrams, FlightCourse):
    """What became of a flight, and what it really took."""

    staleness: Annotated[int, Unit("versions")]
    """How often the model changed between dispatch and arrival"""
    weight_factor: float
    """Factor on the update's weight, by the round policy: the discount s(t) of its staleness; times `round.mixing`
    under `asynchronous`; 1 in synchronous rounds"""
    slow_down: float
    """Factor on the computing time of a slow client, else 1"""
    attack: str | Maybe | None = UNSET
    """`sign-flip`, `scaling`, `label-flip` or another registered attack for an attacker, `null` for an honest client;
    only in runs with [attackers](../concepts/fleets.md#attackers)"""
    lr: float | Maybe = UNSET
    """The learning rate of its first local epoch, scaled by batch size if the scenario says so: that of `base_round`.
    Rates by part are scaled alike; only where
    [`training.lr_schedule`](../concepts/methods/training.md#learning-rates-by-round) or that of a kind varies it"""
    energy_joules: float | None
    """Energy of downloading, computing and uploading until the task ended, waiting for the server's line included;
    `null` on a [device of your own](../guides/own-devices.md), where nobody measures it"""
    loss: float | None
    """Mean training loss over the steps; `null` without training, and where no update arrived"""


class TrainingRecord(MeasuredRecord):
    """What a client's training gave beside its update: measurements, and metrics that its steps wrote."""

    metrics: Annotated[Mapping[str, float | None], Keys("METRIC")] | Maybe = UNSET
    """What the steps of the client's work wrote (`ctx.metrics`), if they wrote some, and with `training.note_gradients`
    the norms `gradient[TOWER.blocks.N]`; `null` where it isn't finite"""
    exchanged: ExchangedRecord | Maybe = UNSET
    """What it exchanged with the server; only under `split`, where it trained"""


class FlightRecord(Planned, TrainingRecord, FlightOutcome):
    """A flight: what a client did after it was sent off.  It downloads, loads the model, computes and uploads."""


class ScoredClient(ClientCostRecord, Downloads, MeasuredRecord, Assigned):
    """The evaluation of a client on its own held-out samples, in a round that evaluates."""

    round: int
    """The round after which it was scored"""
    client: int
    """Number of the client, from 0"""
    eligible: bool
    """Whether the client might train in this round"""
    samples: Samples
    """Its held-out samples"""
    stage: int
    """The stage of the model that it scored"""
    download_seconds: float
    """Predicted time of downloading, without jitter; the round doesn't wait for it"""
    compute_seconds: float
    """Predicted time of reading the model and computing, likewise"""
    virtual_seconds: float
    """The two together"""
    energy_joules: float
    """Predicted energy, which its battery doesn't lose"""
    metrics: Annotated[Mapping[str, Share | None], Keys("METRIC")] | Maybe = UNSET
    """Its scores; `null` if they aren't finite; none without training"""
