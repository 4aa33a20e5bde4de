"""The answer of ``edgefl analyse``: Shapley values, gradients, drift and more of a trained federation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from edgefl.records.answer import Answer
from edgefl.records.record import UNSET, ByKind, Clients, Keys, Maybe, Record

ByCoalition = Annotated[Mapping[str, float], Keys("COALITION")]


class Worth(Record):
    """What a kind of clients brings to a metric: means over the seeds, and standard deviations of several."""

    shapley: float
    """Its Shapley value: its mean gain over all orders in which the kinds may join"""
    lost: float
    """The value of all kinds minus that of all others"""
    alone: float
    """That of the kind alone minus that of none"""
    shapley_std: float | None
    """Standard deviation of `shapley`; `null` for one seed"""
    lost_std: float | None
    """The same of `lost`"""
    alone_std: float | None
    """The same of `alone`"""


class ValuedMetric(Record):
    """A metric of the kinds whose models are evaluated together."""

    kind: str
    """The first of the kinds"""
    kinds: Sequence[str]
    """Kinds whose model is evaluated"""
    metric: str
    """Name of the metric"""
    values: ByCoalition
    """The metric of the runs in which these kinds take part: `everybody`, `image+text`, ..., `nobody`; means over the
    seeds"""
    values_std: Annotated[Mapping[str, float | None], Keys("COALITION")]
    """Their standard deviations; `null` for one seed"""
    players: ByKind[Worth]
    """By kind"""


class Shapley(Record):
    """Shapley values of the kinds of clients."""

    players: Sequence[str]
    """The kinds whose values these are; others that take part are in every coalition"""
    seeds: Sequence[int]
    """Seeds of the runs"""
    split: str
    """The split of the metrics"""
    rows: Sequence[ValuedMetric]
    """A metric each"""


class OfPart(Record):
    """A part of a model."""

    tower: str
    """Tower"""
    part: str
    """Part of it: `block 3`, `embedding`, `head`"""


class GradientRow(OfPart):
    """Gradients of a kind's clients in a part of the model."""

    kind: str
    """Kind of client"""
    clients: Clients
    """Clients that were computed"""
    norm: float
    """Norm of a client's mean gradient, mean over these clients"""
    weights: float
    """Norm of the weights: the kind's, or the mean over clients that keep their own"""
    relative: float | None
    """`norm` / `weights`; `null` where the weights are 0"""


class StageGradient(OfPart):
    """The gradient of a block's attention output in the last round of a stage (`training.note_gradients`)."""

    kind: str
    """Kind of client"""
    stage: int
    """Stage that the clients trained"""
    clients: Clients
    """Clients that trained the block"""
    norm: float
    """Norm of the gradient, mean over their updates and over them"""
    relative: float | None
    """`norm` over that of the tower's last block, in the same stage if it trains there, else in its last; `null` if
    that is 0"""


class Gradients(Record):
    """Norms of gradients: at the final weights, and those that clients noted while they trained."""

    rows: Sequence[GradientRow]
    """At the final weights, by kind, tower and part"""
    stages: Sequence[StageGradient]
    """While the run trained, by kind, tower, stage and block; empty if it noted none"""


class DriftWithin(OfPart):
    """How alike the clients of a kind pull."""

    kind: str
    """Kind of client"""
    clients: Clients
    """Clients that were computed"""
    moved: float | None
    """Mean norm of their updates over that of the weights; `null` where the weights are 0"""
    consistency: float | None
    """Norm of the mean update over the mean norm of the updates: 1 if all are parallel, 1/sqrt(clients) if independent;
    `null` where nothing moved"""


class DriftBetween(OfPart):
    """How alike two kinds pull in a part that they share."""

    kinds: Sequence[str]
    """The two kinds"""
    cosine: float | None
    """Cosine of their mean updates; `null` where one is zero"""
    distance: float | None
    """Norm of the difference of their global models over the mean of their norms; `null` where clients' models never
    reach the server"""


class Drift(Record):
    """Agreement of updates."""

    within: Sequence[DriftWithin]
    """By kind, tower and part"""
    between: Sequence[DriftBetween]
    """By pair of kinds, tower and part"""


class MatchingRow(Record):
    """Samples with one pattern of modalities, completed by one way of inference."""

    kind: str
    """Kind of client"""
    inference: str
    """What completes samples with one modality"""
    own: bool
    """Whether that is the run's own"""
    pattern: str
    """Modalities of the samples"""
    accuracy: float
    """Accuracy on them"""
    matched: Annotated[Mapping[str, float | None], Keys("K")]
    """How often the true class is among the K best matches; `null` for zeros, noise and the oracle"""


class CompletionRecord(Record):
    """The run's final state with each way of completing samples that lack a modality."""

    split: str
    """Split of the evaluation"""
    own: str
    """The run's own inference"""
    rows: Sequence[MatchingRow]
    """By inference, kind and pattern"""


class Gap(Record):
    """How far a set of one modality lies from that of the pairs."""

    modality: str
    """`image` or `text`: the kind of the clients that have this modality alone"""
    set: str
    """Name of the data set of these clients"""
    samples: int
    """Different pictures, or texts, that these clients hold"""
    pair_samples: int
    """Different pictures, or texts, that the clients with pairs hold"""
    gap: float
    """Norm of the difference of the two mean features, which aren't normalised"""


class Gaps(Record):
    """Domain gaps by mean CLIP features."""

    rows: Sequence[Gap]
    """By modality"""
    total: float
    """The gap of the setting: their sum"""


class FeatureDistance(Record):
    """How far two mean features lie apart."""

    space: str
    """Modality of the features; `fused`: of both"""
    of: Sequence[str]
    """The two models whose features of the same samples these are; or two sets of samples"""
    distance: float
    """L2 norm of the difference of their mean features"""


class Embeddings(Record):
    """Features of the same samples by several models; `embeddings.csv` and `.png` in the folder show them in two
    dimensions, by t-SNE, or by PCA where there are at most 90 different ones."""

    split: str
    """Split whose samples are shown"""
    distances: Sequence[FeatureDistance]
    """By space and pair of models"""


class KindLandscape(Record):
    """The loss around a kind's global model."""

    kind: str
    """Kind of client"""
    samples: int
    """Training samples of the loss"""
    loss: float
    """Mean loss of the task on these samples at the global weights"""
    eigenvalues: Sequence[float]
    """The two of the loss's Hessian with the largest amounts"""


class Landscape(Record):
    """Loss landscapes, and features by set; `landscape.csv` and `.png` in the folder show them."""

    kinds: Sequence[KindLandscape]
    """By kind whose models reach the server"""
    distances: Sequence[FeatureDistance]
    """Between mean features of two sets of samples, by linear discriminant analysis"""


class Analysis(Answer):
    """What a trained federation shows; `analysis.json` in the folder has the same."""

    scenario: str
    """Name of the scenario"""
    method: str
    """Its method"""
    run: str | None
    """Folder of the run; `null` if only `gaps` was asked for, which needs none"""
    folder: str
    """Folder of the analysis"""
    shapley: Shapley | Maybe = UNSET
    """The value of each kind; absent if it wasn't asked for or doesn't apply, like the three below"""
    gradients: Gradients | Maybe = UNSET
    """Norms of gradients"""
    drift: Drift | Maybe = UNSET
    """Agreement of updates"""
    matching: CompletionRecord | Maybe = UNSET
    """Matching by prototypes"""
    gaps: Gaps | Maybe = UNSET
    """Gaps between data sets; made only if it is asked for"""
    embeddings: Embeddings | Maybe = UNSET
    """Features by clients' and the server's models; made only if it is asked for"""
    landscape: Landscape | Maybe = UNSET
    """The loss around the global models; made only if it is asked for"""
    skipped: Annotated[Mapping[str, str], Keys("ANALYSIS")]
    """Why an analysis doesn't apply"""


class ShardOfAnalysis(Answer):
    """What a shard answers that doesn't find all runs finished."""

    shard: str | None
    """The shard"""
    folder: str
    """Folder of the analysis"""
    runs: int
    """Runs that the analysis takes"""
    left: int
    """Those that aren't finished"""

    @property
    def notices(self) -> list[str]:
        """How many runs are left, and what to do when they are done."""
        return [
            f"shard {self.shard} has ended; {self.left} of {self.runs} runs in {self.folder} aren't done yet",
            "when they are: the same command without --shard",
        ]
