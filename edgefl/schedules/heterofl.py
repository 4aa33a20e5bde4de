"""HeteroFL: each client trains the widest model that fits its own budgets (Diao, Ding and Tarokh 2021)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field, field_validator

from edgefl.schedules.stages import PARTS, Schedule, ScheduleOptions, Stage

Width = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]


class HeteroFL(Schedule):
    """A client trains the leading attention heads and the matching slices of all layers: the widest that fits."""

    class Options(ScheduleOptions):
        """Fields of ``schedule: {name: heterofl}``."""

        name: Literal["heterofl"] = "heterofl"
        widths: tuple[Width, ...] = Field(
            (1.0, 0.5, 0.25), description="shares of the heads that clients are offered; 1 among them, the server's"
        )
        scaler: bool = Field(
            True, description="divide what the blocks' linear layers give by the share while training, as the paper"
        )

        @field_validator("widths")
        @classmethod
        def _whole(cls, value: tuple[float, ...]) -> tuple[float, ...]:
            if len(set(value)) < len(value):
                raise ValueError(f"widths {list(value)} has a value twice; each may stand once")
            if 1.0 not in value:
                raise ValueError(f"widths {list(value)} lacks 1, the server's model; add it")
            return tuple(sorted(value, reverse=True))

    def __init__(self, options: HeteroFL.Options, blocks: Mapping[str, int]):
        rounds, zero = options.rounds or 10, dict.fromkeys(blocks, 0)
        whole = Stage(1, dict(blocks), zero, PARTS, rounds, scaler=options.scaler)
        offered = tuple(
            replace(whole, index=i + 1, width=width, label=f"width {width:g}") for i, width in enumerate(options.widths)
        )
        super().__init__(offered[:1], offered=offered)

    def candidates(self, round: int) -> tuple[Stage, ...]:
        """All widths, the widest first."""
        return self.offered
