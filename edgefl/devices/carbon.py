"""CO2 equivalent of the energy that clients draw: its option, its columns of records, and its words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from edgefl import units
from edgefl.records.carbon import CarbonGrams
from edgefl.records.record import UNSET, types_of

CarbonIntensity = Annotated[
    units.CarbonIntensity | None,
    Field(
        description="Grams of CO2 equivalent for each kWh that clients draw ('400 g/kWh'); records and reports then "
        "show grams."
    ),
]
JOULES_PER_KWH = 3.6e6


@dataclass(frozen=True)
class Carbon:
    """CO2 equivalent at an ``intensity`` in grams per kWh; one of a fleet's ``columns``."""

    intensity: float
    flight_fields = tuple(types_of(CarbonGrams))
    round_sums = dict.fromkeys(flight_fields, 0.0)

    def flight_columns(
        self, clients: NDArray[np.int64], joules: Sequence[NDArray[np.float64]]
    ) -> dict[str, NDArray[np.float64]]:
        """Grams of each phase, `[flights]` each, of flights that took ``joules`` `[flights]` in each phase."""
        grams = (phase * (self.intensity / JOULES_PER_KWH) for phase in joules)
        return dict(zip(self.flight_fields, grams, strict=True))


def carbon_words(totals: CarbonGrams) -> str:
    """One line: "CO2 equivalent of the clients' energy: 1.2 g (download 0.1 g, ...)"; empty without an intensity."""
    grams = {name.split("_")[0]: g for name in Carbon.flight_fields if (g := getattr(totals, name)) is not UNSET}
    if not grams:
        return ""
    by = ", ".join(f"{phase} {units.show_grams(each)}" for phase, each in grams.items())
    return f"CO2 equivalent of the clients' energy: {units.show_grams(sum(grams.values()))} ({by})"
