"""What machines did: ``host.jsonl``, clients' works, ``nodes.jsonl``, those of real devices, ``scratch.jsonl``."""

from __future__ import annotations

from edgefl.records.record import UNSET, Maybe, Record


class HostWork(Record):
    """A client's work on the machine that ran the simulation.  It is the only table that differs between equal runs."""

    round: int
    """The round in which the client's task ended"""
    client: int
    """Number of the client"""
    wall_seconds: float
    """Wall time of its work on this machine"""
    rss_bytes: int
    """Memory of the process after it"""
    process: int
    """Number of the process that did it"""


class NodeFlight(Record):
    """A client's task on a device of its own, by the wall clock; only in a run on
    [your own devices](../guides/own-devices.md)."""

    round: int
    """The round in which the client's task ended"""
    client: int
    """Number of the client"""
    node: str | None
    """The transport's name of its node; `null` if it had none"""
    lost: str | None
    """Why no update arrived; `null` if one did"""
    round_trip_seconds: float
    """Time from sending the order until the reply was there, that of a second order included"""
    start_up_seconds: float | Maybe = UNSET
    """Time in which the node's process began, imported what it needs and opened its data; this and the others only if
    an update arrived"""
    storage_seconds: float | Maybe = UNSET
    """Time in which the node read and wrote the copies that it holds"""
    compute_seconds: float | Maybe = UNSET
    """Time of its work"""
    predicted_compute_seconds: float | Maybe = UNSET
    """The same, predicted for its device"""
    metering_seconds: float | Maybe = UNSET
    """Time of the same work once more with a meter; 0 for a work that was measured before"""
    transfer_seconds: float | Maybe = UNSET
    """The rest of the round trip: both transfers, and the transport's own time"""
    resent_bytes: int
    """Serialised bytes down beside the planned ones: what the node was to hold and didn't"""
    rss_bytes: int | Maybe = UNSET
    """Resident memory of the node's process after its work"""


class Scratch(Record):
    """What the kernel of a call allocates for itself, in the round in which a prediction first needed it."""

    round: int
    """The round that needed it first"""
    call: str
    """A hash of the operator and of its arguments: shapes, strides, dtypes, which are one tensor, numbers"""
    operator: str
    """The operator"""
    bytes: int
    """The most memory that the call holds at a time in addition to its arguments: outputs and scratch"""
    assumed: bool
    """Whether the bytes are assumed, because they couldn't be measured"""
    kernels: str
    """torch's version and the processor's instruction sets, or the GPU, that they were measured with"""
