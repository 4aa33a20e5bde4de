"""What answers have in common, whichever command gives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from edgefl.records.record import UNSET, Keys, Maybe, Record, Samples

Refused = Annotated[Mapping[str, str], Keys("LABEL")]
"""Why combinations can't be run, by their labels."""


class Answer(Record):
    """What a command answers."""

    @property
    def exit_code(self) -> int:
        """The exit code that the answer stands for: above 0 if what was asked for isn't so."""
        return 0

    @property
    def notices(self) -> list[str]:
        """Lines for stderr, beside the table."""
        return []

    def _repr_html_(self) -> str | None:
        """The answer as a notebook shows it; None for one that is shown as text."""
        return None


SecondsWithin = Annotated[Mapping[str, float], Keys("DEVICE")]
"""By device the factor within which 80 % of its seconds are, either way."""


class OfScenario(Answer):
    """The scenario that was asked about."""

    scenario: str
    """Name of the scenario"""
    at_most: Sequence[str] | Maybe = UNSET
    """Schedules that may end their stages early, so that rounds and totals are at most those given; absent if there
    are none"""
    seconds_within: SecondsWithin | Maybe = UNSET
    """The factor within which 80 % of published seconds are predicted, either way, by devices that have one"""


class OfKind(Record):
    """Whose costs a row has."""

    kind: str
    """Kind of client"""
    variant: str | Maybe = UNSET
    """Variant of these clients; only where the kind's variants cost different things"""

    @property
    def whose(self) -> str:
        """The kind, with the variant if it has a row of its own: ``image, slow``."""
        return self.kind if self.variant is UNSET else f"{self.kind}, {self.variant}"


class AtStage(Record):
    """The stage of a row, and the part of the model."""

    stage: int
    """Stage of the schedule, from 1"""
    part: str | Maybe = UNSET
    """Name of the part; only where a schedule offers several"""

    @property
    def stage_and_part(self) -> str:
        """The stage, with the part if the schedule offers several: ``3, stages 1-2``."""
        return str(self.stage) if self.part is UNSET else f"{self.stage}, {self.part}"


class OfStage(AtStage, OfKind):
    """A row by stage and kind."""


class RuntimeRange(Record):
    """What a runtime's overhead rests on."""

    name: str
    """`pytorch`, or the runtime of `fleet.runtime`"""
    low_bytes: int
    """The least that it is believed to take"""
    high_bytes: int
    """The most"""
    confidence: str
    """`measured`, `datasheet` or `estimated`"""
    source: str
    """Title of the document or page that has the figure"""


class AtHardest(AtStage):
    """What is done at the hardest stage: the one that leaves the smallest share of a budget."""

    batch: Samples | None
    """Batch size of the first training pass"""
    peak_memory_bytes: int
    """Peak memory of the round; on a GPU what its allocator reserves for it, if that is more"""
    flops: int
    """Computation of the round, forward and backward"""
    download_bytes: int
    """Tensor bytes received"""
    upload_bytes: int
    """Tensor bytes sent"""


class Eligible(Record):
    """Whether clients may take part."""

    eligible: bool
    """Whether the round fits all budgets"""
    binding: str | None
    """The budget with the smallest share left: memory, flops, bytes, seconds, joules, or another that the scenario
    states; `null` without budgets"""
    reason: str
    """The verdict as a sentence"""


class BudgetedRound(Record):
    """What a round takes, and what is left of the budget that binds it."""

    virtual_seconds: float
    """The round: download, computation, upload"""
    energy_joules: float
    """Energy of the round"""
    memory_limit: str | None
    """Whose word the memory budget is: `owner`, `device`, or `null`"""
    margin: float | None
    """What is left of the binding budget, in its unit; below 0 what it lacks"""
    budget: float | None
    """The binding budget, in its unit"""


class RoundVerdict(BudgetedRound, Eligible):
    """The verdict on a round that was priced."""


class Turns(Record):
    """In how many stages clients may take part."""

    stages: int
    """Stages that there are for the client (turns, where a schedule offers other parts in turn)"""
    eligible_stages: int
    """Those in which it is eligible"""
