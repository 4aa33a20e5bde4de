"""What is in a page of ``edgefl sweep --page``: what it computes verdicts from, for every client and every cell.

Numbers that there are many of stand in ``columns``, each once; a field of the type Place says which.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from edgefl.records.answer import OfScenario
from edgefl.records.record import UNSET, Clients, Keys, Maybe, Record, Rounds, Unit

Place = str
"""The name of a column in ``FleetSliders.columns``."""


class PackedColumn(Record):
    """Numbers in a row."""

    type: str
    """`u1`, `u2`, `u4`: unsigned integers of so many bytes; `f8`: 64-bit floating point numbers; little-endian"""
    length: int
    """Number of values in the column"""
    data: str
    """The numbers in base64; a single one stands for all"""


class Choice(Record):
    """A value of an axis."""

    label: str
    """What it is called"""
    text: str
    """The value as `--vary` and `--set` take it"""


class SliderAxis(Record):
    """A field of the scenario that the cells differ in."""

    path: str
    """Path of the field"""
    choices: Sequence[Choice]
    """Its values"""
    own: int | None
    """The index of the value that the scenario itself has; `null` if it is none of them"""


class SliderBudget(Record):
    """A budget that can be moved."""

    name: str
    """The budget's name in records and verdicts: `memory`, `flops`, ..."""
    path: str
    """Its field of the scenario"""
    noun: str
    """The budget in sentences: `memory`, `computation`, ..."""
    unit: str
    """Unit of its numbers: `B`, `FLOP`, `s`, `J`, ..."""
    whole: bool
    """Whether it is rounded down to whole numbers"""
    least: float
    """What the cheapest client of all cells takes of it"""
    most: float
    """What the most expensive one takes"""


class NamedDevice(Record):
    """A device of the fleet."""

    name: str
    """The device's name in the library, or its file"""
    title: str
    """The title of its profile"""
    ram_bytes: int
    """Its RAM"""
    runtime_overhead_bytes: int
    """What the runtime takes of it"""
    available_memory_bytes: int
    """What it has for tensors: usable memory less the runtime's overhead"""


class NamedLink(Record):
    """A link of the fleet."""

    name: str
    """The link's name in the library, or its file"""
    title: str
    """The title of its profile"""
    capped: bool
    """Whether caps of bytes count what crosses it"""


class HeldClasses(Record):
    """Which classes clients hold."""

    names: Sequence[str]
    """The classes"""
    width: int
    """Bytes of a row of `held`"""
    held: Place
    """Bit i % 8 (from the lowest) of a row's byte i // 8 is set where its clients hold class i: `[rows x width]`"""


class SliderFleet(Record):
    """Clients, their data, devices and what their owners grant, whatever they are asked to do.

    A row is one client, by its number; of more than 100,000 clients it is several, if no cell tells them apart, with
    the least that one of them is granted.
    """

    clients: Clients
    """Number of clients in the fleet"""
    rows: int
    """Rows of the columns"""
    counts: Place
    """Clients of each row, `[rows]`"""
    kinds: Sequence[str]
    """Kinds of client"""
    kind: Place
    """Index of the kind, `[rows]`"""
    devices: Sequence[NamedDevice]
    """Devices"""
    device: Place
    """Index of the device, `[rows]`"""
    links: Sequence[NamedLink]
    """Links"""
    link: Place
    """Index of the link, `[rows]`"""
    samples: Place
    """Private samples of a client, `[rows]`"""
    granted: Annotated[Mapping[str, Place], Keys("BUDGET")]
    """What owners grant in a round, infinite without limit, `[rows]`; all budgets that are judged, in their order"""
    caps: Annotated[Mapping[str, Place], Keys("CAP")]
    """What owners grant on a day or for all rounds together, infinite without limit, `[rows]`; those that are stated"""
    within_device: bool
    """Whether a memory budget is at most what the device has"""
    classes: HeldClasses | None
    """Classes; `null` for declared data"""


class BudgetShare(Record):
    """A part of what a client takes of a budget in a round."""

    by: str
    """What the column has a number for. `group`: each group `[groups]`; `device`: a group on a device
    `[groups x devices]`; `pair`: a transfer on a device and over a link `[transfers x devices x links]`; `spot`: each
    spot `[spots]`"""
    values: Place
    """The numbers; those of groups that take no part mean nothing"""


class PeakParts(Record):
    """The peak memory of the largest client of a kind."""

    kind: int
    """Index of the kind"""
    group: int
    """Group of the client"""
    batch: int | None
    """Batch size of its first training pass"""
    parts: Annotated[Mapping[str, int], Keys("PART"), Unit("bytes")]
    """The peak by part"""


class Offer(Record):
    """A stage that clients may be given in a turn, and what it costs."""

    stage: int
    """Index of the stage that is trained"""
    part: str | Maybe = UNSET
    """Its name; only where a schedule offers several"""
    takes_part: Place
    """1 for groups that take part, 0 for those that the method leaves out: `[groups]`"""
    transfer: Place
    """Index of what a group downloads and uploads: `[groups]`"""
    costs: Annotated[Mapping[str, Sequence[BudgetShare]], Keys("BUDGET")]
    """What a round takes of each budget of the fleet, in their order: the sum of these terms from left to right. Those
    of seconds and joules are of download, computing and upload"""
    download_bytes: Place
    """Tensors down, `[groups]`"""
    upload_bytes: Place
    """Tensors up, `[groups]`"""
    peaks: Sequence[PeakParts]
    """The peak memory of the largest client of each kind that takes part"""


class Turn(Record):
    """Rounds of a stage in which the same is offered."""

    stage: int
    """The stage"""
    rounds: Rounds
    """Its rounds"""
    offers: Sequence[int]
    """Indices of the offers, best first; a client takes the first that fits, or else the nearest"""


class PricedCell(Record):
    """What the clients of a cell are asked to do, and what it costs.

    Clients of a group cost the same on equal devices and links; a spot has those of a group on one device and link.
    """

    fleet: int
    """Index of the fleet"""
    spot: Place
    """Spot of each row of the fleet, `[rows]`"""
    group: Place
    """Group of each spot, `[spots]`"""
    pair: Place
    """Device and link of each spot, `[spots]`: the device's index times the number of links, plus the link's index"""
    deadline: float | None
    """Seconds that a round may take at most; `null` without a deadline"""
    offers: Sequence[Offer]
    """All offers"""
    turns: Sequence[Turn]
    """The turns of the schedule, in their order"""


class SliderHead(Record):
    """A combination of choices."""

    label: str
    """Changes of this combination, as `sweep` writes them"""
    at: Sequence[int]
    """Index of the choice on each axis"""


class SliderCell(SliderHead):
    """A combination of choices, for every client."""

    refused: str | Maybe = UNSET
    """Why it can't be run; only where it can't"""
    priced: PricedCell | Maybe = UNSET
    """What it costs; only where it can be run"""


class SliderScenario(OfScenario):
    """What was asked for."""

    given: str
    """The scenario as it was named"""
    overrides: Sequence[str]
    """Changes of single fields, as they were given"""
    compares: bool
    """Whether the scenario compares something itself, so that fields are varied in place of being set"""
    edgefl: str
    """Version of edgefl"""
    axes: Sequence[SliderAxis]
    """Fields that cells differ in"""


class FleetSliders(SliderScenario):
    """Every client of a fleet under every combination of choices, as the page has it.

    Budgets are compared in the page, so that they can be moved.
    """

    cells: Sequence[SliderCell]
    """All combinations, the last axis running fastest"""
    start: int
    """Index of the cell that is shown first: the scenario itself, or that of those which can be run with the fewest
    changes"""
    budgets: Sequence[SliderBudget]
    """The budgets that can be moved"""
    fleets: Sequence[SliderFleet]
    """Fleets of the cells, usually one"""
    columns: Annotated[Mapping[str, PackedColumn], Keys("COLUMN")]
    """Numbers of the fields that name a column"""
    predictions: int
    """Different works that were priced"""


# --- devices without a fleet -----------------------------------------------------------------------------------------


class DeviceAnswer(Record):
    """Whether a device can do the round of a kind's largest client in a cell."""

    answer: str
    """`yes`, `no`, `depends on scratch` or `depends on free memory`, as `edgefl sweep --devices` says it"""
    reason: str
    """The verdict as a sentence"""
    binding: str | None
    """The budget with the smallest share left; `null` without budgets"""
    peak_memory_bytes: int
    """Peak memory of the round"""
    virtual_seconds: float
    """The round: download, computation, upload"""
    energy_joules: float
    """Energy of the round"""
    stages: int
    """Stages (turns) that there are"""
    eligible_stages: int
    """Those that fit"""


class DeviceLine(Record):
    """A device and a kind of client."""

    device: int
    """Index of the device"""
    kind: str
    """Kind of client, with its variant where variants cost different things"""


class CheckedCell(SliderHead):
    """A combination of choices, on every device."""

    refused: str | Maybe = UNSET
    """Why it can't be run; only where it can't"""
    answers: Sequence[DeviceAnswer | None]
    """An answer for each line; `null` where the cell can't be run or the method leaves the kind out"""


class DeviceChoices(SliderScenario):
    """The library's devices, and with which choices each can train the scenario."""

    link: str
    """The link that transfers are priced over, or those of the cells: `lte or wifi-5`"""
    devices: Sequence[NamedDevice]
    """Devices of the library, smallest memory first"""
    lines: Sequence[DeviceLine]
    """What is answered for: devices by kinds"""
    cells: Sequence[CheckedCell]
    """All combinations, the last axis running fastest"""
