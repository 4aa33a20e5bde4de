"""The answer of ``edgefl fit``: which changes of a scenario let a device take part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from edgefl.records.answer import AtStage, OfScenario, RuntimeRange
from edgefl.records.record import UNSET, ByKind, Keys, Maybe, Record, Rounds, Samples


class BudgetLimit(Record):
    """What a round may use."""

    allowed: float | None
    """What a round may use, in bytes, FLOPs, seconds, joules or the unit of another budget; `null` is unlimited"""
    source: str
    """Where that comes from"""
    limit: str | Maybe | None = UNSET
    """Of `memory` only: whose word it is, `owner`, or `device` if it has less; `null` if it is unlimited"""


class Tightest(Record):
    """Costs beside the budgets."""

    binding: str | None
    """The tightest budget; `null` if all are unlimited"""
    memory_limit: str | None
    """Whose word the memory budget is: `owner`, or `device` if it has less; `null` if it is unlimited"""
    costs: Annotated[Mapping[str, float], Keys("BUDGET")]
    """Highest cost (of all stages), in bytes, FLOPs, seconds, joules or the unit of another budget"""
    margins: Annotated[Mapping[str, float | None], Keys("BUDGET")]
    """Smallest difference of budget and cost, in the same units; `null` is unlimited"""


class StageFit(Tightest, AtStage):
    """Rounds of one stage."""

    first_round: int
    """First of the rounds that cost the same"""
    rounds: Rounds
    """How many these are"""
    eligible: bool
    """Whether the stage fits"""
    reason: str
    """The verdict in a sentence"""


class ScenarioChange(Record):
    """A change of the scenario."""

    what: str
    """A change in words"""
    changes: str
    """What it changes: `computation`, `numerics`, `payload`, `schedule`, `parameters`, `batch loss`, `effective batch`,
    `epochs` or `gradients`"""


class FitCandidate(Tightest):
    """The scenario with changes, or as it is."""

    changes: Sequence[ScenarioChange]
    """The changes"""
    sets: Sequence[str]
    """The changes as `path=value`, for `--set`"""
    fits: bool
    """Whether it fits"""
    peak_memory_bytes: int
    """Highest peak of all stages; on a GPU what its allocator reserves for it, if that is more"""
    seconds_per_round: float
    """Mean over the rounds"""
    joules_per_round: float
    """Mean over the rounds"""
    seconds_ratio: float | None
    """`seconds_per_round` divided by that of the scenario as it stands"""
    joules_ratio: float | None
    """`joules_per_round` likewise"""
    stages: Sequence[StageFit]
    """By stage"""
    excess: float | Maybe = UNSET
    """Only in `nearest`: the largest ratio of a cost to its budget, above 1"""


class FailedCombination(Record):
    """A combination that can't be composed or predicted."""

    sets: Sequence[str]
    """A combination that can't be composed or predicted"""
    error: str
    """The reason"""


class KindFit(Record):
    """The answer for a kind.

    `candidates`, `looked_at` and `failed` are absent where the kind fits as it stands.
    """

    kind: str
    """Kind of client"""
    samples: Samples
    """Private samples of its largest client, which is priced"""
    rounds: Rounds
    """Rounds in which the kind takes part; with 0 the following fields but `fits`, `as_it_stands` and `solutions` are
    absent"""
    fits: bool
    """Whether it fits as it stands"""
    as_it_stands: FitCandidate | None
    """The scenario as it is, without changes; `null` without rounds"""
    solutions: Sequence[FitCandidate]
    """Changes that fit, the least first"""
    nearest: FitCandidate | Maybe = UNSET
    """Without a solution: the combination that comes nearest, with `excess`"""
    unmet: Sequence[str] | Maybe = UNSET
    """Without a solution: budgets that no change meets"""
    predictions: int | Maybe = UNSET
    """Works that were predicted"""
    candidates: int | Maybe = UNSET
    """Combinations of changes that there are"""
    looked_at: int | Maybe = UNSET
    """Combinations that were looked at"""
    failed: Sequence[FailedCombination] | Maybe = UNSET
    """Combinations that can't be composed or predicted"""
    complete: bool | Maybe = UNSET
    """Whether every combination that could be a solution was decided"""


class Fit(OfScenario):
    """Which changes of a scenario let a device take part."""

    device: str
    """The device that is to take part"""
    link: str
    """Its link"""
    runtime: RuntimeRange | Maybe = UNSET
    """What the device's runtime overhead rests on; absent if the scenario states the bytes"""
    runtime_overhead_bytes: int
    """What the runtime takes on the device: Python and torch, or `fleet.runtime`"""
    least_available_bytes: int
    """The least that the device is believed to have for tensors, by the ranges of its usable memory and the overhead"""
    most_available_bytes: int
    """The most"""
    any_stage: bool
    """Whether fitting in one stage is enough"""
    budgets: Annotated[Mapping[str, BudgetLimit], Keys("BUDGET")]
    """What a round may use"""
    sets: Sequence[str]
    """Overrides that every answer needs: `compare=null` where the scenario compares"""
    kinds: ByKind[KindFit]
    """The answer for each kind"""

    @property
    def ending(self) -> str:
        """What ended a search that is incomplete."""
        return "stopped by --most"

    @property
    def exit_code(self) -> int:
        """1 if a kind doesn't fit."""
        return 0 if self.fits else 1

    @property
    def fits(self) -> bool:
        """Whether every kind that takes part in any round fits, as it stands or after a change."""
        return all(kind.fits or kind.solutions for kind in self.kinds.values() if kind.rounds)

    def _repr_html_(self) -> str:
        from edgefl.commands.fit.table import print_fit
        from edgefl.drawing.text_tables import html_of

        return html_of(print_fit, self)


class InterruptedFit(Fit):
    """What a search had found when it was interrupted."""

    @property
    def ending(self) -> str:
        """What ended it."""
        return "interrupted"
