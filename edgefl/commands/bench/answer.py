"""The answer of ``edgefl bench``: which variant is best on which fleet, and beyond what the seeds can't tell apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from edgefl.records.answer import Answer
from edgefl.records.record import UNSET, Keys, Maybe, Record, Share

ByVariant = Annotated[Mapping[str, float | None], Keys("VARIANT")]


class BenchVariant(Record):
    """A variant: what a fleet is to train, and how."""

    variant: str
    """Its name in the suite"""
    sets: Annotated[Mapping[str, object], Keys("PATH")]
    """The fields in which it differs from the suite's scenario"""
    method: str
    """Name of its method"""
    schedule: str
    """Name of its schedule"""
    tuned: Sequence[str] | Maybe = UNSET
    """Settings that were found by tuning, as `path=value`; only where the suite tunes"""
    tuned_score: float | Maybe = UNSET
    """Their score on validation, likewise"""
    at_edge: Sequence[str] | Maybe = UNSET
    """A sentence for each of them that lies at the edge of what was searched, likewise"""
    trials: int | Maybe = UNSET
    """Settings that were tried, likewise"""
    needs: Sequence[float] | Maybe = UNSET
    """How much of the suite's budget its works take, smallest first, in the budget's unit; only with a budget"""
    refused: str | Maybe = UNSET
    """Why it can't be run; only then, and it has no rows"""


class BenchRow(Record):
    """A variant on a fleet."""

    variant: str
    """The variant"""
    eligible_share: Share
    """Clients that fit in some stage, mean over the seeds"""
    scores: Sequence[float | None]
    """The metric by seed; `null` where no client can train or none did, the model diverged, or the run failed"""
    mean: float | None
    """Mean over the seeds; `null` if a seed has none"""
    half_width: float | None
    """Half the 95 % confidence interval of the mean, by Student's t; `null` for one seed"""
    diverged: int
    """Seeds whose model diverged"""
    peak_memory_bytes: int | None
    """The largest predicted peak of clients that were sent off, over the seeds; `null` if none was"""
    bytes: float | None
    """Bytes that were carried for all clients together, down and up; mean over the seeds"""
    virtual_seconds: float | None
    """Virtual time of the run; mean over the seeds"""
    energy_joules: float | None
    """Energy of all clients together; mean over the seeds"""
    worst_decile: float | Maybe | None = UNSET
    """The metric on the clients' own held-out samples, mean of the worst tenth of the clients and over the seeds; only
    with `evaluation.clients`"""
    kept_share: Share | Maybe | None = UNSET
    """The mean divided by that of the same variant under the first condition; only with conditions"""
    runs: Sequence[str | None]
    """The folder of each seed's run within the suite's; `null` where no client can train"""


class BenchFleet(Record):
    """A fleet, or a condition, and how the variants did on it."""

    fleet: str
    """Its name"""
    small_share: Share | Maybe = UNSET
    """Share of clients that are small; only with a budget"""
    low: float | Maybe = UNSET
    """What small devices have of the budget, at least, in its unit; likewise"""
    high: float | Maybe | None = UNSET
    """And less than this; `null` without an end; likewise"""
    rows: Sequence[BenchRow]
    """The variants in the suite's order"""
    winner: str | None
    """The variant that is best, where its paired intervals over the seeds exclude 0 against all others, by Student's t
    with Holm's correction and by the bootstrap; `null` in a tie, and where its own interval holds the chance level"""
    tied: Sequence[str]
    """In a tie the best and those not shown to be behind it, best first, without those whose interval holds the chance
    level; empty if nobody trains, or nobody better than chance"""
    gap: float | None
    """By how much the best is ahead of the next, mean over the seeds; `null` without a next, and where the best
    isn't better than chance"""
    detectable: float | None
    """The gap that these seeds could have shown with a power of 80 %"""


class BenchReference(Record):
    """The scores of a method without a federation, which isn't ranked."""

    reference: str
    """`central` or `local`"""
    scores: Sequence[float | None]
    """The metric after the last round, by seed; of `local` the mean over the clients"""
    mean: float | None
    """Mean over the seeds"""
    half_width: float | None
    """Half its 95 % interval over the seeds, by Student's t; `null` for one seed"""
    deviation: float | Maybe | None = UNSET
    """Standard deviation over the clients, mean over the seeds; only of `local`"""
    runs: Sequence[str]
    """The folder of each seed's run within the suite's"""


class BenchSpent(Record):
    """The metric that was reached within a total, where all clients are free or under the first condition."""

    axis: str
    """`virtual_seconds`, `bytes` or `energy_joules`, of all clients together"""
    total: float
    """The total, in the axis's unit"""
    split: str
    """Split of the evaluations"""
    means: ByVariant
    """The metric at a run's last evaluation within the total, mean over the seeds; `null` if a seed has none"""
    winner: str | None
    """As for a fleet"""
    tied: Sequence[str]
    """As for a fleet"""


class BenchCost(Record):
    """What a variant spends until its metric reaches the target, on one fleet."""

    fleet: str
    """The fleet"""
    variant: str
    """The variant"""
    reached: int
    """Seeds in which it is reached"""
    seeds: int
    """Of how many"""
    virtual_seconds: Sequence[float | None]
    """Virtual time until the first evaluation at which it is reached, by seed; `null` where it isn't"""
    bytes: Sequence[float | None]
    """Bytes that were carried for all clients, likewise"""
    energy_joules: Sequence[float | None]
    """Energy of all clients, likewise"""


class BenchRanks(Record):
    """Ranks of the variants over the fleets: 1 is best, ties share, who can't train is last.

    Fleets share seeds and runs, so they aren't independent: a seed has one mean rank over all fleets, and the spread
    and the winner are over these.
    """

    fleets: int
    """Fleets on which the variants are ranked with each seed"""
    ranks: Annotated[Mapping[str, float], Keys("VARIANT")]
    """Mean rank of a variant, over fleets and seeds"""
    half_widths: ByVariant
    """Half the 95 % interval of the mean rank over the seeds, by Student's t; `null` for one seed"""
    winner: str | None
    """As for a fleet, by the mean rank of each seed"""
    tied: Sequence[str]
    """As for a fleet"""


class BenchAnswer(Answer):
    """Variants of a suite over its fleets and seeds."""

    suite: str
    """Name of the suite"""
    folder: str
    """The folder of its runs"""
    metric: str
    """What is compared, `KIND.NAME`"""
    split: str
    """The split that it is computed on after the last round"""
    better: str
    """`higher` or `lower`"""
    chance: float | None
    """Chance level of the metric; `null` if it has none"""
    target: float | Maybe = UNSET
    """The value of the metric to which costs are counted; only with a target"""
    target_split: str = ""
    """The split of the evaluations that may reach it; empty without a target"""
    budget: str | Maybe = UNSET
    """The budget of which small devices have little, `memory` or `flops`; only with one"""
    seeds: Sequence[int]
    """The seeds"""
    variants: Sequence[BenchVariant]
    """The variants"""
    fleets: Sequence[BenchFleet]
    """The fleets: by share of small devices, and by what these have"""
    references: Sequence[BenchReference]
    """The methods without a federation that the suite asks for"""
    ranks: BenchRanks | None
    """Ranks over the fleets; `null` for fewer than two variants or fleets"""
    spent: Sequence[BenchSpent]
    """The metric within totals of time, bytes and energy"""
    costs: Sequence[BenchCost] | Maybe = UNSET
    """Costs until the target is reached; only with a target"""
    trained: int
    """Runs that the answer is made of, those of earlier calls included"""
    cells: int
    """Combinations of variant, fleet and seed in which a client can train; those on which all clients can do the same
    share a run"""
    failed: Annotated[Mapping[str, str], Keys("RUN")]
    """Runs that failed, with the reason"""
    seconds: float
    """Wall time of this call"""
