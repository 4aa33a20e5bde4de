"""Schedules: which part of a model is attached, trains and travels in which round.

A schedule knows names like ``image.blocks.3.attn.qkv.weight`` and never a method; ``restrict`` narrows the work that
a method wrote for the full depth to one stage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, model_validator

from edgefl import models, registry
from edgefl.errors import MethodError
from edgefl.work.description import Payload, Work

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
    """One stage of a schedule.

    ``depth[tower]`` blocks are attached, of which those from ``first[tower]`` on train; of the other parts all are
    attached and those in ``parts`` train.  ``index`` counts from 1; ``rounds`` may be 0.
    """

    index: int
    depth: Mapping[str, int]
    first: Mapping[str, int]
    parts: tuple[str, ...]
    rounds: int

    def attached(self, name: str) -> bool:
        """Whether the parameter exists in this stage's model."""
        tower, _, block = part_of(name)
        return block is None or block < self.depth.get(tower, block + 1)

    def active(self, name: str) -> bool:
        """Whether the parameter trains, travels up and is aggregated."""
        tower, part, block = part_of(name)
        if block is None:
            return part in self.parts or part not in PARTS
        return self.first.get(tower, 0) <= block and self.attached(name)


class Schedule:
    """The stages in order; ``candidates(round)`` are the stages a client may train in, best first."""

    def __init__(self, stages: tuple[Stage, ...], *, deliver_final: bool = False):
        self.stages, self.deliver_final = stages, deliver_final
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

    def ends(self, round: int) -> Stage | None:
        """The stage whose last round this is, if any."""
        stage = self.stage(round)
        return stage if self._ends[stage.index - 1] == round else None


class _Options(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    rounds: PositiveInt | None = Field(None, description="rounds in all (10 if nothing says otherwise)")


class EndToEnd(Schedule):
    """Every block trains in every round."""

    class Options(_Options):
        """Fields of ``schedule: {name: end-to-end}``."""

        name: Literal["end-to-end"] = "end-to-end"

    def __init__(self, options: EndToEnd.Options, blocks: Mapping[str, int]):
        rounds = options.rounds or 10
        super().__init__((Stage(1, dict(blocks), dict.fromkeys(blocks, 0), PARTS, rounds),))


class _StagedOptions(_Options):
    stages: PositiveInt | Annotated[list[NonNegativeInt], Field(min_length=1)] = Field(
        2, description="how many stages of equal size, or the blocks that each stage adds: [1, 1, 2]"
    )
    allocation: Literal["uniform", "late"] | Annotated[list[NonNegativeInt], Field(min_length=1)] = Field(
        "uniform",
        description="rounds per stage: equal, late (later half of the stages, 1:3:5..., for pre-trained blocks), "
        "or listed",
    )

    @model_validator(mode="after")
    def _consistent(self) -> _StagedOptions:
        count = self.stages if isinstance(self.stages, int) else len(self.stages)
        if isinstance(self.allocation, list):
            if len(self.allocation) != count:
                raise ValueError(f"allocation lists {len(self.allocation)} stages, but there are {count}")
            if not sum(self.allocation):
                raise ValueError("allocation gives no stage a round")
            if self.rounds not in (None, sum(self.allocation)):
                raise ValueError(f"allocation adds up to {sum(self.allocation)} rounds, but rounds is {self.rounds}")
        elif (self.rounds or 10) < count and self.allocation == "uniform":
            raise ValueError(f"{self.rounds or 10} rounds are too few for {count} stages of at least one round")
        return self


def allocate(allocation: str | list[int], stages: int, rounds: int) -> list[int]:
    """Rounds of each stage.

    ``uniform`` splits them equally (a remainder goes to later stages); ``late`` gives the later half of the stages
    rounds in proportion 1:3:5..., which for 90 rounds in 6 stages is LW-FedMML's (0, 0, 0, 10, 30, 50).
    """
    if not isinstance(allocation, str):
        return list(allocation)
    late = (stages + 1) // 2
    weights = [1] * stages if allocation == "uniform" else [0] * (stages - late) + [2 * i + 1 for i in range(late)]
    ends = [rounds * sum(weights[: i + 1]) // sum(weights) for i in range(stages)]
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


def _depths(stages: int | list[int], blocks: Mapping[str, int]) -> list[dict[str, int]]:
    """Attached blocks of each tower at each stage.  Raises MethodError where a tower can't be cut so."""
    if isinstance(stages, int):
        for tower, count in blocks.items():
            if stages > count:
                raise MethodError(f"{stages} stages are more than the {count} blocks of the {tower} tower")
        return [{tower: count * (i + 1) // stages for tower, count in blocks.items()} for i in range(stages)]
    for tower, count in blocks.items():
        if sum(stages) != count:
            raise MethodError(f"stages {stages} add up to {sum(stages)} blocks, but the {tower} tower has {count}")
    return [dict.fromkeys(blocks, depth) for depth in accumulate(stages)]


class Layerwise(Schedule):
    """Blocks of earlier stages are frozen; embeddings train in stage 1 only (LW-FedMML)."""

    class Options(_StagedOptions):
        """Fields of ``schedule: {name: layerwise}``."""

        name: Literal["layerwise"] = "layerwise"
        deliver_final: bool = Field(
            False, description="send a stage's final blocks once to every client when the stage ends"
        )

    def __init__(self, options: Layerwise.Options, blocks: Mapping[str, int]):
        depths = _depths(options.stages, blocks)
        rounds = allocate(options.allocation, len(depths), options.rounds or 10)
        firsts = [dict.fromkeys(blocks, 0), *depths]
        stages = tuple(
            Stage(i + 1, depth, firsts[i], PARTS if i == 0 else PARTS[len(EARLY) :], rounds[i])
            for i, depth in enumerate(depths)
        )
        super().__init__(stages, deliver_final=options.deliver_final)


class Progressive(Schedule):
    """The model grows stage by stage and everything attached trains (Prog-FedMML)."""

    class Options(_StagedOptions):
        """Fields of ``schedule: {name: progressive}``."""

        name: Literal["progressive"] = "progressive"

    def __init__(self, options: Progressive.Options, blocks: Mapping[str, int]):
        depths = _depths(options.stages, blocks)
        rounds = allocate(options.allocation, len(depths), options.rounds or 10)
        zero = dict.fromkeys(blocks, 0)
        super().__init__(tuple(Stage(i + 1, depth, zero, PARTS, rounds[i]) for i, depth in enumerate(depths)))


def restrict(work: Work, stage: Stage) -> Work:
    """The part of a full-depth work that a stage does.

    The model stands at the stage's depth; what trains, travels up and is edited is what is active; what travels
    down is what is attached, or what is active for a payload that follows training (FedCola's partner weights).
    Tables are untouched.  A partner whose own source is not attached yet is left out, and its gate with it.
    """

    def tail(address: str) -> str | None:
        return None if address.startswith("table/") else address.split("/", 1)[1]

    def down(payload: Payload) -> Payload:
        keep = stage.active if payload.follows == "trained" else stage.attached
        return payload.only(lambda i: (t := tail(i.source)) is None or (keep(i.name) and stage.attached(t)))

    received = tuple(down(p) for p in work.down)
    tables = {item.name for payload in work.down for item in payload.items if tail(item.source) is None}
    names = {item.name for payload in received for item in payload.items}
    edits, gone = [], set[str]()
    for edit in work.edits:
        kind: Any = registry.get("edit", edit.name)
        kept = kind.restrict(edit, stage.active, names)
        gone |= kind.names(edit) - (kind.names(kept) if kept else set())
        if kept:
            edits.append(kept)
    return replace(
        work,
        model=models.at_depth(work.model, stage.depth),
        trainable=tuple(n for n in work.trainable if stage.active(n) and n not in gone),
        edits=tuple(edits),
        down=received,
        up=tuple(p.only(lambda i: tail(i.source) is None or stage.active(i.name)) for p in work.up),
        keep=tuple(n for n in work.keep if n in tables or stage.attached(n)),
    )
