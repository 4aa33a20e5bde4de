"""The answer of ``edgefl compare``: runs over their seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from edgefl.records.answer import Answer
from edgefl.records.record import Flights, Keys, Record
from edgefl.records.summary import SeedFigure


class SeedGroupRow(Record):
    """Runs that differ in their seeds only.

    `FIGURE` is a metric or a cost of the whole run: `eligible_share` (clients that fit in the stage that admits
    fewest), `eligible_share_ever` (in any stage), `took_part_share`, `updates`, `peak_memory_bytes` (of the largest
    client, fit or not), and of all clients together what happened: `bytes` that were carried, `flops` that were
    executed, `virtual_seconds`, `energy_joules`.
    """

    label: str
    """Names and fields in which the row differs from the others"""
    sets: Annotated[Mapping[str, object], Keys("PATH")]
    """Its value of each field in which rows differ"""
    seeds: Sequence[int]
    """Seeds of its runs"""
    runs: Sequence[str]
    """Their folders"""
    figures: Annotated[Mapping[str, SeedFigure], Keys("FIGURE")]
    """Metrics and costs"""


class EqualRow(Record):
    """A row at an equal budget."""

    label: str
    """The row"""
    rounds: Sequence[int | None]
    """The round of each seed's evaluation, `null` if there is none within the budget"""
    figures: Annotated[Mapping[str, SeedFigure], Keys("METRIC")]
    """The metrics"""


class EqualCosts(Record):
    """Metrics at equal costs: of a step function of what was spent, the last evaluation within the budget."""

    axis: str
    """`virtual_seconds`, `bytes` or `energy_joules`"""
    budget: float
    """The largest that all runs reached, in the axis's unit"""
    split: str
    """The split of all these evaluations"""
    chance: Annotated[Mapping[str, float], Keys("METRIC")]
    """Chance level of a metric on that split, if it is the same in the first run of each row"""
    rows: Sequence[EqualRow]
    """The rows, in their order"""
    standings: Annotated[Mapping[str, str], Keys("METRIC")]
    """As of whole runs"""


class OrderingFigure(Record):
    """A metric over the seeds that all rows have."""

    mean: float
    """Mean over these seeds"""
    deviation: float
    """Standard deviation"""


class OrderingRow(Record):
    """A row of an ordering."""

    label: str
    """A row"""
    figures: Annotated[Mapping[str, OrderingFigure], Keys("METRIC")]
    """The metrics"""


class OrderingClaim(Record):
    """A pair of rows in one metric."""

    worse: str
    """The row that should be behind"""
    better: str
    """The row that should be ahead"""
    metric: str
    """In this metric"""
    gap: float
    """By how much the better row's mean is better"""
    gap_deviation: float | None
    """Standard deviation of the difference over seeds; null for one seed"""
    low: float | None
    """Lower end of the gap's 95 % interval (Student's t, seeds paired); null for one seed"""
    high: float | None
    """Its upper end"""
    detectable: float | None
    """The gap that these seeds could have shown with 80 % power; null for one seed"""
    seeds_needed: int | None
    """Seeds that show a gap as large as this one with 80 % power; null for one seed, for no gap, and above 10,000"""
    ahead: int
    """Seeds in which the better row is ahead"""
    seeds: int
    """Seeds in all"""
    verdict: str
    """`shown` or `reversed` if neither interval of the gap (Student's t, bootstrap) holds 0, else
    `could not be shown`, or `one seed: could not be shown`"""


class Ordering(Record):
    """Which row is ahead beyond chance.

    Every pair of rows, the worse mean first.  [The rule](../evidence/papers/orderings.md) is in the page about the
    orderings that papers claim.
    """

    title: str
    """What is compared"""
    seeds: Sequence[int]
    """Seeds that all rows have"""
    metrics: Sequence[str]
    """Metrics that all rows have"""
    rows: Sequence[OrderingRow]
    """The rows"""
    claims: Sequence[OrderingClaim]
    """The pairs"""


class RealDevice(Record):
    """Tasks of a device of your own beside the same ones in the simulation, of one kind and stage; means."""

    run: str
    """The folder of the run on real devices"""
    simulated: str
    """The folder of the simulation, which predicted"""
    device: str
    """The device as the scenario calls it"""
    kind: str
    """The clients' kind"""
    stage: int
    """The stage"""
    tasks: Flights
    """Tasks that finished in both runs"""
    predicted_compute_seconds: float
    """Time of computing, simulated"""
    compute_seconds: float
    """The same, measured"""
    predicted_transfer_seconds: float
    """Time of both transfers, simulated"""
    transfer_seconds: float
    """The same, measured, with the transport's own time"""
    start_up_seconds: float
    """Time in which the node's process began; the simulation knows none"""
    peak_memory_bytes: int
    """Predicted peak, the largest"""
    measured_peak_memory_bytes: int | None
    """The allocator's peak, the largest; `null` if none was measured"""


class ComparedRuns(Answer):
    """Runs over their seeds.

    `edgefl run --as json` of a comparison with several seeds has the same under `over_seeds`.
    """

    spread: str
    """What is shown with a mean: `standard deviation`, or `95 % interval` if every row has five seeds or more"""
    metrics: Sequence[str]
    """The runs' metrics, `KIND.NAME`"""
    split: str
    """The split on which rows are compared; a run whose last evaluation was on another one has no metrics"""
    reported: str
    """Which of a run's scores its metrics are: the split of its last evaluation, or what `evaluation.reported` says"""
    chance: Annotated[Mapping[str, float], Keys("METRIC")]
    """Chance level of a metric on that split, if it is the same in the first run of each row"""
    rows: Sequence[SeedGroupRow]
    """A row for each group of runs that differ in their seeds only"""
    standings: Annotated[Mapping[str, str], Keys("METRIC")]
    """Which rows are behind which by the rule of `best`, judged over all pairs where no row is best; and the gaps that
    the seeds could have shown, with 80 % power in a t test at 5 % over the number of gaps that are judged"""
    also_differ: Sequence[str]
    """Fields that differ between rows and that no label has"""
    stopped: Sequence[str]
    """A sentence for each run that
    [a metric or `on_round` ended early](../concepts/evaluation.md#ending-early-and-the-best-weights)"""
    privacy: Sequence[str]
    """What the first run of each row with noise has spent, in words"""
    equal: Sequence[EqualCosts]
    """Metrics at equal costs"""
    orderings: Sequence[Ordering]
    """Which row is ahead beyond chance"""
    real_devices: Sequence[RealDevice]
    """Prediction beside measurement, if a run on [devices of your own](../guides/own-devices.md) and a simulation of
    the same scenario and seed are compared"""
    left_out: Sequence[str]
    """A sentence for each run that isn't compared"""

    @property
    def notices(self) -> list[str]:
        """A line for each run that isn't compared."""
        return [f"left out: {sentence}" for sentence in self.left_out]
