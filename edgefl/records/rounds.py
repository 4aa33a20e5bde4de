"""``rounds.jsonl``: a record per round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from edgefl.records.carbon import CarbonGrams
from edgefl.records.clients import Executed, MeasuredRecord, WorkCost
from edgefl.records.epsilon import PrivacySpent, SecureSums
from edgefl.records.metrics import Metrics
from edgefl.records.record import UNSET, ByKind, Clients, Flights, Keys, Maybe, Record, Samples, Share, always, types_of
from edgefl.records.relays import LastRelay, RelaySums


class PlannedSums(Record):
    """Sums over the works of flights as they were planned, whatever became of them."""

    download_bytes: int
    """Planned: tensors down, summed over the clients' records, and a final delivery. The other bytes down include the
    final delivery too"""
    upload_bytes: int
    """Planned: tensors up, summed over the clients' records"""
    serialised_download_bytes: int
    """Planned: the same as safetensors files with their headers, down"""
    serialised_upload_bytes: int
    """Planned: the same, up"""
    forward_flops: int
    """Planned: forward FLOPs, summed over the clients' records"""
    backward_flops: int
    """Planned: backward FLOPs, likewise"""


PLANNED = tuple(types_of(PlannedSums))
"""Amounts that needn't have happened."""


class EnergySum(Record):
    """Energy of flights."""

    energy_joules: float | None
    """Energy of the clients that landed in this round; `null` on devices of your own"""


class SpentSums(Executed, CarbonGrams, EnergySum):
    """Sums over what flights took."""


class FlightSums(SpentSums, PlannedSums):
    """Sums over the records of flights."""


SUMMED = tuple(name for name, hint in types_of(FlightSums).items() if always(hint))
"""Fields of all flights that are summed in the round's record, and over rounds in the run's totals."""


class RoundCounts(Record):
    """Clients and flights of a round, and the server's time."""

    selected: Clients
    """Clients that were sent off in this round"""
    unavailable: Clients
    """Clients that were asked and weren't ready: offline, with a battery below its reserve, or still under way"""
    finished: Flights
    """Tasks that ended in this round with their update arrived"""
    late: Flights
    """Tasks that were cut off by the round's end or the deadline"""
    failed: Flights
    """Tasks that ended in any other way"""
    server_seconds: float
    """Virtual time of the server's works"""


class RunSums(SecureSums, RelaySums, RoundCounts, SpentSums):
    """What happened in a run's rounds, added up."""


class RoundSums(RunSums, FlightSums):
    """What is added up over a run's rounds."""


class Excluded(Record):
    """What is lost with the clients that don't fit."""

    samples: Samples
    """Samples of the clients that don't fit"""
    lost_classes: Sequence[str] | None
    """Classes that only those clients have; `null` for declared data"""
    lost_modalities: Sequence[str] | None
    """Modalities that only those clients have"""
    modality_samples_share: Annotated[Mapping[str, Share | None], Keys("MODALITY")]
    """Samples of a modality that eligible clients hold"""


class ServerWorkRecord(WorkCost, MeasuredRecord):
    """A work of the server."""

    when: str
    """`before` or `after` the clients, or `evaluate validation`, `evaluate test`"""
    kind: str
    """Kind of the model that is at work"""
    steps: Sequence[str]
    """The [steps](protocol.md#built-in-steps) of its passes"""
    seconds: float
    """Virtual time on the server's device"""


class EarlyStop(Record):
    """Why a run ended before its last round."""

    round: int
    """In the round that ended the run early: its number. Without an early end `stopped` is `null` in runs that follow a
    metric, and missing in others"""
    metric: str | None
    """The metric that ended it, `KIND.NAME`; `null` if
    [`on_round`](../guides/understand-a-run.md#end-a-run-from-python) or epsilon did"""
    value: Share | None
    """Its value in this round, or `null` likewise"""
    reason: str
    """`target`, `patience`, `on_round` or `epsilon`"""
    text: str
    """The reason as a sentence"""


class Distribution(Record):
    """A metric over the clients of a group."""

    clients: Clients
    """Clients with a finite score"""
    mean: Share | None
    """Mean over clients"""
    weighted_mean: Share | None
    """Mean weighted by held-out samples"""
    deviation: Share | None
    """Standard deviation over clients"""
    worst_decile: Share | None
    """Mean of the worst tenth of the clients"""


class ClientMetrics(Record):
    """A group of clients, scored on their own held-out samples."""

    by: str
    """What clients are grouped by: `all`, `eligibility`, `kind`, `device` or `modality`"""
    group: str
    """The group's name: `all`; `eligible`, `left out`; a kind, a device, a modality"""
    clients: Clients
    """Clients that were asked"""
    scored: Clients
    """Those of them that were scored"""
    too_small: Clients
    """Those whose memory can't hold the evaluation"""
    without: Clients
    """Those that hold no sample out"""
    samples: Samples
    """Held-out samples of the scored ones"""
    download_bytes: int
    """Sum over the scored clients' records"""
    serialised_download_bytes: int
    """The same"""
    forward_flops: int
    """The same"""
    energy_joules: float
    """The same"""
    longest_virtual_seconds: float
    """Time of the slowest client"""
    metrics: Annotated[Mapping[str, Distribution], Keys("METRIC")]
    """Each metric over the group's clients"""


class RoundTimes(Record):
    """When a round began and ended."""

    round: int
    """Number of the round, from 1"""
    started_virtual_seconds: float
    """Virtual time at its beginning"""
    virtual_seconds: float
    """How long it lasted, the server's works and evaluation included"""
    finished_virtual_seconds: float
    """Virtual time at its end: the run's clock"""


class RoundCourse(Record):
    """How a round went: who might take part in it, and how the flights ended."""

    stage: int
    """Stage of the schedule, from 1"""
    outcome: str
    """`completed`, `below quorum`, `nobody eligible` or `nobody available`; only a completed round changes the model"""
    clients: ByKind[Clients]
    """Registered clients of each kind that the method lets take part in this round"""
    eligible: ByKind[Clients]
    """Those of them that fit their budgets"""
    samples: ByKind[Samples]
    """Private samples of these clients"""
    eligible_samples: ByKind[Samples]
    """Private samples of the eligible ones"""
    excluded: Excluded
    """What is lost with the clients that don't fit"""
    under_way: Clients
    """Clients that were sent off and have not landed at the round's end"""
    outcomes: Annotated[Mapping[str, Flights], Keys("OUTCOME")]
    """All tasks that ended in this round, by the client's outcome"""
    rejected: Sequence[int]
    """Clients whose update arrived and was refused for what it held"""
    rejections: Annotated[Mapping[str, Flights], Keys("REASON")]
    """Those updates by reason: `not finite` (a NaN or an infinity), `wrong shape`, `wrong dtype`, `truncated` (a tensor
    is missing), `oversized` (a tensor too many), `replayed` (the answer to another task)"""


class Round(LastRelay, RoundCourse, RoundSums, RoundTimes):
    """A round.  Sums are over the flights that ended in it."""

    final_delivery_bytes: int
    """Tensors of a finished stage sent to all clients (`schedule.deliver_final`)"""
    server_works: Sequence[ServerWorkRecord]
    """The server's works, in order"""
    losses: ByKind[float | None]
    """Mean training loss of the updates that arrived, weighted by samples"""
    lr: float | Maybe = UNSET
    """The learning rate of this round, without scaling by batch size; only where
    [`training.lr_schedule`](../concepts/methods/training.md#learning-rates-by-round) varies it"""
    metrics: Metrics
    """Metrics of the evaluation, on the split that the last evaluation in `server_works` names; empty in a round
    without one; `null` if the scores aren't finite"""
    scored_part: int | Maybe = UNSET
    """The number of the part that the evaluation scored: under `heterofl` with several widths the widest that an update
    has reached so far, 1 before any; only in a round with an evaluation"""
    watched: Annotated[Mapping[str, Share | None], Keys("METRIC")] | Maybe = UNSET
    """The metrics that [`stop` and `evaluation.best`](../concepts/evaluation.md#ending-early-and-the-best-weights)
    follow, `KIND.NAME`, on `evaluation.split`; only in runs that follow one"""
    stopped: EarlyStop | Maybe | None = UNSET
    """Why the run ended with this round"""
    diverged: bool
    """Whether weights, scores or all losses of a kind had a NaN or an infinity after this round
    ([what happens then](../concepts/evaluation.md#diverged-models))"""
    client_metrics: Sequence[ClientMetrics] | Maybe = UNSET
    """Groups of clients, scored on their own held-out samples; empty in a round without an evaluation; only with
    `evaluation.clients` ([evaluation](../concepts/evaluation.md#clients-own-samples))"""
    privacy: PrivacySpent | Maybe = UNSET
    """What the rounds so far have spent; only with noise ([privacy](../guides/privacy.md))"""
