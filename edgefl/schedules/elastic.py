"""Elastic: each client trains the largest part that fits its own budgets.  No paper has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveInt, field_validator

from edgefl.schedules.staged import depths_of
from edgefl.schedules.stages import EARLY, PARTS, Schedule, ScheduleOptions, Stage

Part = Literal["all", "progressive", "layerwise"]


class Elastic(Schedule):
    """All blocks, else the largest prefix of stages that fits, else one stage alone.

    The single stages take turns, so that all blocks train; where the one whose turn it is doesn't fit, the next that
    does is taken.  Stage 1 alone is a prefix too: it has its turn with the others.  The server's model is whole in
    every round.
    """

    class Options(ScheduleOptions):
        """Fields of ``schedule: {name: elastic}``."""

        name: Literal["elastic"] = "elastic"
        stages: PositiveInt | Annotated[list[NonNegativeInt], Field(min_length=1)] = Field(
            2, description="how many stages of equal size, or the blocks of each stage: [1, 1, 2]"
        )
        parts: tuple[Part, ...] = Field(
            ("all", "progressive", "layerwise"),
            description="what clients are offered: all blocks, the first stages together, one stage alone",
        )
        depth: Literal["part", "whole"] = Field(
            "part",
            description="a client's model ends with the last block that it trains (part) or is whole (whole): the rest "
            "is frozen",
        )
        rotate: PositiveInt = Field(1, description="rounds after which the turn is the next single stage's")

        @field_validator("parts")
        @classmethod
        def _some(cls, value: tuple[Part, ...]) -> tuple[Part, ...]:
            if not value or len(set(value)) < len(value):
                raise ValueError("parts lists one or more of all, progressive and layerwise, each once")
            return value

    def __init__(self, options: Elastic.Options, blocks: Mapping[str, int]):
        ends = depths_of(options.stages, blocks)
        starts = [dict.fromkeys(blocks, 0), *ends[:-1]]
        # a stage of no blocks in any tower is no part of its own
        kept = [i for i, end in enumerate(ends) if i == 0 or any(end[t] > starts[i][t] for t in blocks)]
        count, rounds = len(ends), options.rounds or 10
        whole = dict(blocks)
        found: list[Stage] = []

        def part(first: int, last: int, label: str) -> Stage:
            """The stages from ``first`` to ``last``, counted from 0, as a part of its own."""
            depth = ends[last] if options.depth == "part" else whole
            names = PARTS if first == 0 else PARTS[len(EARLY) :]
            stage = Stage(len(found) + 1, depth, starts[first], names, rounds, ends[last], label=label)
            found.append(stage)
            return stage

        everything = part(0, count - 1, "all")
        wanted = set(options.parts)
        fixed = [everything] if "all" in wanted else []
        if "progressive" in wanted:
            # alone, the first stage has its turn among the single ones if they are offered
            least = 1 if "layerwise" in wanted else 0
            for last in reversed(kept[least:-1]):
                fixed.append(part(0, last, f"stages 1-{last + 1}" if last else "stage 1"))
        singles = []
        if "layerwise" in wanted and (len(kept) > 1 or "all" not in wanted):
            singles = [part(i, i, f"stage {i + 1}") for i in kept]
        if not fixed + singles:
            fixed = [everything]  # a single stage has no prefix
        self._fixed, self._singles, self._rotate = tuple(fixed), tuple(singles), options.rotate
        super().__init__((everything,), offered=tuple(found))

    def candidates(self, round: int) -> tuple[Stage, ...]:
        """The parts that a client may train in this round, best first."""
        if not self._singles:
            return self._fixed
        turn = (round - 1) // self._rotate % len(self._singles)
        return (*self._fixed, *self._singles[turn:], *self._singles[:turn])
