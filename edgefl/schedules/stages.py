"""Stages: which part of a model is attached, trains and travels, and which of them a schedule offers when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from edgefl.errors import MethodError

EARLY, PARTS = ("embedding", "pooler"), ("embedding", "pooler", "norm", "rep", "head")
"""The parts of a tower that are not blocks; under layer-wise the early ones train in stage 1 only.

A pooler is a published model's part that nothing reads: it is in the state and travels with it.
"""


def part_of(name: str) -> tuple[str, str, int | None]:
    """``(tower, part, block index)`` of a parameter's name: ``image.blocks.3.norm1.bias`` -> image, blocks, 3.

    What is kept beside a model (a step's output) has a name without parts; it belongs to every stage.
    """
    tower, part, block = (*name.split("."), "", "")[:3]
    return tower, part, int(block) if part == "blocks" else None


@dataclass(frozen=True)
class Stage:
    """One stage of a schedule, or one of the parts that it offers.

    ``depth[tower]`` blocks are attached, of which those from ``first[tower]`` on and before ``until[tower]`` (if it is
    there) train; of the other parts all are attached and those in ``parts`` train.  All of it is cut to the leading
    ``width`` of its heads, whose activations are scaled while training if ``scaler``.  ``index`` counts from 1;
    ``rounds`` may be 0; ``label`` names it for people where a schedule offers several at a time.
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

    def __str__(self) -> str:
        """What people call it."""
        return self.label or f"stage {self.index}"

    def attached(self, name: str) -> bool:
        """Whether the parameter exists in this stage's model."""
        tower, _, block = part_of(name)
        return block is None or block < self.depth.get(tower, block + 1)

    def active(self, name: str) -> bool:
        """Whether the parameter trains, travels up and is aggregated."""
        tower, part, block = part_of(name)
        if block is None:
            return part in self.parts or part not in PARTS
        return self.first.get(tower, 0) <= block < self.until.get(tower, block + 1) and self.attached(name)


class Schedule:
    """The stages in order; ``candidates(round)`` are the stages a client may train in, best first.

    The server's models stand at ``stage(round)``.  ``offered`` has every stage that a client may be at, by index: the
    ``stages`` themselves unless more is offered.
    """

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
        """Stages that a client may train in this round, best first; the first that fits its budgets is taken."""
        return (self.stage(round),)

    def turns(self, stage: Stage) -> list[tuple[tuple[Stage, ...], tuple[int, ...]]]:
        """What is offered in the rounds of one of ``stages``, each with its rounds, in order of their first."""
        last = self._ends[stage.index - 1]
        found: dict[tuple[int, ...], tuple[tuple[Stage, ...], list[int]]] = {}
        for round in range(last - stage.rounds + 1, last + 1):
            ways = self.candidates(round)
            found.setdefault(tuple(way.index for way in ways), (ways, []))[1].append(round)
        return [(ways, tuple(rounds)) for ways, rounds in found.values()]

    def rounds_of(self, stage: Stage) -> list[int]:
        """The rounds in which one of ``offered`` is among the candidates."""
        return sorted(
            round
            for at in self.stages
            for ways, rounds in self.turns(at)
            if any(way.index == stage.index for way in ways)
            for round in rounds
        )

    def ends(self, round: int) -> Stage | None:
        """The stage whose last round this is, if any."""
        stage = self.stage(round)
        return stage if self._ends[stage.index - 1] == round else None


class ScheduleOptions(BaseModel):
    """What every schedule's section has."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    rounds: PositiveInt | None = Field(None, description="rounds in all (10 if nothing says otherwise)")
