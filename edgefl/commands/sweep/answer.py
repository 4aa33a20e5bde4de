"""The answer of ``edgefl sweep``: what each combination of varied fields costs, and who can take part in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Annotated, Any

from edgefl.records.answer import AtHardest, OfKind, OfScenario, RoundVerdict, Turns
from edgefl.records.eligibility import Coverage, LostData
from edgefl.records.reading import from_data
from edgefl.records.record import UNSET, ByKind, Clients, Keys, Maybe, Record, Rounds, Samples, Share, Unit, types_of

ByBudget = Annotated[Mapping[str, Clients], Keys("BUDGET"), Unit("clients")]
ByLimit = Annotated[Mapping[str, Clients], Keys("LIMIT"), Unit("clients")]
ByModality = Annotated[Mapping[str, Share], Keys("MODALITY"), Unit("share")]


# --- rows ------------------------------------------------------------------------------------------------------------


class Refusals(Record):
    """Who doesn't fit, and what the largest client needs."""

    refused_by: ByBudget
    """Clients that don't fit (at the hardest stage), counted by their binding budget"""
    refused_memory_by: ByLimit
    """Those of them that memory refuses, by whose word their budget is: `owner` or `device`"""
    peak_memory_bytes: int
    """Highest peak of all clients; on a GPU what its allocator reserves for it, if that is more"""


class RoundTime(Record):
    """The time of a round."""

    round_seconds: float | None
    """Time of a round: of its slowest eligible client, mean over the rounds; `null` without any"""


class MeanRound(Record):
    """Means of an eligible client's round; `null` without any."""

    download_bytes: float | None
    """Mean of a client's round: tensors down"""
    upload_bytes: float | None
    """The same: tensors up"""
    flops: float | None
    """The same: forward and backward"""
    energy_joules: float | None
    """The same: energy"""

    @property
    def traffic_bytes(self) -> float | None:
        """Tensors both ways."""
        if self.download_bytes is None or self.upload_bytes is None:
            return None
        return self.download_bytes + self.upload_bytes


class SweepGroup(MeanRound, RoundTime, Refusals, Coverage):
    """Clients of one stage: all, or those of a kind, also those that the method leaves out."""

    clients: Clients
    """Clients, also those that the method leaves out"""
    eligible: Clients
    """Those that fit their budgets"""
    eligible_share: Share
    """Their share of all"""


class StageGroup(SweepGroup):
    """All clients at one stage."""

    stage: int
    """Stage of the schedule"""
    rounds: Rounds
    """Its rounds"""
    kinds: ByKind[SweepGroup]
    """The same by kind"""


class Merits(RoundTime):
    """The figures by which cells are compared."""

    eligible_share: Share
    """Clients that fit their budgets, mean over the rounds"""
    schedule_seconds: float
    """Sum of the rounds' times"""
    schedule_client_rounds: float
    """Places that eligible clients fill in all rounds"""
    schedule_download_bytes: float
    """Sum over these places: tensors down"""
    schedule_upload_bytes: float
    """The same: tensors up"""
    schedule_bytes: float
    """The same: both ways"""
    schedule_flops: float
    """The same: forward and backward"""
    schedule_energy_joules: float
    """The same: energy"""


class CapRounds(Record):
    """For how many rounds a cap of `fleet.budgets` lasts, of the clients that ever fit and have it."""

    least_rounds: Rounds
    """Rounds for which it lasts, if the client takes part in each: the least of them; of a daily cap on a day of the
    hardest stage that the client fits"""
    median_rounds: Annotated[float, Unit("rounds")]
    """The same: the median"""
    expected_rounds: Annotated[float, Unit("rounds")] | Maybe = UNSET
    """Rounds in which such a client takes part, on average; of a cap for all rounds"""
    lasting_share: Share | Maybe = UNSET
    """Those of these clients whose cap is enough for that; of a cap for all rounds"""


class TrainedCell(Record):
    """What the run of a combination gave."""

    rounds: Rounds
    """Rounds that were played"""
    outcomes: Annotated[Mapping[str, Rounds], Keys("OUTCOME"), Unit("rounds")]
    """Rounds by their outcome"""
    virtual_seconds: float
    """Virtual time at the end"""
    updates: int
    """Updates that arrived"""
    carried_download_bytes: int
    """Bytes that crossed the clients' links, down"""
    carried_upload_bytes: int
    """The same, up"""
    energy_joules: float
    """Energy"""
    clients_that_took_part: Clients
    """Clients of which an update arrived"""
    metrics_round: int | None
    """Round of the last evaluation"""
    metrics_split: str | None
    """Its split; the row has no metrics where that isn't `evaluation.final`"""
    diverged: str | Maybe = UNSET
    """Where the model diverged, if it did"""


class CellCosts(Merits, MeanRound, Refusals, LostData):
    """What a combination costs.

    Costs are without jitter, and of clients that hold all frozen parts already. A mean is over eligible clients and
    rounds.
    """

    clients: Clients
    """Registered clients"""
    rounds: Rounds
    """Rounds of the schedule"""
    fewest_rounds: Rounds | Maybe = UNSET
    """The fewest, if each stage ends as soon as it may; only of a schedule that ends its stages by what a run learns"""
    least_schedule_bytes: float | Maybe = UNSET
    """`schedule_bytes` of these rounds"""
    eligible_share_ever: Share
    """Clients that fit in some stage"""
    eligible_share_at_hardest_stage: Share
    """Clients that fit in the stage that fewest fit"""
    eligible_share_ever_by_kind: ByKind[Share]
    """`eligible_share_ever` of each kind"""
    eligible_samples_share: Share
    """Samples that eligible clients hold, mean over the rounds"""
    eligible_samples_share_ever: Share
    """Samples of clients that fit in some stage"""
    class_coverage_ever: Share | None
    """Classes of which such a client holds a sample; `null` for declared data"""
    modality_samples_share_ever: ByModality
    """Samples of a modality that clients hold which fit in some stage"""
    empty_rounds: Rounds
    """Rounds in which no client fits"""
    hardest_stage: int
    """The stage that fewest fit"""
    caps: Annotated[Mapping[str, CapRounds | None], Keys("CAP")] | Maybe = UNSET
    """With caps in `fleet.budgets`, by their names; `null` if no client that has one ever fits"""
    stages: Sequence[StageGroup]
    """The same by stage"""


class CellHead(Record):
    """A combination of the varied fields."""

    label: str
    """Name of the combination"""
    sets: Annotated[Mapping[str, object], Keys("PATH")] = field(default_factory=dict)
    """For each axis, under its path (`training.batch`) in the row itself: the value of that field, a list as JSON text;
    of an axis of mappings each field that differs (`schedule.stages`)"""
    method: str
    """Its method"""
    schedule: str
    """Its schedule"""

    def to_data(self) -> dict[str, Any]:
        """The row as JSON data, in which the varied fields stand under their paths."""
        found = super().to_data()
        return {"label": found.pop("label"), **found.pop("sets"), **found}

    if not TYPE_CHECKING:  # as in Record

        def __getitem__(self, name: str) -> Any:
            return self.sets[name] if name in self.sets else super().__getitem__(name)


class CellRow(CellCosts, CellHead, maybe=(CellCosts,)):
    """A combination: its costs, and with `--train` what its run gave; or why it can't be run."""

    refused: str | Maybe = UNSET
    """Why the combination can't be run; only then, and the row has its label, varied fields, method and schedule alone
    """
    metrics: Annotated[Mapping[str, Mapping[str, float | None]], Keys("KIND.METRIC")] | Maybe = UNSET
    """With `--train`: [metrics](records.md#metrics) of the last evaluation"""
    trained: TrainedCell | Maybe = UNSET
    """With `--train`: the run"""


def read_cell(row: Mapping[str, object], where: object) -> CellRow:
    """The row of a sweep from its JSON data.  Raises RunError with ``where`` if it isn't one."""
    sets = {name: value for name, value in row.items() if name not in types_of(CellRow)}
    if "refused" not in row:
        from_data(CellCosts, row, where)  # which a row without a reason has whole
    return from_data(CellRow, {**row, "sets": sets}, where)


# --- what is compared ------------------------------------------------------------------------------------------------


class FrontierPoint(Record):
    """A row of the method that no other row beats in both eligible share and cost."""

    label: str
    """The row"""
    eligible_share: Share
    """Its eligible share"""
    schedule_bytes: float | Maybe = UNSET
    """Its cost, if that is the traffic of the schedule"""
    schedule_seconds: float | Maybe = UNSET
    """If that is the time"""
    schedule_energy_joules: float | Maybe = UNSET
    """If that is the energy"""


class Frontier(Record):
    """Rows of a method against one cost."""

    frontier: Sequence[FrontierPoint]
    """The rows that no other row beats, cheapest first"""
    dominated: Annotated[Mapping[str, str], Keys("LABEL")]
    """For a row that is beaten, one that beats it"""


class MethodFrontier(Record):
    """The rows of a method that no other row beats in both eligible share and a cost."""

    schedule_bytes: Frontier
    """Against the traffic of the schedule"""
    schedule_seconds: Frontier
    """Against the time of the schedule"""
    schedule_energy_joules: Frontier
    """Against the energy of the schedule"""
    nobody: Sequence[str]
    """Rows in which no client can take part"""


class Change(Record):
    """An error in the numbers of devices and links."""

    number: str
    """The number of the profiles that is multiplied or divided; `all better` or `all worse`: all numbers at once"""
    where: str
    """In which profile, or `everywhere`"""
    factor: float
    """By how much"""


class FigureOrder(Record):
    """How the order of the rows by one figure changes."""

    survives: bool
    """Whether no pair of rows changes places"""
    pairs: int
    """Pairs of rows"""
    pairs_that_flip: int
    """Pairs that change places under some change, the random draws left out"""
    lowest_tau: float | None
    """Lowest Kendall's tau-b over those changes"""
    lowest_tau_by: Change | None
    """The change that gives it; `null` if the order stays"""
    drawn_lowest_tau: float | None
    """Lowest tau-b over the draws"""
    drawn_unchanged_share: Share
    """Draws in which no pair changes places"""
    drawn_same_best_share: Share
    """Draws in which at least one of the best rows stays among the best"""


class Flip(Record):
    """A pair of rows that changes places."""

    figure: str
    """Figure in which a pair changes places; at most 100 pairs for each figure"""
    better: str
    """The row that was better"""
    worse: str
    """The row that was worse"""
    by: Sequence[Change]
    """The changes under which they change places"""


class Sensitivity(Record):
    """How the order of the rows changes when numbers of devices and links are multiplied or divided by a factor.

    `FIGURE` is `eligible_share`, `round_seconds`, `schedule_seconds` or `schedule_energy_joules`. The folder of
    `--out` has the same data in `sensitivity.json`.
    """

    factor: float
    """By how much a number is multiplied and divided"""
    residuals: Annotated[Mapping[str, float], Keys("DEVICE")] | Maybe = UNSET
    """The factor of a device's rates and seconds per operator; absent without `--sensitivity residuals`"""
    cells: Sequence[str]
    """Labels of the rows"""
    figures: Annotated[Mapping[str, FigureOrder], Keys("FIGURE")]
    """The order by each figure"""
    draws: int
    """Number of random draws, each of which changes every number"""
    flips: Sequence[Flip]
    """Pairs of rows that change places"""


# --- devices in place of the fleet -----------------------------------------------------------------------------------


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


class DeviceCheck(Record):
    """Devices against the largest client of each kind.

    A device fits if the round fits the memory that it has for tensors, the deadline, and the budgets of every owner.
    """

    scenario: str
    """Name of the scenario"""
    sets: Annotated[Mapping[str, object], Keys("PATH")]
    """For each axis the value of that field, as in `rows`"""
    link: str
    """Link of all rows"""
    throttling: bool
    """Whether times have throttling: `fleet.throttling`"""
    runtime: str | int
    """What takes memory in addition to tensors: `fleet.runtime`, a name or bytes"""
    rows: Sequence[DeviceCheckRow]
    """A device and a kind, smallest memory first"""
    predictions: int
    """Different works that were priced, each once for all devices"""


# --- the answer ------------------------------------------------------------------------------------------------------


class Sweep(OfScenario):
    """What each combination of varied fields costs, and who can take part in it.

    `sweep.jsonl` in the folder of `--out` has the rows, one a line, with `scenario_digest`, a hash of the scenario
    and its profiles. `sweep.csv` has them as a table; nested fields are joined by dots,
    `stage2.kinds.image.eligible_share`.
    """

    axes: Sequence[str]
    """Paths of the fields that vary"""
    rows: Sequence[CellRow]
    """A row for each combination; with `--devices` alone, which doesn't price the fleet, of those that can't be run"""
    frontier: Annotated[Mapping[str, MethodFrontier], Keys("METHOD")]
    """The rows that no other row beats; empty for a shard"""
    devices: Annotated[Mapping[str, DeviceCheck], Keys("LABEL")] | Maybe = UNSET
    """With `--devices`: the answers of each combination that can be run"""
    page: str | Maybe = UNSET
    """With `--page`: the file"""
    sensitivity: Sensitivity | Maybe = UNSET
    """With `--sensitivity`: whether the order of the rows stays when device and link numbers are wrong"""
    predictions: int
    """Different works that were priced for rows that weren't there already: combinations that differ only in devices,
    links, budgets, learning rates or the number of batches have the same"""

    @property
    def costed_cells(self) -> list[CellRow]:
        """The rows of combinations that can be run."""
        return [row for row in self.rows if not row.refused]

    @property
    def refused_cells(self) -> list[CellRow]:
        """The rows of those that can't."""
        return [row for row in self.rows if row.refused]

    @property
    def notices(self) -> list[str]:
        """Where the page is."""
        return [f"page: {self.page}"] if self.page else []

    def named_values(self, labels: Sequence[str]) -> tuple[list[str], list[list[str]]]:
        """Short titles of the axes, and each label's values in words; the labels whole where those don't match."""
        titles = [axis.removesuffix(".name").rpartition(".")[2] for axis in self.axes]
        values = [[part.partition("=")[2] or part for part in label.split(",")] for label in labels]
        if len(set(titles)) < len(titles) or any(len(each) != len(titles) for each in values):
            return [""], [[label] for label in labels]
        return titles, values

    def to_data(self) -> dict[str, Any]:
        """The answer as JSON data; each row has the varied fields under their paths."""
        return {**super().to_data(), "rows": [row.to_data() for row in self.rows]}

    def _repr_html_(self) -> str:
        from edgefl.commands.sweep.table import print_sweep
        from edgefl.drawing.text_tables import html_of

        return html_of(print_sweep, self)
