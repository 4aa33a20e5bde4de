"""Options of a fleet's `availability:` in a scenario: one key, the name of a registered part, with its fields."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, field_validator, model_validator
from pydantic.json_schema import JsonSchemaValue

from edgefl import registry, units
from edgefl.errors import EdgeflError, UnitError, UnknownName, suggestion
from edgefl.registry.part_fields import Fields, FileName

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


class DiurnalOptions(Fields):
    """A window of availability in every day. Each client draws its window once; ``jitter`` shifts it on each day."""

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


class MarkovOptions(Fields):
    """A two-state Markov process: clients are available and unavailable for exponentially distributed times.

    They start in the stationary distribution.
    """

    on: units.Seconds = Field(description="Mean time for which a client can be reached (2 h).")
    off: units.Seconds = Field(description="Mean time for which it can't be reached after that (10 h).")

    @field_validator("on", "off")
    @classmethod
    def _positive(cls, value: float) -> float:
        if value <= 0:
            raise ValueError("a mean time must be more than 0 s; for clients that are always available omit markov")
        return value


class TraceOptions(Fields):
    """Recorded availability: each client gets the record of a random device of the trace."""

    file: FileName = Field(
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


class _NamedAvailability(NamedTuple):
    """An availability that isn't a field, as a scenario states it."""

    name: str
    value: object


def _options(stated: object) -> Any:
    """The options of a registered availability.  Raises ValueError, and pydantic's ValidationError."""
    assert isinstance(stated, _NamedAvailability)
    if stated.name not in (names := registry.names("availability")) or stated.name == "always":
        raise ValueError(f"unknown key {stated.name!r}{suggestion(stated.name, names)}")
    return registry.get("availability", stated.name).Options.model_validate(stated.value)


class AvailabilityOptions(BaseModel):
    """When clients are available: exactly one of these, or of those that plug-ins register."""

    model_config = ConfigDict(extra="allow", frozen=True)
    __pydantic_extra__: dict[str, Annotated[Any, BeforeValidator(_options)]]

    diurnal: DiurnalOptions | None = Field(default=None, description="A window in every day.")
    markov: MarkovOptions | None = Field(default=None, description="On and off by chance.")
    trace: TraceOptions | None = Field(default=None, description="Recorded times, from a file.")

    @model_validator(mode="before")
    @classmethod
    def _read_registered(cls, written: object) -> object:
        if isinstance(written, str):
            if written not in (names := registry.names("availability")):
                raise ValueError(str(UnknownName("availability", written, names)))
            written = {written: {}}
        if not isinstance(written, Mapping):
            return written
        others = written.keys() - cls.model_fields.keys()
        return {
            name: _NamedAvailability(str(name), value) if name in others else value for name, value in written.items()
        }

    @model_validator(mode="after")
    def _one(self) -> AvailabilityOptions:
        given = [name for name, options in self if options is not None]
        if len(given) != 1:
            problem = f"{' and '.join(given)} are given together" if given else "nothing is given"
            others = [name for name in registry.names("availability") if name not in type(self).model_fields]
            allowed = "always, diurnal: {...}, markov: {...}, trace: {...}"
            allowed += "".join(f", {name}: {{...}}" for name in others if name != "always")
            raise ValueError(f"{problem}; write one of {allowed}")
        return self

    @property
    def name_and_options(self) -> tuple[str, BaseModel]:
        """The name and the options of the part that is given."""
        return next((name, options) for name, options in self if options is not None)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> JsonSchemaValue:
        """Its fields, and the registered parts that aren't fields, by name."""
        found = handler.resolve_ref_schema(handler(schema))
        for name in registry.names("availability"):
            if name != "always" and name not in cls.model_fields:
                try:
                    part = registry.get("availability", name)
                except EdgeflError:  # the plug-in can't be imported
                    continue
                forms = [handler(part.Options.__pydantic_core_schema__), {"type": "null"}]
                summary = part.summary or f"The availability {name}."
                found["properties"][name] = {"anyOf": forms, "default": None, "description": summary}
        found["additionalProperties"] = False
        return dict(found)
