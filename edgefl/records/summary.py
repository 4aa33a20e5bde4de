"""The answer of ``edgefl run --as json``: a run, or the runs of a comparison, summed up from their records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from edgefl import units
from edgefl.records.answer import Answer, SecondsWithin
from edgefl.records.epsilon import PrivacySpent
from edgefl.records.metrics import Metrics
from edgefl.records.record import UNSET, ByKind, Clients, Flights, Keys, Maybe, Record, Rounds, Samples, Share
from edgefl.records.rounds import ClientMetrics, Excluded, RunSums
from edgefl.records.run import BestRecord

Chance = Annotated[Mapping[str, Mapping[str, float]], Keys("KIND.METRIC")]


class RunTotals(RunSums):
    """Sums over all rounds of what happened, and means of a client's round."""

    bytes_per_client_round: float | None
    """Bytes that were carried down and up, by clients that were sent off; `null` if none was"""
    energy_joules_per_client_round: float | None
    """Energy, likewise"""


class StageKind(Record):
    """The clients of a kind in a stage."""

    clients: Clients
    """Registered clients"""
    eligible: Clients
    """Those that fit, the fewest of any round"""
    most_eligible: Clients
    """The most of any round"""
    peak_memory_bytes: int
    """The largest peak of a client's round, as predicted: of those too that don't fit; on a GPU what its allocator
    reserves for it, if that is more"""
    refused_by: Annotated[Mapping[str, Clients], Keys("BUDGET")]
    """The others by binding budget"""
    least_needs: Annotated[Mapping[str, float], Keys("BUDGET")]
    """The least that one of the others needs of the budget that binds it, in the units of verdicts"""
    refused_memory_by: Annotated[Mapping[str, Clients], Keys("LIMIT")]
    """Those refused by memory, by whose word it is: `owner` or `device`"""
    refused_devices: Annotated[Mapping[str, Clients], Keys("DEVICE")]
    """The others by device"""


class StageExcluded(Excluded):
    """What the round of a stage excludes that excludes most samples."""

    of_samples: Samples
    """Samples of all clients in that round"""


class PlayedStage(Record):
    """A stage that was played."""

    stage: int
    """Its number"""
    rounds: Rounds
    """Its rounds"""
    kinds: ByKind[StageKind]
    """Who fits"""
    excluded: StageExcluded
    """What is lost"""


class CostRow(Record):
    """What the rounds of a kind's clients took in a stage."""

    stage: int
    """The stage"""
    part: str | Maybe = UNSET
    """Name of the part; only where a schedule offers several"""
    kind: str
    """The kind"""
    client_rounds: Flights
    """Tasks of the kind's clients in the stage, with any outcome"""
    metered: Flights
    """Those that were measured"""
    peak_memory_bytes: int
    """The largest peak"""
    measured_peak_memory_bytes: int | None
    """The largest measured peak"""
    memory_error: Share | None
    """The largest error of a peak, by absolute value"""
    predicted_flops: float | None
    """Mean of the works' forward and backward FLOPs, whatever was executed of them"""
    measured_flops: float | None
    """Mean of the measured ones"""
    flops_error: Share | None
    """The largest error of FLOPs, by absolute value"""
    carried_download_bytes: float | None
    """Mean of the bytes that crossed the link down"""
    carried_upload_bytes: float | None
    """The same, up"""
    virtual_seconds: float | None
    """Mean time"""
    energy_joules: float | None
    """Mean energy"""


class Participation(Record):
    """How many of some clients could take part, and did."""

    clients: Clients
    """Clients with a verdict"""
    samples: Samples
    """Their private samples"""
    eligible_always: Clients
    """Those that no verdict refused"""
    eligible_ever: Clients
    """Those that a verdict admitted"""
    took_part: Clients
    """Clients whose update arrived"""
    took_part_samples: Samples
    """Their samples"""
    updates: Flights
    """Updates that arrived"""


class RunSummary(Record):
    """One run."""

    label: str
    """Its label in a comparison"""
    scenario: str
    """Name of the scenario"""
    method: str
    """Name of the method"""
    schedule: str
    """Name of the schedule"""
    finished: bool
    """Whether it is finished"""
    rounds: Rounds
    """Rounds that were played"""
    stopped: str | None
    """Why it ended early, as a sentence"""
    best: BestRecord | None
    """The best evaluation; `null` in runs that follow no metric"""
    outcomes: Annotated[Mapping[str, Rounds], Keys("OUTCOME")]
    """Rounds by outcome"""
    diverged_rounds: Sequence[int]
    """Rounds after which the model wasn't finite"""
    flights: Annotated[Mapping[str, Flights], Keys("OUTCOME")]
    """Tasks that ended in the run, by outcome; late and failed ones too"""
    trained: bool
    """Whether clients trained"""
    virtual_seconds: float
    """Virtual time at the end"""
    totals: RunTotals
    """Sums over all rounds"""
    server_flops: int | Maybe = UNSET
    """FLOPs of the server's works but for evaluations; only where it has some"""
    seconds_within: SecondsWithin
    """The factor within which 80 % of published seconds are predicted, either way, by devices that have one"""
    stages: Sequence[PlayedStage]
    """The stages"""
    costs: Sequence[CostRow]
    """Costs of the clients that were sent off, by stage and kind"""
    kinds: ByKind[Participation]
    """Participation by kind"""
    everyone: Participation
    """Participation of all"""
    devices: Annotated[Mapping[str, Participation], Keys("DEVICE")]
    """Participation by device"""
    watched_split: str
    """The split on which `best` and the metric that ends a run early are"""
    metrics_round: int | None
    """The round of the last evaluation"""
    metrics_split: str
    """Its split"""
    metrics: Metrics
    """Its metrics, or those that a finished run reports by `evaluation.reported`"""
    chance: Chance
    """Chance levels on that split"""
    test_samples: ByKind[Samples]
    """Samples of that split"""
    client_metrics_round: int | Maybe = UNSET
    """The round of the last evaluation on the clients' own samples; only where there was one"""
    client_metrics: Sequence[ClientMetrics] | Maybe = UNSET
    """Its groups of clients"""

    best_of_last: Rounds | Maybe = UNSET
    """Each metric is the best of so many last rounds; only in finished runs with `evaluation.reported`"""
    privacy: PrivacySpent | Maybe = UNSET
    """What its rounds have spent; only with noise"""

    @property
    def time_words(self) -> str:
        """The virtual time with its interval: ``47 s, x1.4 either way (80 %)``."""
        within = [units.show_interval(*self.seconds_within.values())] if self.seconds_within else []
        return ", ".join([units.show_seconds(self.virtual_seconds), *within])

    @property
    def score_words(self) -> str:
        """Which score the metrics are, and on which split, in words."""
        if self.best_of_last is UNSET:
            return f"{self.metrics_split} split"
        return f"best of the last {self.best_of_last} rounds, chosen on the {self.metrics_split} split"

    def metrics_on(self, split: str) -> Metrics:
        """The metrics if they are on this split; else none."""
        return self.metrics if self.metrics_split == split else {}


class DeviceClassRow(Record):
    """Clients of a device class, in a comparison."""

    clients: Clients
    """Clients with a verdict"""
    eligible_always: Clients
    """Those that no verdict refused"""
    eligible_ever: Clients
    """Those that a verdict admitted"""
    took_part: Clients
    """Clients whose update arrived"""


class RunRow(Record):
    """A run compared with the others."""

    label: str
    """Its label"""
    eligible_at_hardest_stage: ByKind[Clients]
    """Clients that fit in the stage that admits fewest"""
    eligible_ever: ByKind[Clients]
    """Clients that a verdict admitted"""
    clients: ByKind[Clients]
    """Clients with a verdict"""
    took_part_share: Share
    """Clients whose update arrived"""
    took_part_samples_share: Share
    """Their samples"""
    updates: Flights
    """Updates that arrived"""
    peak_memory_bytes: ByKind[int]
    """The largest of the stages' `peak_memory_bytes`"""
    bytes_per_client_round: float | None
    """Bytes that were carried down and up in a client's round"""
    energy_joules_per_client_round: float | None
    """Energy of a client's round"""
    total_bytes: int
    """Bytes that were carried down and up in all rounds"""
    flops: int
    """FLOPs that were executed in all rounds"""
    virtual_seconds: float
    """Virtual time at the end"""
    devices: Annotated[Mapping[str, DeviceClassRow], Keys("DEVICE")]
    """Participation by device"""
    metrics: Metrics
    """Its metrics that tables show; none if they are on another split than that of the comparison"""
    chance: Chance
    """Their chance levels"""


class Gained(Record):
    """Clients that a run admits in some stage, and the reference in none."""

    clients: Clients
    """How many"""
    of_clients: Clients
    """Of how many"""
    samples: Samples
    """Their private samples"""
    of_samples: Samples
    """Of how many"""
    took_part: Clients
    """Those of them whose update arrived"""
    updates: Flights
    """Their updates"""


class RunComparison(Record):
    """The runs of a comparison side by side."""

    split: str
    """The split on which they are compared"""
    scores: str
    """Which scores they are, in words; empty for those of the last evaluations"""
    rows: Sequence[RunRow]
    """The runs that have played a round"""
    reference: str | Maybe = UNSET
    """The run that the others are compared with; only with two runs or more"""
    gained: Annotated[Mapping[str, Gained], Keys("RUN")] | Maybe = UNSET
    """What others gain over it; only with two runs or more"""


class Summary(Answer):
    """A run or a comparison."""

    folder: str
    """Its folder"""
    finished: bool
    """Whether all of it is finished"""
    runs: Annotated[Mapping[str, RunSummary], Keys("RUN")]
    """Its runs by label"""
    compared: RunComparison | Maybe = UNSET
    """The runs side by side; only of a comparison"""


class SeedFigure(Record):
    """A figure over seeds."""

    mean: float | None
    """Mean over the seeds, in the figure's unit; `null` if a seed has no value"""
    deviation: float | None
    """Standard deviation (n - 1); `null` for one seed"""
    half_width: float | None
    """Half the 95 % confidence interval of the mean, by Student's t"""
    values: Sequence[float | None]
    """Values by seed"""
    diverged: int
    """Seeds whose model diverged"""
    best: bool
    """Whether this is the best row of those with its budgets and ahead of each other one beyond chance: over the seeds
    that these rows share, the paired t test with Holm's adjustment at 5 % and the bootstrap interval of the gap say so.
    A row that lacks a value in one of these seeds takes no part, nor does one with a run without an update"""
