"""Stages of a schedule: which part of a model exists, trains and is sent, and which stages a round offers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from edgefl.errors import MethodError

StageCount = Annotated[int, Field(gt=0, le=10_000)]
"""A number of stages: more are a mistake, and would take more memory than a model."""

EARLY, PARTS = ("embedding", "pooler"), ("embedding", "pooler", "norm", "rep", "head")
"""The parts of a tower besides its blocks.  Under the layer-wise schedule the EARLY ones train in stage 1 only.

A pooler is a part of published models that no step reads.  It is stored and sent with the model.
"""


def part_of(name: str) -> tuple[str, str, int | None]:
    """``(tower, part, block index)`` of a parameter's name: ``image.blocks.3.norm1.bias`` -> image, blocks, 3.

    Tensors that are kept beside a model, such as a step's output, have names without parts.  They belong to every
    stage.
    """
    tower, part, block = (*name.split("."), "", "")[:3]
    return tower, part, int(block) if part == "blocks" else None


@dataclass(frozen=True)
class Stage:
    """One stage of a schedule, or one of several parts that a round offers.

    A tower has its first ``depth[tower]`` blocks.  Of these, blocks ``first[tower]`` to ``until[tower] - 1`` train (to
    the last one if ``until`` lacks the tower).  The other parts all exist; those named in ``parts`` train.  ``width``
    is the share of attention heads that the model keeps, counted from the first head; with ``scaler`` its
    activations are scaled during training (HeteroFL).  With ``keeps`` a client keeps what its frozen first blocks
    compute.  ``rank`` is that of LoRA's factors, None for the adapter's.  ``index`` counts from 1.  ``rounds`` may be
    0.  ``label`` is the stage's name in tables, for schedules that offer several stages in one round.
    """

    index: int
    depth: Mapping[str, int]
    first: Mapping[str, int]
    parts: tuple[str, ...]
    rounds: int
    until: Mapping[str, int] = field(default_factory=dict)
    width: float = 1.0
    scaler: bool = False
    label: str = ""
    keeps: bool = False
    rank: int | None = None

    def __str__(self) -> str:
        """The label, or ``stage 2``."""
        return self.label or f"stage {self.index}"

    def attached(self, name: str) -> bool:
        """Whether this stage's model has the parameter."""
        tower, _, block = part_of(name)
        return block is None or block < self.depth.get(tower, block + 1)

    def active(self, name: str) -> bool:
        """Whether the parameter trains, is uploaded and is aggregated."""
        tower, part, block = part_of(name)
        if block is None:
            return part in self.parts or part not in PARTS
        return self.first.get(tower, 0) <= block < self.until.get(tower, block + 1) and self.attached(name)


class Schedule:
    """Stages in order, and the stages that each round offers to clients.

    ``needs`` are sections of a scenario that it requires; ``edgefl.check`` adds them to its federation.

    The server's models are at ``stage(round)``.  ``candidates(round)`` are the stages that a client may train, best
    first.  ``offered`` lists every stage that a client may ever train, by index; by default these are the ``stages``.
    """

    needs: ClassVar[Mapping[str, Any]] = {}

    def __init__(
        self, stages: tuple[Stage, ...], *, deliver_final: bool = False, offered: tuple[Stage, ...] | None = None
    ):
        self.stages, self.deliver_final = stages, deliver_final
        self.offered = stages if offered is None else offered
        self.rounds = sum(stage.rounds for stage in stages)
        self._ends = list(accumulate(stage.rounds for stage in stages))

    def stage(self, round: int) -> Stage:
        """The stage of ``round`` (from 1).  Raises MethodError outside the schedule."""
        for stage, end in zip(self.stages, self._ends, strict=True):
            if 1 <= round <= end:
                return stage
        raise MethodError(f"round {round} is outside the schedule of {self.rounds} rounds")

    def candidates(self, round: int) -> tuple[Stage, ...]:
        """Stages that a client may train in this round, best first.  A client takes the first that fits its budgets."""
        return (self.stage(round),)

    def turns(self, stage: Stage) -> list[tuple[tuple[Stage, ...], tuple[int, ...]]]:
        """The different sets of candidates during one of ``stages``, each with its rounds, in order of first use."""
        last = self._ends[stage.index - 1]
        turns: dict[tuple[int, ...], tuple[tuple[Stage, ...], list[int]]] = {}
        for round in range(last - stage.rounds + 1, last + 1):
            candidates = self.candidates(round)
            indices = tuple(candidate.index for candidate in candidates)
            turns.setdefault(indices, (candidates, []))[1].append(round)
        return [(candidates, tuple(rounds)) for candidates, rounds in turns.values()]

    def rounds_of(self, stage: Stage) -> list[int]:
        """The rounds in which one of ``offered`` is among the candidates."""
        return sorted(
            round
            for current in self.stages
            for candidates, rounds in self.turns(current)
            if any(candidate.index == stage.index for candidate in candidates)
            for round in rounds
        )

    def ends(self, round: int) -> Stage | None:
        """The stage that ends with this round; None if none does."""
        stage = self.stage(round)
        return stage if self._ends[stage.index - 1] == round else None


class ScheduleOptions(BaseModel):
    """Options of every schedule."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    rounds: PositiveInt | None = Field(None, description="rounds in all (10 if nothing says otherwise)")
