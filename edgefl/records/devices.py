"""The answers of ``devices list`` and ``devices show``: devices, links, fleets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from edgefl.records.answer import Answer, AtHardest, OfKind, RoundVerdict, Turns
from edgefl.records.record import UNSET, Keys, Maybe, Record, Samples, Share


class Named(Record):
    """A device."""

    device: str
    """The device"""


class DeviceCheckRow(Turns, RoundVerdict, AtHardest, OfKind, Named):
    """A device and the kind's largest client, at the stage that is hardest on it.

    The verdict is that of the owner whose budgets leave the least.
    """

    link: str
    """The link"""
    samples: Samples
    """Samples of the kind's largest client, which the row is about"""
    answer: str
    """Whether the round fits the budgets of every owner: `yes`, `no`, `depends on scratch` (live memory fits, the peak
    doesn't, and its scratch is assumed), or `depends on free memory` (the peak lies between the least and the most
    that the device is believed to have for tensors)"""
    owners: int
    """Clients of the kind, with whose owners' budgets the round was compared"""
    fitting_owners: int
    """Those whose budgets it fits on this device"""
    available_memory_bytes: int
    """What the device has for tensors: usable memory less the runtime's overhead"""
    least_available_bytes: int
    """The least that this is believed to be, by the ranges of both"""
    most_available_bytes: int
    """The most"""
    least_memory_bytes: int
    """The least of that and what an owner grants on this device"""
    most_memory_bytes: int
    """The same of the owner with the most"""
    throttling_seconds: float
    """What throttling adds to the round on this device, whether or not `virtual_seconds` has it"""


class DeviceCheck(Answer):
    """The devices of the library against the largest client of each kind.

    A device fits if the round fits the memory that it has for tensors, the deadline, and the budgets of every owner.
    """

    scenario: str
    """Name of the scenario"""
    link: str
    """Link of all rows"""
    throttling: bool
    """Whether times have throttling: `fleet.throttling`"""
    runtime: str | int
    """What takes memory beside tensors: `fleet.runtime`, a name or bytes"""
    compared: Sequence[str] | Maybe = UNSET
    """Fields that the scenario compares, of which these rows have the values outside of `compare`"""
    rows: Sequence[DeviceCheckRow]
    """A device and a kind, smallest memory first"""
    predictions: int
    """Different works that were priced, each once for all devices"""


class DeviceChecks(Answer):
    """Several scenarios against the library's devices: `edgefl devices check A.yaml B.yaml`."""

    checks: Annotated[Mapping[str, DeviceCheck], Keys("LABEL")]
    """The answer for each scenario by its name, or by its file where two have the same name"""


# --- the library -----------------------------------------------------------------------------------------------------


class Sourced(Record):
    """Where a number or a fleet is from."""

    title: str
    """Document, page or paper that has the figure"""
    url: str | None
    """Its address; `null` if it has none"""
    date: str
    """The day on which it was read; with `read: false`, on which the figure was written down"""
    quote: str
    """The figure with its unit, its place in the source, and any derivation"""
    read: bool
    """Whether the writer opened the source on that day"""


class Number(Record):
    """One number of a profile in its base unit."""

    value: float
    """The number"""
    low: float
    """The least that it is believed to be"""
    high: float
    """The most"""
    confidence: str
    """`measured` on this device, `datasheet` of the manufacturer, `fitted` to published seconds, or `estimated`"""
    source: Sourced
    """Its source"""


Numbers = Annotated[Mapping[str, Number], Keys("NUMBER")]
Derived = Annotated[Mapping[str, float], Keys("FIGURE")]
Shares = Annotated[Mapping[str, Share], Keys("NAME")]


class ProfileHead(Record):
    """What a profile is of."""

    profile: str
    """`device`, `link` or `fleet`"""
    name: str
    """Its name in the library, or that of its file"""
    title: str
    """What it is"""


class RestsOn(Record):
    """What the seconds of a device rest on."""

    processor: str
    """The class of its processor"""
    of: str
    """The device, if it has published rows; else the class, or `cpu` or `gpu` if the class has none"""
    runtime: str | None
    """Runtime of the published rows (`pytorch 1.13`); `null`: of several"""
    rows: int
    """Published rows of seconds"""
    devices: int
    """Devices that the rows are of"""
    error: float
    """The factor exp(sqrt(mean(log(predicted / measured)²))) of rows that a fit without them predicts"""


class DeviceTypeRecord(Record):
    """What sort of device it is."""

    type: str
    """`microcomputer`, `accelerator-board`, `mini-pc`, `laptop`, `desktop`, `phone` or `server`"""
    twin: str | None
    """A published list or data sheet that prints the same numbers"""
    modes: Sequence[str]
    """Its power modes, each a device `NAME@MODE`"""


class DeviceFigures(Record):
    """Numbers with their sources, and what follows from them."""

    values: Numbers
    """A number of the profile"""
    derived: Derived
    """A figure that is computed from the numbers, in base units; those that it doesn't have are left out"""


class LinkProfile(DeviceFigures, ProfileHead):
    """A link of the library or of a file."""


class DeviceProfile(DeviceFigures, DeviceTypeRecord, ProfileHead):
    """A device of the library or of a file."""

    rests_on: RestsOn | None
    """What its seconds rest on; `null` for a profile that names no class of processors"""
    metered: int
    """Published figures of watts or joules while the device trained; 0: it was never held against a meter"""


class FleetSheet(ProfileHead):
    """A fleet of the library or of a file."""

    confidence: str
    """`measured`, `datasheet` or `estimated`"""
    source: Sourced
    """Its source"""
    fields: Annotated[Mapping[str, object], Keys("FIELD")]
    """Its fields as written"""
    devices: Shares
    """Share of clients with each device"""
    links: Shares
    """Share of clients with each link"""
    derived: Derived
    """The least RAM, and the mean rate and power over clients"""


class BrokenPart(Record):
    """Something that is left out because it is broken."""

    part: str
    """What it is"""
    name: str
    """Its name"""
    message: str
    """What is wrong with it"""


class Library(Answer):
    """The profiles that pass every filter; a section that wasn't asked for is absent."""

    devices: Sequence[DeviceProfile] | Maybe = UNSET
    """A device"""
    links: Sequence[LinkProfile] | Maybe = UNSET
    """A link"""
    fleets: Sequence[FleetSheet] | Maybe = UNSET
    """A fleet"""
    broken: Sequence[BrokenPart] | Maybe = UNSET
    """What is left out because it is broken; absent if nothing is"""

    @property
    def said(self) -> list[str]:
        """A line for each profile or library that is left out."""
        return [f"left out: {each.message}" for each in self.broken or ()]
