"""The answer of ``edgefl profile``: what clients and the server cost, predicted and measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from edgefl.records.answer import (
    AtHardest,
    BudgetedRound,
    OfKind,
    OfScenario,
    OfStage,
    Refused,
    RoundVerdict,
    RuntimeRange,
    Turns,
)
from edgefl.records.clients import ExchangeRecord
from edgefl.records.record import UNSET, ByKind, Keys, Maybe, Record, Rounds, Samples, Share, Unit

ByPart = Annotated[Mapping[str, int], Keys("PART")]
ByClass = Annotated[Mapping[str, float], Keys("CLASS"), Unit("s")]
ByPayload = Annotated[Mapping[str, int], Keys("PAYLOAD")]


# --- what several rows have ------------------------------------------------------------------------------------------


class StretchRecord(Record):
    """Rounds of one stage that cost the same."""

    stage: int
    """Stage of the schedule"""
    first_round: int
    """First of the rounds that cost the same"""
    rounds: Rounds
    """How many these are"""


class Peaks(Record):
    """The highest moments of memory."""

    peak_memory_bytes: int
    """Live tensors and kernels' scratch at the highest moment"""
    live_memory_bytes: int
    """Live tensors at their highest moment"""


class Process(Peaks):
    """Memory by part, and what a process takes beside it."""

    memory_bytes: ByPart
    """The highest moment by part: `parameters`, `gradients`, `optimizer`, `activations`, `buffers`, `inputs`,
    `received`, `reference`, `outputs`, `temporaries`, `scratch`"""
    runtime_overhead_bytes: int
    """What the runtime takes on the device: Python and torch, or `fleet.runtime`"""
    reserved_memory_bytes: int | Maybe = UNSET
    """The least that a GPU's allocator must be able to reserve for live tensors, in whole segments; absent on a CPU"""
    process_memory_bytes: int
    """Overhead and the peak, or what a GPU's allocator reserves if that is more"""


class FlopsColumns(Record):
    """Computation."""

    forward_flops: float
    """Forward FLOPs: 2 x MAC of matrix products and convolutions"""
    backward_flops: float
    """Backward FLOPs, likewise"""

    @property
    def flops(self) -> float:
        """Forward and backward together."""
        return self.forward_flops + self.backward_flops


class Computed(FlopsColumns):
    """Computation, also in fvcore's convention."""

    fvcore_macs: float
    """MACs in fvcore's convention ([FLOPs](../concepts/flops-and-bytes.md#flops-and-macs))"""


class Moved(Record):
    """Tensors that travel."""

    download_bytes: float
    """Tensors that travel down"""
    upload_bytes: float
    """Tensors that travel up"""


class TrafficColumns(Moved):
    """Tensors that travel, by payload and by part, and as files."""

    download_bytes_by_payload: ByPayload
    """Tensors down by payload"""
    upload_bytes_by_payload: ByPayload
    """Tensors up by payload"""
    download_bytes_by_part: ByPart
    """Tensors down by part of the model: `embedding`, `blocks`, `norm`, `rep`, `head`, `pooler`, `buffers`, `tables`"""
    upload_bytes_by_part: ByPart
    """The same, up"""
    serialised_download_bytes: int
    """Tensors down as safetensors files with their headers, which a link carries"""
    serialised_upload_bytes: int
    """The same, up"""


class Spent(Record):
    """Time and energy."""

    virtual_seconds: float
    """Time of download, computation and upload together"""
    energy_joules: float
    """Energy of all three"""


class OnDevice(Record):
    """What prices a row."""

    device: str
    """The device that prices the row"""
    link: str
    """The link that prices the row"""


# --- profile ---------------------------------------------------------------------------------------------------------


class ProfileRow(OnDevice, Spent, TrafficColumns, Computed, Process, OfStage):
    """One client's round, by stage and kind, without jitter.

    It is the client of the kind with the most samples, and it holds all frozen parts already.
    """

    rounds: Rounds
    """Rounds of the stage in which the kind takes part"""
    fewest_rounds: Rounds | Maybe = UNSET
    """The fewest after which the stage may end; only of a schedule that ends its stages by what a run learns"""
    fvcore_macs_per_sample: float
    """One sample in one local epoch, in fvcore's convention"""
    download_seconds: float
    """Time of the download"""
    compute_seconds: float
    """Time of reading the model from storage and computing"""
    compute_seconds_by_class: ByClass
    """The same without throttling by class of operator (`product`, `convolution`, `attention`, ...), and `loading` the
    model and `launches` that a GPU waits for; classes that take no time are left out"""
    upload_seconds: float
    """Time of the upload"""
    memory_assumed: bool
    """Whether the scratch at the peak is assumed; the lower end of the range is then `live_memory_bytes`"""
    runtime: RuntimeRange | Maybe = UNSET
    """What `runtime_overhead_bytes` rests on; absent if the scenario states the bytes"""
    exchange: ExchangeRecord | Maybe = UNSET
    """What is exchanged with the server's half of the model; only under `split`"""
    host_memory_bytes: int | Maybe = UNSET
    """Optimizer's states in the memory of the GPU's host, in addition to the peak; absent unless they are offloaded"""
    available_memory_bytes: int
    """What the device can give to tensors: its usable memory less the overhead, at least 0"""
    samples: Samples
    """Private samples of the client"""
    throttling_seconds: float
    """What throttling adds to the round's computation on this device: 0 if it doesn't get hot"""
    throttling_included: bool
    """Whether `compute_seconds` has them: with `fleet.throttling: true`"""


class TotalsRow(Spent, TrafficColumns, Computed, OfKind):
    """The same client over all rounds of its kind: sums over these rounds."""

    rounds: Rounds
    """Rounds in which the kind takes part"""
    fewest_rounds: Rounds | Maybe = UNSET
    """The fewest, if each stage ends as soon as it may; only of a schedule that ends its stages by what a run learns"""
    least_traffic_bytes: int | Maybe = UNSET
    """`traffic_bytes` of these rounds"""
    sample_epsilon: float | Maybe = UNSET
    """Epsilon of a sample of the kind's client with the fewest, at `training.private.delta`: for one sample more or
    less, and Poisson batches that are cut off ([DP-SGD](../guides/private-clients.md)); only with a delta"""
    peak_memory_bytes: int
    """Highest peak of all rounds"""
    fvcore_macs_per_sample_all_rounds: float
    """MACs of one sample in every local epoch of every round"""
    traffic_bytes: int
    """Tensors, both ways; down with frozen parts that became newer"""
    serialised_traffic_bytes: int
    """The same with headers"""


class ServerRow(Computed, Process, StretchRecord):
    """The server's works, one execution of each."""

    kind: str
    """Kind of the model that is at work"""
    when: str
    """`before` or `after` the clients, or `evaluate SPLIT`"""
    steps: Sequence[str]
    """The [steps](protocol.md#built-in-steps) of its passes"""
    compute_seconds: float
    """Time on the server's device"""
    energy_joules: float
    """Energy of the server's device"""
    device: str
    """The server's device"""

    @property
    def evaluates(self) -> bool:
        """Whether the work is an evaluation."""
        return self.when.startswith("evaluate")


class RoundCost(Moved, Computed):
    """What a round costs all clients of a kind, or all clients and the server."""


class RoundTotals(RoundCost, StretchRecord):
    """The expected cost of one round of all selected clients and the server, without evaluation.

    For each kind it is the number of clients that a round selects, times the mean over all clients of the kind,
    eligible or not.
    """

    selected: Annotated[Mapping[str, float], Keys("KIND"), Unit("clients")]
    """Clients of each kind that a round selects"""
    by_kind: ByKind[RoundCost]
    """The part of each kind, and of `server`"""


class ClientEvaluationRow(OnDevice, Spent, FlopsColumns, Peaks, OfStage):
    """One client's [evaluation on its own held-out samples](../concepts/evaluation.md#clients-own-samples).

    It is the client of the kind with the most held-out samples, and it holds all frozen parts already.
    """

    samples: Samples
    """Held-out samples of the client"""
    download_bytes: int
    """Tensors down"""
    serialised_download_bytes: int
    """The same with the headers of their files"""
    download_seconds: float
    """Time of the download"""
    compute_seconds: float
    """Time of the computation"""


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


class ClientRow(Turns, RoundVerdict, AtHardest, FleetClient, maybe=(AtHardest, BudgetedRound)):
    """Costs of a client that holds all frozen parameters, without jitter; one that the method leaves out has none."""

    rounds_within: Annotated[Mapping[str, Rounds], Keys("CAP")] | Maybe = UNSET
    """With caps in `fleet.budgets`: how many such rounds fit each that the client has, on a day or in all"""

    @property
    def is_left_out(self) -> bool:
        """Whether the method leaves the client out, which then costs nothing."""
        return self.binding is None and not self.eligible


class Tables(Record):
    """The lists of a profile, of one scenario or one combination."""

    rows: Sequence[ProfileRow]
    """A client's round, by stage and kind"""
    totals: Sequence[TotalsRow]
    """A client that takes part in every round of its kind; empty with `stage`"""
    server_rows: Sequence[ServerRow]
    """The server's works"""
    round_totals: Sequence[RoundTotals]
    """A round of all selected clients and the server; empty with `kind`"""
    client_evaluation_rows: Sequence[ClientEvaluationRow]
    """A client's evaluation on its own held-out samples; empty without `evaluation.clients`"""
    clients: Sequence[ClientRow] | Maybe = UNSET
    """With `--clients`: each client of the fleet, at the stage that is hardest for it"""


class PeakMoment(OfKind):
    """The moment of the highest peak, which `--timeline` draws."""

    stage: int
    """Its stage"""
    peak_memory_bytes: int
    """Its peak"""
    operator: str
    """Torch's name of the operator after which the peak is reached"""
    scope: str
    """Part of the model that is at work"""
    phase: str
    """`start`, `forward`, `backward`, `optimizer` or `finish`"""
    distinct_pass: int
    """Index of the pass among the different ones of the work"""
    pattern: str
    """Modality pattern of the batch"""
    step: int
    """Step of this pass and pattern, from 1"""
    moment: int
    """Index of the peak among the moments"""
    moments: int
    """Number of moments, one after each operator"""


class CalibratedMachine(Record):
    """A machine as calibrated just before."""

    flops_per_second: Annotated[float, Unit("FLOP/s")]
    """Its rate"""
    memory_bytes_per_second: Annotated[float, Unit("bytes/s")]
    """Its memory bandwidth"""
    seconds_per_operator: Annotated[float, Unit("s")]
    """Its fixed time per operator"""


class MeasuredStep(Record):
    """A step on this machine."""

    distinct_pass: int
    """Index of the pass among the different ones of the work"""
    pattern: str
    """Modality pattern of the batch"""
    seconds: float | None
    """Predicted time of a step; `null` on a GPU"""
    measured_wall_seconds: float
    """Measured wall time"""
    measured_cpu_seconds: float
    """Measured time of the processor"""
    error: Share | None
    """Predicted / measured processor time - 1; `null` on a GPU"""


class MeasuredRow(OfStage):
    """Prediction and measurement of the first steps of a round, with random batches."""

    batch: Samples
    """Largest batch of the work"""
    peak_memory_bytes: int
    """Predicted peak"""
    measured_peak_memory_bytes: int
    """Peak of torch's allocator"""
    memory_error: Share
    """Predicted / measured - 1"""
    memory_assumed: bool
    """Whether the scratch at the predicted peak is assumed"""
    live_memory_bytes: int
    """Predicted peak of live tensors"""
    measured_live_memory_bytes: int
    """The same by edgefl's meter on real tensors"""
    live_memory_error: Share
    """Predicted / that - 1"""
    memory_bytes: ByPart
    """Predicted peak by part"""
    live_memory_bytes_by_part: ByPart
    """Predicted peak of live tensors by part"""
    measured_live_memory_bytes_by_part: ByPart
    """The same by the meter"""
    flops: int
    """Predicted FLOPs, summed over one step of each different kind of step in the work"""
    measured_flops: int
    """The same, measured"""
    flops_error: Share
    """Predicted / measured - 1"""
    steps: Sequence[MeasuredStep]
    """Each different step"""
    rss_bytes_before: int
    """Memory of the process before the work"""
    rss_bytes_peak: int
    """Its highest value while the work runs"""
    rss_bytes_after: int
    """Memory of the process after the work"""


class Measurements(Record):
    """Predictions compared with measurements on this machine, with `--measure`."""

    device: str
    """`cpu`, or the name of the GPU"""
    machine: CalibratedMachine | None
    """This machine; `null` on a GPU"""
    rows: Sequence[MeasuredRow]
    """By stage and kind"""


class CountedRow(OfStage):
    """Forward MACs counted by edgefl's meter and by fvcore, with `--fvcore`."""

    forward_macs: int
    """Forward MACs of one sample by the meter"""
    fvcore_forward_macs: int
    """The same by fvcore"""
    error: Share
    """Relative difference: fvcore / meter - 1"""
    forward_macs_by_part: Annotated[Mapping[str, int], Keys("PART"), Unit("MACs")]
    """The meter's, by part of the model"""
    fvcore_forward_macs_by_part: Annotated[Mapping[str, int], Keys("PART"), Unit("MACs")]
    """fvcore's, by part of the model"""
    differing: Sequence[str]
    """Parts that differ by more than 0.5 %, with the operators that fvcore saw"""


class ChangedFigure(Record):
    """A figure that differs between two profiles."""

    where: str
    """The row: `stage 2, image`, `totals, image`, ..."""
    figure: str
    """Name of the field"""
    old: float
    """Its value in the old profile, in the field's unit"""
    new: float
    """Its value in the new profile"""
    growth: Share | None
    """New / old - 1; `null` where the old value is 0"""
    grew: bool
    """Whether that is more than `fail_above`"""


class CostDifference(Record):
    """Which figures differ from those of an earlier profile."""

    fail_above: Share
    """The growth that is allowed"""
    figures: int
    """Number of figures that both profiles have"""
    changed: Sequence[ChangedFigure]
    """Those that differ"""
    removed: Sequence[str]
    """Rows that only the old profile has"""
    added: Sequence[str]
    """Rows that only the new profile has; with some of either the exit code is 2"""
    grew: bool
    """Whether any figure grew; then the exit code is 1"""


class Profile(Tables, OfScenario):
    """What a scenario costs, predicted without training.

    [What a profile adds up](../concepts/flops-and-bytes.md#what-a-profile-adds-up) says what each list adds up.
    """

    combinations: Annotated[Mapping[str, Tables], Keys("LABEL")] | Maybe = UNSET
    """If the scenario compares: the lists of each combination"""
    refused: Refused | Maybe = UNSET
    """Why a combination can't be run; absent if all can"""
    timeline: PeakMoment | Maybe = UNSET
    """With `timeline`: the moment of the peak"""
    measured: Measurements | Maybe = UNSET
    """With `--measure`: prediction and measurement"""
    fvcore: Sequence[CountedRow] | Maybe = UNSET
    """With `--fvcore`: forward MACs counted twice"""
    against: CostDifference | Maybe = UNSET
    """With `--against`: what differs from an earlier profile"""

    @property
    def parts(self) -> Mapping[str, Tables]:
        """The lists of each combination by its label, or by the scenario's name those of a scenario that has none."""
        return self.combinations or {self.scenario: self}

    @property
    def exit_code(self) -> int:
        """1 if a cost grew by more than `--fail-above`."""
        return int(self.against is not UNSET and self.against.grew)

    def _repr_html_(self) -> str:
        from edgefl.commands.profile.table import print_answer
        from edgefl.drawing.text_tables import html_of

        return html_of(print_answer, self)
