"""The answers of ``devices list`` and ``devices show``: devices, links, fleets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from edgefl.records.answer import Answer
from edgefl.records.record import UNSET, Keys, Maybe, Record, Share

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


class ProfileHead(Answer):
    """What a profile is of."""

    profile: str
    """`device`, `link` or `fleet`"""
    name: str
    """Its name in edgefl, or that of its file"""
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
    within: float
    """80 % of published rows lie within this factor, either way, of what a fit without them predicts"""


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
    """A link that edgefl has, or of a file."""

    trace: str | None
    """What its trace has, in words; `null` for a link whose rates stay"""


class DeviceProfile(DeviceFigures, DeviceTypeRecord, ProfileHead):
    """A device that edgefl has, or of a file."""

    rests_on: RestsOn | None
    """What its seconds rest on; `null` for a profile that names no class of processors"""
    metered: int
    """Published figures of watts or joules while the device trained; 0: it was never compared with a meter"""


class FleetSheet(ProfileHead):
    """A fleet that edgefl has, or of a file."""

    confidence: str
    """`measured`, `datasheet` or `estimated`"""
    sources: Annotated[Mapping[str, Sourced], Keys("FIELD")]
    """The source of a field; its title is `Own estimate` where nobody published a figure"""
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
    def notices(self) -> list[str]:
        """A line for each profile or library that is left out."""
        return [f"left out: {each.message}" for each in self.broken or ()]
