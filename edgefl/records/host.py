"""What this machine did: ``host.jsonl``, clients' works, and ``scratch.jsonl``, what kernels take."""

from __future__ import annotations

from edgefl.records.record import Record


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
