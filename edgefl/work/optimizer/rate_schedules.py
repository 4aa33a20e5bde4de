"""Learning rates that change from round to round: the scenario's ``training.lr_schedule``.

A shape is a factor on every learning rate of a round: the closed forms of torch's LinearLR (the warm-up), StepLR,
MultiStepLR and CosineAnnealingLR, with a step after every round.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import cos, inf, pi
from typing import Any, ClassVar

from pydantic import Field, NonNegativeInt, PositiveInt, field_validator

from edgefl import registry
from edgefl.errors import MethodError, PluginError
from edgefl.registry.part_fields import Fields


class _Itself:
    """An attribute that is the class that has it."""

    def __get__(self, instance: object, owner: type) -> type:
        return owner


class RateSchedule(Fields):
    """The factor on the learning rates in each round of a run: a warm-up, and a shape after it.

    Subclass, add fields, and override ``shape``.
    """

    Options: ClassVar[Any] = _Itself()
    """The class itself, whose fields are what a scenario may write."""

    name: str = Field("constant", description="shape after the warm-up")
    warm_up: NonNegativeInt = Field(
        0, description="rounds in which the rate rises linearly; the round after them has the full rate"
    )
    start: float = Field(0.1, gt=0, le=1, description="share of the rate in the first round of a warm-up")

    def shape(self, passed: int, rounds: int) -> float:
        """The factor after ``passed`` of the ``rounds`` behind the warm-up: above 0; 1 is the full rate."""
        raise NotImplementedError

    def never_comes(self, rounds: int) -> tuple[str, str] | None:
        """The field whose effect doesn't come in a run of so many rounds, and why."""
        return None

    @property
    def varies(self) -> bool:
        """Whether the rate is not the same in every round."""
        return not isinstance(self, Constant) or self.warm_up > 0

    def factor_of(self, passed: int, rounds: int) -> float:
        """The factor after ``passed`` of the ``rounds`` that the shape spans; it is above 0."""
        if passed < self.warm_up:
            return self.start + (1 - self.start) * passed / self.warm_up
        factor = float(self.shape(passed - self.warm_up, rounds - self.warm_up))
        if not 0 < factor < inf:
            raise MethodError(
                f"{registry.describe_part('rate schedule', self.name)} gives the factor {factor:g} after {passed} of "
                f"{rounds} rounds: it must be above 0"
            )
        return factor

    def factors(self, rounds: int) -> tuple[float, ...]:
        """The factor of each round of a run."""
        return tuple(self.factor_of(passed, rounds) for passed in range(rounds))

    def problem(self, rounds: int) -> tuple[str, str] | None:
        """The field that can't be had in a run of so many rounds, and why; None if all can."""
        if self.warm_up and self.warm_up >= rounds:
            why = f"a warm-up of {_rounds_text(self.warm_up)} never ends: the run has {_rounds_text(rounds)}"
            return "warm_up", why
        return self.never_comes(rounds)


class Constant(RateSchedule):
    """The same rate in every round."""

    def shape(self, passed: int, rounds: int) -> float:
        """1."""
        return 1.0


class StepDecay(RateSchedule):
    """A smaller rate after some rounds."""

    every: PositiveInt | list[PositiveInt] = Field(
        description="rounds between two steps, or the rounds after which there is one, counted from the end of the "
        "warm-up"
    )
    factor: float | None = Field(None, gt=0, lt=1, description="factor on the rate at each step; null: 0.1")

    @field_validator("every")
    @classmethod
    def _ascending(cls, value: int | list[int]) -> int | list[int]:
        if isinstance(value, list) and (not value or sorted(set(value)) != value):
            raise ValueError(f"the rounds of the steps must ascend, such as [30, 60], not {value}")
        return value

    def shape(self, passed: int, rounds: int) -> float:
        """``factor`` to the power of the steps until then."""
        steps = passed // self.every if isinstance(self.every, int) else sum(passed >= at for at in self.every)
        return float((0.1 if self.factor is None else self.factor) ** steps)

    def never_comes(self, rounds: int) -> tuple[str, str] | None:
        """A first step after the last round."""
        first = self.every if isinstance(self.every, int) else min(self.every)
        if self.warm_up + first < rounds:
            return None
        after = f" after a warm-up of {self.warm_up}" if self.warm_up else ""
        return "every", f"a step after {_rounds_text(first)}{after} never comes: the run has {_rounds_text(rounds)}"


class Cosine(RateSchedule):
    """Half a cosine down to the floor."""

    floor: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="share of the rate that a cosine approaches: it would reach it in the round after the last; "
        "null: 0",
    )

    def shape(self, passed: int, rounds: int) -> float:
        """From 1 to ``floor``."""
        floor = self.floor or 0.0
        return floor + (1 - floor) * (1 + cos(pi * passed / rounds)) / 2


def _rounds_text(rounds: int) -> str:
    return f"{rounds} round{'' if rounds == 1 else 's'}"


def parse_rate_schedule(value: Any) -> Any:
    """The rate schedule of a name, or of a mapping with one.  Raises UnknownName, ValueError, ValidationError."""
    if isinstance(value, RateSchedule):
        return value
    fields = {"name": value} if isinstance(value, str) else value
    if not isinstance(fields, Mapping):
        raise ValueError(f"a rate schedule is a name such as cosine, or a mapping with a name, not {value!r:.60}")
    name = fields.get("name", "constant")
    part: type[RateSchedule] = registry.get("rate schedule", name)
    for field in fields.keys() - part.model_fields.keys():
        if owners := [other for other in registry.names("rate schedule") if field in _fields_of(other)]:
            raise ValueError(f"{name} has no {field}: it belongs to {' and '.join(owners)}")
    return part.model_validate({**fields, "name": name})


def _fields_of(name: str) -> Collection[str]:
    """The fields of a rate schedule; none of one that can't be imported."""
    try:
        fields: Collection[str] = registry.get("rate schedule", name).model_fields
    except PluginError:
        return ()
    return fields
