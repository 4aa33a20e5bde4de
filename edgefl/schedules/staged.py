"""Schedules whose stages follow each other: end-to-end, layer-wise, progressive."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, model_validator

from edgefl.errors import MethodError
from edgefl.schedules.ending import Patience, UntilOptions
from edgefl.schedules.stages import EARLY, PARTS, Ending, Schedule, Stage, StageCount


class EndToEnd(Schedule):
    """Every block trains in every round."""

    class Options(Schedule.Options):
        """Fields of ``schedule: {name: end-to-end}``."""

        name: Literal["end-to-end"] = "end-to-end"

    def __init__(self, options: EndToEnd.Options, blocks: Mapping[str, int]):
        rounds = options.rounds or 10
        super().__init__((Stage(1, dict(blocks), dict.fromkeys(blocks, 0), PARTS, rounds),))


class StagedOptions(Schedule.Options):
    """Options of schedules whose stages follow one another."""

    stages: StageCount | Annotated[list[NonNegativeInt], Field(min_length=1)] = Field(
        2, description="how many stages of equal size, or the blocks that each stage adds: [1, 1, 2]"
    )
    allocation: Literal["uniform", "late"] | Annotated[list[NonNegativeInt], Field(min_length=1)] = Field(
        "uniform",
        description="rounds per stage: equal, late (later half of the stages, 1:3:5..., for pre-trained blocks), "
        "or listed",
    )

    @property
    def count(self) -> int:
        """Stages that have rounds."""
        return self.stages if isinstance(self.stages, int) else len(self.stages)

    @model_validator(mode="after")
    def _consistent(self) -> StagedOptions:
        count = self.count
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


class MetricStages(StagedOptions):
    """Options of such schedules whose stages may end by a metric."""

    until: UntilOptions | None = Field(
        None,
        description="a metric that ends a stage before its last round: {metric: image.accuracy, patience: 3}; null: "
        "each stage has all its rounds",
    )

    @property
    def ending(self) -> Callable[[], Ending] | None:
        """Makes the rule of ``until`` for a stage."""
        return partial(Patience, self.until) if self.until else None


def block_stages(order: Iterable[int], depths: Sequence[Mapping[str, int]], rounds: Sequence[int]) -> tuple[Stage, ...]:
    """Stages in which only the blocks that a depth adds train, in this order of depths; embeddings with the first."""
    firsts = [dict.fromkeys(depths[0], 0), *depths]
    return tuple(
        Stage(i + 1, depths[at], firsts[at], PARTS if at == 0 else PARTS[len(EARLY) :], rounds[i])
        for i, at in enumerate(order)
    )


def allocate(allocation: str | list[int], stages: int, rounds: int) -> list[int]:
    """Rounds of each stage.

    ``uniform`` splits the rounds equally; a remainder goes to the later stages.  ``late`` gives rounds to the later
    half of the stages only, in proportion 1:3:5....  For 90 rounds in 6 stages these are LW-FedMML's
    (0, 0, 0, 10, 30, 50).
    """
    if not isinstance(allocation, str):
        return list(allocation)
    late = (stages + 1) // 2
    weights = [1] * stages if allocation == "uniform" else [0] * (stages - late) + [2 * i + 1 for i in range(late)]
    ends = [rounds * sum(weights[: i + 1]) // sum(weights) for i in range(stages)]
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


def depths_of(stages: int | list[int], blocks: Mapping[str, int]) -> list[dict[str, int]]:
    """Blocks of each tower at each stage.  Raises MethodError if a tower can't be split into these stages."""
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

    paper = "Tun et al. 2024"

    class Options(MetricStages):
        """Fields of ``schedule: {name: layerwise}``."""

        name: Literal["layerwise"] = "layerwise"
        deliver_final: bool = Field(
            False, description="send a stage's final blocks once to every client when the stage ends"
        )

    def __init__(self, options: Layerwise.Options, blocks: Mapping[str, int]):
        depths = depths_of(options.stages, blocks)
        rounds = allocate(options.allocation, len(depths), options.rounds or 10)
        stages = block_stages(range(len(depths)), depths, rounds)
        super().__init__(stages, deliver_final=options.deliver_final, ending=options.ending)


class Progressive(Schedule):
    """The model grows stage by stage, and all blocks that it has train (Prog-FedMML)."""

    paper = "Tun et al. 2024"

    class Options(MetricStages):
        """Fields of ``schedule: {name: progressive}``."""

        name: Literal["progressive"] = "progressive"

    def __init__(self, options: Progressive.Options, blocks: Mapping[str, int]):
        depths = depths_of(options.stages, blocks)
        rounds = allocate(options.allocation, len(depths), options.rounds or 10)
        zero = dict.fromkeys(blocks, 0)
        stages = tuple(Stage(i + 1, depth, zero, PARTS, rounds[i]) for i, depth in enumerate(depths))
        super().__init__(stages, ending=options.ending)
