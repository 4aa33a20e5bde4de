"""CO2 equivalent of the energy that clients draw: the option, and the grams.  Records have the columns and words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from edgefl import units
from edgefl.arrays import Floats, Integers
from edgefl.records.carbon import CarbonGrams
from edgefl.records.record import types_of

CarbonIntensity = Annotated[
    units.CarbonIntensity | None,
    Field(
        description="Grams of CO2 equivalent for each kWh that clients draw ('400 g/kWh'); records and reports then "
        "show grams."
    ),
]
JOULES_PER_KWH = 3.6e6
"""By definition: 1,000 W for 3,600 s."""


@dataclass(frozen=True)
class Carbon:
    """CO2 equivalent at an ``intensity`` in grams per kWh; one of a fleet's ``columns``."""

    intensity: float
    flight_fields = tuple(types_of(CarbonGrams))
    round_sums = dict.fromkeys(flight_fields, 0.0)

    def flight_columns(self, clients: Integers, joules: Sequence[Floats]) -> dict[str, Floats]:
        """Grams of each phase, `[flights]` each, of flights that took ``joules`` `[flights]` in each phase."""
        grams = (phase * (self.intensity / JOULES_PER_KWH) for phase in joules)
        return dict(zip(self.flight_fields, grams, strict=True))
