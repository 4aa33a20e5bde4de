"""Options of a fleet's `availability:` in a scenario."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, field_validator, model_validator

from edgefl import units
from edgefl.errors import UnitError

_HOURS = units.Quantity(
    "number of hours",
    "8..10 h",
    {unit: Fraction(factor) / 3600 for unit, factor in units.SECONDS.factors.items() if unit} | {"": Fraction(1)},
)
_CLOCK = re.compile(r"(\d{1,2}):([0-5]\d)")


def _hours(value: object) -> object:
    try:
        return _HOURS.parse_range(value)
    except UnitError as error:
        raise ValueError(str(error)) from None


def _time_of_day(value: object) -> object:
    """(earliest, latest) in hours; a range over midnight ends after 24, so "22:00..2:00" is (22, 26)."""
    if value == "spread":
        return value
    if isinstance(value, str) and ":" in value:
        ends = [_CLOCK.fullmatch(part.strip()) for part in value.split("..")]
        if len(ends) > 2 or not all(ends):
            raise ValueError(f"{value!r} is not a time of day or a range of them; write for example '18:00..23:00'")
        hours = [int(end[1]) + int(end[2]) / 60 for end in ends if end]
        return hours[0], hours[-1] + (24 if hours[-1] < hours[0] else 0)
    try:
        return _HOURS.parse_range(value)
    except UnitError as error:
        raise ValueError(f"{error}; or a time of day ('18:00..23:00'), or 'spread'") from None


def _schema(*examples: object) -> WithJsonSchema:
    return WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "minimum": 0},
                {"type": "string"},
                {"type": "array", "minItems": 2, "maxItems": 2},
            ],
            "examples": list(examples),
        }
    )


class DiurnalOptions(BaseModel):
    """A window of availability in every day. Each client draws its window once; ``jitter`` shifts it on each day."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    hours: Annotated[tuple[float, float], BeforeValidator(_hours), _schema("8..10 h")] = Field(
        default=(8.0, 10.0),
        description="Length of a client's window, or a range from which each client draws; a plain number is hours.",
    )
    start: Annotated[Literal["spread"] | tuple[float, float], BeforeValidator(_time_of_day)] = Field(
        default=(18.0, 23.0),
        description="Beginning of the window: a time of day, or a range from which each client draws "
        "(18:00..23:00, 18..23 h); spread: anywhere in the period.",
        json_schema_extra={"examples": ["18:00..23:00", "spread"]},
    )
    jitter: units.Seconds = Field(
        default=0.0, description="Most that a window begins and ends earlier or later than usual on a day."
    )
    period: units.Seconds = Field(default=86400.0, description="Length of a day.")
    begins: Annotated[tuple[float, float], BeforeValidator(_time_of_day), _schema("9:00")] = Field(
        default=(0.0, 0.0), description="The time of day at which the simulation begins."
    )

    @field_validator("begins")
    @classmethod
    def _once(cls, value: tuple[float, float]) -> tuple[float, float]:
        if isinstance(value, str) or value[0] != value[1]:
            raise ValueError("begins is one time of day, such as 9:00")
        return value

    @model_validator(mode="after")
    def _fits(self) -> DiurnalOptions:
        if self.hours[0] <= 0:
            raise ValueError("hours: a window must be longer than 0 h")
        longest, day = self.hours[1] * 3600 + 2 * self.jitter, units.show_seconds(self.period)
        if longest >= self.period:
            raise ValueError(
                f"a window of up to {units.show_seconds(self.hours[1] * 3600)} and twice the jitter don't fit into a "
                f"period of {day}; for clients that are always available write availability: always"
            )
        if self.start != "spread" and self.start[1] * 3600 > 2 * self.period:
            raise ValueError(
                f"start: {self.start[1]:g} h is outside a period of {day}; write hours, or a time as '18:00..23:00'"
            )
        return self


class MarkovOptions(BaseModel):
    """A two-state Markov process: clients are available and unavailable for exponentially distributed times.

    They start in the stationary distribution.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    on: units.Seconds = Field(description="Mean time for which a client can be reached (2 h).")
    off: units.Seconds = Field(description="Mean time for which it can't be reached after that (10 h).")

    @field_validator("on", "off")
    @classmethod
    def _positive(cls, value: float) -> float:
        if value <= 0:
            raise ValueError("a mean time must be more than 0 s; for clients that are always available omit markov")
        return value


class TraceOptions(BaseModel):
    """Recorded availability: each client gets the record of a random device of the trace."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    file: str = Field(
        min_length=1,
        description="CSV (.csv) or JSON Lines (.jsonl) with a row for each interval in which a device was available: "
        "device (or client), start, end. Times are in seconds; the rows of a device are sorted.",
    )
    period: units.Seconds | None = Field(
        default=None,
        description="Time after which the trace begins anew (7 d); left out: it ends, and then no client can be "
        "reached.",
    )

    @field_validator("period")
    @classmethod
    def _positive(cls, value: float | None) -> float | None:
        if value is not None and value <= 0:
            raise ValueError("a period must be more than 0 s; leave it out if the trace doesn't repeat")
        return value


class AvailabilityOptions(BaseModel):
    """When clients are available: exactly one of these."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    diurnal: DiurnalOptions | None = Field(default=None, description="A window in every day.")
    markov: MarkovOptions | None = Field(default=None, description="On and off by chance.")
    trace: TraceOptions | None = Field(default=None, description="Recorded times, from a file.")

    @model_validator(mode="after")
    def _one(self) -> AvailabilityOptions:
        given = [name for name in type(self).model_fields if getattr(self, name) is not None]
        if len(given) != 1:
            problem = f"{' and '.join(given)} are given together" if given else "nothing is given"
            raise ValueError(f"{problem}; write one of always, diurnal: {{...}}, markov: {{...}}, trace: {{...}}")
        return self
