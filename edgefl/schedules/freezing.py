"""Schedules that freeze a block once it has converged: SmartFreeze and ProFL."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Literal

from pydantic import Field, PositiveInt

from edgefl.schedules.ending import Pace, PaceOptions
from edgefl.schedules.staged import StagedOptions, allocate, block_stages, depths_of
from edgefl.schedules.stages import Schedule


class SmartFreeze(Schedule):
    """Layer-wise stages, each of which ends when the perturbation of its blocks no longer falls."""

    paper = "Wu et al. 2024"

    class Options(PaceOptions, StagedOptions):
        """Fields of ``schedule: {name: smartfreeze}``."""

        name: Literal["smartfreeze"] = "smartfreeze"
        smooth: PositiveInt = Field(2, description="ratios of which the mean is taken, against noise")

    def __init__(self, options: SmartFreeze.Options, blocks: Mapping[str, int]):
        depths = depths_of(options.stages, blocks)
        rounds = allocate(options.allocation, len(depths), options.rounds or 10)
        super().__init__(
            block_stages(range(len(depths)), depths, rounds), ending=partial(Pace, options, 2, options.smooth)
        )


class ProFL(Schedule):
    """The stages of the model train alone from the last to the second (shrinking), then from the first to the last.

    A stage ends when the effective movement of its blocks no longer falls.
    """

    paper = "Wu, Li and Xu 2025"

    class Options(PaceOptions, StagedOptions):
        """Fields of ``schedule: {name: profl}``."""

        name: Literal["profl"] = "profl"

        @property
        def count(self) -> int:
            """Stages that have rounds: one less for shrinking than for growing."""
            return 2 * super().count - 1

    def __init__(self, options: ProFL.Options, blocks: Mapping[str, int]):
        depths = depths_of(options.stages, blocks)
        order = [*range(len(depths) - 1, 0, -1), *range(len(depths))]
        rounds = allocate(options.allocation, len(order), options.rounds or 10)
        super().__init__(block_stages(order, depths, rounds), ending=partial(Pace, options, 1))
