"""Learning rates that change from round to round: the scenario's ``training.lr_schedule``.

A shape is a factor on every learning rate of a round: the closed forms of torch's LinearLR (the warm-up), StepLR,
MultiStepLR and CosineAnnealingLR, with a step after every round.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import cos, pi
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, field_validator, model_validator

FIELDS = {"every": "step", "factor": "step", "floor": "cosine"}
"""Fields that belong to one shape."""


class RateSchedule(BaseModel):
    """The factor on the learning rates in each round of a run, or of a stage."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Literal["constant", "step", "cosine"] = Field(
        "constant",
        description="shape after the warm-up: the same rate (constant), a smaller one after some rounds (step), or "
        "half a cosine down to the floor (cosine)",
    )
    warm_up: NonNegativeInt = Field(
        0, description="rounds in which the rate rises linearly; the round after them has the full rate"
    )
    start: float = Field(0.1, gt=0, le=1, description="share of the rate in the first round of a warm-up")
    every: PositiveInt | list[PositiveInt] | None = Field(
        None,
        description="rounds between two steps, or the rounds after which there is one, counted from the end of the "
        "warm-up; for step",
    )
    factor: float | None = Field(None, gt=0, lt=1, description="factor on the rate at each step; null: 0.1; for step")
    floor: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="share of the rate that a cosine approaches: it would reach it in the round after the last; "
        "null: 0; for cosine",
    )
    restart: Literal["never", "stage"] = Field(
        "never", description="whether the shape spans all rounds (never), or begins anew in each stage of the schedule"
    )

    @field_validator("every")
    @classmethod
    def _ascending(cls, value: int | list[int] | None) -> int | list[int] | None:
        if isinstance(value, list) and (not value or sorted(set(value)) != value):
            raise ValueError(f"the rounds of the steps must ascend, such as [30, 60], not {value}")
        return value

    @model_validator(mode="after")
    def _applies(self) -> RateSchedule:
        for field, name in FIELDS.items():
            if getattr(self, field) is not None and self.name != name:
                raise ValueError(f"{self.name} has no {field}: it belongs to {name}")
        if self.name == "step" and self.every is None:
            raise ValueError("step needs the rounds between two steps: every: 10, or every: [30, 60]")
        return self

    @property
    def varies(self) -> bool:
        """Whether the rate is not the same in every round."""
        return self.name != "constant" or self.warm_up > 0

    def factor_of(self, passed: int, rounds: int) -> float:
        """The factor after ``passed`` of the ``rounds`` that the shape spans; it is above 0."""
        if passed < self.warm_up:
            return self.start + (1 - self.start) * passed / self.warm_up
        passed, rounds = passed - self.warm_up, rounds - self.warm_up
        if self.name == "cosine":
            floor = self.floor or 0.0
            return floor + (1 - floor) * (1 + cos(pi * passed / rounds)) / 2
        if self.name == "step":
            assert self.every is not None
            steps = passed // self.every if isinstance(self.every, int) else sum(passed >= at for at in self.every)
            return float((0.1 if self.factor is None else self.factor) ** steps)
        return 1.0

    def factors(self, stages: Sequence[int]) -> tuple[float, ...]:
        """The factor of each round of a run with these ``stages``, given by their rounds."""
        spans = [sum(stages)] if self.restart == "never" else stages
        return tuple(self.factor_of(passed, rounds) for rounds in spans for passed in range(rounds))

    def problem(self, stages: Sequence[int]) -> tuple[str, str] | None:
        """The field that can't be had in these ``stages`` (their rounds), and why; None if all can."""
        spans = [sum(stages)] if self.restart == "never" else [rounds for rounds in stages if rounds]
        shortest, longest = min(spans, default=0), max(spans, default=0)
        where = "the run" if self.restart == "never" else "a stage"
        if self.warm_up and self.warm_up >= shortest:
            return "warm_up", f"a warm-up of {_counted(self.warm_up)} never ends: {where} has {_counted(shortest)}"
        first = self.every if isinstance(self.every, int) else min(self.every or [0])
        if self.every is not None and self.warm_up + first >= longest:
            after = f" after a warm-up of {self.warm_up}" if self.warm_up else ""
            return "every", f"a step after {_counted(first)}{after} never comes: {where} has {_counted(longest)}"
        return None


def _counted(rounds: int) -> str:
    return f"{rounds} round{'' if rounds == 1 else 's'}"


def parse_rate_schedule(value: Any) -> Any:
    """Wrap a name as a mapping of options; return other values unchanged for pydantic to validate."""
    return {"name": value} if isinstance(value, str) else value
