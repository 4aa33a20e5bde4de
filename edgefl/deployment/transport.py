"""What a transport between a server and its nodes brings: messages, and who is there."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from edgefl.records.record import Record


@dataclass(frozen=True)
class Message:
    """An order or a reply: facts as plain data, and payloads as safetensors bytes."""

    facts: Mapping[str, Any]
    payloads: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class NoReply:
    """Why a node sent no reply; ``late``: because the time was over."""

    why: str
    late: bool = False


class Transport(Protocol):
    """The nodes that a server reaches.  It answers for delivery, encryption, identity and signs of life."""

    def nodes(self) -> Collection[int]:
        """The numbers of the nodes that are there now; one that restarts has a new number."""
        ...

    def ask(
        self, orders: Iterable[tuple[int, Message]], seconds: float
    ) -> Iterator[tuple[int, Message | NoReply, float]]:
        """Send an order to each of these nodes; yield each reply as it comes, and the seconds of its round trip.

        An order is taken from ``orders`` when it is sent.  After ``seconds`` those without a reply are left out.
        """
        ...


class OwnSamples(Record):
    """The samples that a node has of its own."""

    kind: str
    """Their kind"""
    samples: tuple[int, ...]
    """How many there are of each of the server's classes, and of none"""


class NodeGreeting(Record):
    """What a node says before its first round."""

    version: str
    """Its version of edgefl"""
    client: int
    """The client of the scenario that it is"""
    own: OwnSamples | None = None
    """Its samples; null if it has those that the scenario's set gives this client"""


class NodeReport(Record):
    """What a node says of its round, beside the tensors."""

    start_up_seconds: float
    """Time from the beginning of its process until its data were open; 0 in a process that was there"""
    storage_seconds: float
    """Time of reading and writing the copies that it holds"""
    compute_seconds: float
    """Time of its work, unmetered"""
    metering_seconds: float
    """Time of the same work once more, metered; 0 without"""
    lacks: tuple[str, ...] = ()
    """Items of which it holds no copy, or another one; then it hasn't trained"""
    rss_bytes: int
    """Resident memory of its process after the work"""
    process: int
    """Number of its process"""
    seed: int | None = None
    """The seed of its assignment"""
    loss: float | None = None
    """The mean loss of its steps"""
    metrics: Mapping[str, float]
    """What its steps wrote"""
    updates: int = 0
    """Updates of its optimizer"""
    peak_memory_bytes: int | None = None
    """The allocator's peak, where the work was metered"""
