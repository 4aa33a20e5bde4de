"""The answers of ``edgefl profile --clients`` and ``edgefl devices``: clients of a fleet, devices, links."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from edgefl.records.profile import AtStage, OfKind, Refused
from edgefl.records.record import UNSET, Keys, Maybe, Record, Samples


class AtHardest(AtStage):
    """What is done at the hardest stage: the one that leaves the smallest share of a budget."""

    batch: Samples | None
    """Batch size of the first training pass"""
    peak_memory_bytes: int
    """Peak memory of the round"""
    flops: int
    """Computation of the round, forward and backward"""
    download_bytes: int
    """Tensor bytes received"""
    upload_bytes: int
    """Tensor bytes sent"""


class Eligible(Record):
    """Whether clients may take part."""

    eligible: bool
    """Whether the round fits all budgets"""
    binding: str | None
    """The budget with the smallest share left: memory, flops, bytes, seconds, joules, or another that the scenario
    states; `null` without budgets"""
    reason: str
    """The verdict as a sentence"""


class Judged(Eligible):
    """The verdict on a round that was priced."""

    virtual_seconds: float
    """The round: download, computation, upload"""
    energy_joules: float
    """Energy of the round"""
    memory_limit: str | None
    """Whose word the memory budget is: `owner`, `device`, or `null`"""
    margin: float | None
    """What is left of the binding budget, in its unit; below 0 what it lacks"""
    budget: float | None
    """The binding budget, in its unit"""


class Turns(Record):
    """In how many stages clients may take part."""

    stages: int
    """Stages that there are for the client (turns, where a schedule offers other parts in turn)"""
    eligible_stages: int
    """Those in which it is eligible"""


class Numbered(Record):
    """A client."""

    client: int
    """Number of the client, from 0"""


class FleetClient(OfKind, Numbered):
    """A client of the fleet; it has its variant where the method has variants."""

    samples: Samples
    """Its private samples"""
    device: str
    """Its device"""
    link: str
    """Its link"""


class LeftOutClient(Turns, Eligible, FleetClient):
    """A client that the method leaves out, which costs nothing."""


class ClientRow(Turns, Judged, AtHardest, FleetClient):
    """Costs of a client that holds all frozen parameters, without jitter.

    A client that the method leaves out has none: its fields end with `eligible`, `binding`, `reason`, `stages` and
    `eligible_stages`.
    """


class ClientRows(Record):
    """The clients of one scenario or combination."""

    rows: Sequence[ClientRow | LeftOutClient]
    """A client"""


class FleetClients(ClientRows):
    """A row for each client of the fleet, at the stage that is hardest for it (`edgefl.profile_clients`)."""

    scenario: str
    """Name of the scenario"""
    combinations: Annotated[Mapping[str, ClientRows], Keys("LABEL")] | Maybe = UNSET
    """If the scenario compares: `rows` of each combination"""
    refused: Refused | Maybe = UNSET
    """Why a combination can't be run; absent if all can"""

    @property
    def parts(self) -> Mapping[str, ClientRows]:
        """The clients of each combination by its label, or by the scenario's name those of one that has none."""
        return self.combinations or {self.scenario: self}


class Named(Record):
    """A device."""

    device: str
    """The device"""


class DeviceRow(Turns, Judged, AtHardest, OfKind, Named):
    """A device and the kind's largest client, at the stage that is hardest on it."""

    link: str
    """The link"""
    samples: Samples
    """Samples of the kind's largest client, which the row is about"""
    available_memory_bytes: int
    """What the device has for tensors: usable memory less the runtime's overhead"""
    throttling_seconds: float
    """What throttling adds to the round on this device, whether or not `virtual_seconds` has it"""


class DeviceCheck(Record):
    """The devices of the library against the largest client of each kind.

    A device fits if the round fits the memory that it has for tensors, the deadline, and the tightest of the owners'
    other budgets.
    """

    scenario: str
    """Name of the scenario"""
    link: str
    """Link of all rows"""
    throttling: bool
    """Whether times have throttling: `fleet.throttling`"""
    rows: Sequence[DeviceRow]
    """A device and a kind, smallest memory first"""
