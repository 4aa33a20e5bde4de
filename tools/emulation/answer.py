"""The answer of an emulation, which is in ``emulation.json`` too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from edgefl.records.answer import Answer
from edgefl.records.record import Flights, Keys, Record, Share, Unit


class EmulationHost(Record):
    """The machine that the clients shared."""

    processor: str
    """The processor's name"""
    cores: int | None
    """Its cores"""
    system: str
    """The operating system"""


class EmulatedDevice(Record):
    """What a device's clients had of this machine."""

    quota: Share
    """Share of a core that was asked for"""
    share: Share
    """Share of a core that they had"""
    flops_per_second: Annotated[float, Unit("FLOP/s")]
    """The rate measured under it"""
    memory_bytes_per_second: Annotated[float, Unit("bytes/s")]
    """The memory's rate measured under it"""
    seconds_per_operator: float
    """The time of an operator measured under it"""


class ClientRound(Record):
    """A client's round that finished in the simulation and in the emulation."""

    round: int
    """The round"""
    client: int
    """The client"""
    stage: int
    """The stage"""
    kind: str
    """Its kind"""
    device: str
    """Its device"""
    link: str
    """Its link"""
    share: Share
    """Share of a core that it was given"""
    simulated_download_seconds: float
    """Time of the download, simulated"""
    emulated_download_seconds: float
    """The same, emulated"""
    simulated_compute_seconds: float
    """Time of computing, simulated"""
    emulated_compute_seconds: float
    """The same, emulated"""
    simulated_upload_seconds: float
    """Time of the upload, simulated"""
    emulated_upload_seconds: float
    """The same, emulated"""
    simulated_round_seconds: float
    """The three together, simulated"""
    emulated_round_seconds: float
    """The same, emulated"""
    with_measured_compute_seconds: float
    """The round, simulated with the emulation's seconds of computing"""
    processor_seconds_over_quota: float
    """What computing takes if the quota is exact"""


class PhaseError(Record):
    """|simulated / emulated - 1| of a phase."""

    median: Share
    """Its median"""
    worst: Share
    """The largest"""
    client_rounds: Flights
    """Client-rounds in which the phase took time"""


class EmulatedFlight(Record):
    """What a client's process did in a round."""

    round: int
    """The round"""
    client: int
    """The client"""
    download_bytes: int
    """Bytes of payloads that it received"""
    upload_bytes: int
    """Bytes of payloads that it sent"""
    frame_download_bytes: int
    """Bytes that the kernel counted on its link, down"""
    frame_upload_bytes: int
    """The same, up"""
    processor_seconds: float
    """Processor time of its work"""
    ended_in: str | None
    """The phase in which it ended; `null` if its update arrived"""
    killed: bool
    """Whether the kernel ended it for its memory"""


class Emulation(Answer):
    """Clients as processes of this machine, beside the simulation."""

    folder: str
    """The folder with the three runs: `simulated`, `emulated`, `replayed`"""
    machine: EmulationHost
    """The machine"""
    calibration: str
    """`works` or `operators`"""
    devices: Annotated[Mapping[str, EmulatedDevice], Keys("DEVICE")]
    """What each device's clients had"""
    client_rounds: Sequence[ClientRound]
    """A row for each client's round"""
    errors: Annotated[Mapping[str, PhaseError], Keys("PHASE")]
    """Errors by phase, of the round, and with measured computing"""
    flights: Sequence[EmulatedFlight]
    """A row for each process in each round"""
