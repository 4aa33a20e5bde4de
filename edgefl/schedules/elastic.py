"""Elastic: each client trains the largest part of the model that fits its own budgets.  edgefl's own schedule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, field_validator

from edgefl.schedules.staged import depths_of
from edgefl.schedules.stages import EARLY, PARTS, Schedule, Stage, StageCount

Part = Literal["all", "progressive", "layerwise"]


class Elastic(Schedule):
    """A client trains all blocks, or the largest prefix of stages that fits, or a single stage.

    Single stages take turns, so that all blocks train over time.  If the stage whose turn it is doesn't fit, the
    client takes the next one that does.  Stage 1 is a prefix as well as a single stage; it takes its turn with the
    single stages.  The server's model is complete in every round.
    """

    class Options(Schedule.Options):
        """Fields of ``schedule: {name: elastic}``."""

        name: Literal["elastic"] = "elastic"
        stages: StageCount | Annotated[list[NonNegativeInt], Field(min_length=1)] = Field(
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

        @field_validator("parts")
        @classmethod
        def _some(cls, value: tuple[Part, ...]) -> tuple[Part, ...]:
            if not value or len(set(value)) < len(value):
                raise ValueError("parts must list one or more of all, progressive and layerwise, each at most once")
            return value

    def __init__(self, options: Elastic.Options, blocks: Mapping[str, int]):
        ends = depths_of(options.stages, blocks)
        starts = [dict.fromkeys(blocks, 0), *ends[:-1]]
        # a stage that adds no block to any tower is left out
        kept = [i for i, end in enumerate(ends) if i == 0 or any(end[t] > starts[i][t] for t in blocks)]
        count, rounds = len(ends), options.rounds or 10
        whole = dict(blocks)
        offered: list[Stage] = []

        def part(first: int, last: int, label: str) -> Stage:
            """The part from stage ``first`` to stage ``last``, counted from 0."""
            depth = ends[last] if options.depth == "part" else whole
            names = PARTS if first == 0 else PARTS[len(EARLY) :]
            stage = Stage(len(offered) + 1, depth, starts[first], names, rounds, ends[last], label=label)
            offered.append(stage)
            return stage

        everything = part(0, count - 1, "all")
        wanted = set(options.parts)
        fixed = [everything] if "all" in wanted else []
        if "progressive" in wanted:
            # stage 1 is offered as a single stage if single stages are offered
            least = 1 if "layerwise" in wanted else 0
            for last in reversed(kept[least:-1]):
                fixed.append(part(0, last, f"stages 1-{last + 1}" if last else "stage 1"))
        singles = []
        if "layerwise" in wanted and (len(kept) > 1 or "all" not in wanted):
            singles = [part(i, i, f"stage {i + 1}") for i in kept]
        if not fixed + singles:
            fixed = [everything]  # with one stage there is no smaller prefix
        self._fixed, self._singles = tuple(fixed), tuple(singles)
        super().__init__((everything,), offered=tuple(offered))

    def candidates(self, round: int) -> tuple[Stage, ...]:
        """Parts that a client may train: all blocks, prefixes from large to small, then single stages in turn."""
        if not self._singles:
            return self._fixed
        turn = (round - 1) % len(self._singles)
        return (*self._fixed, *self._singles[turn:], *self._singles[:turn])
