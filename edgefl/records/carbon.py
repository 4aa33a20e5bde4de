"""CO2 equivalent in records, only with `fleet.carbon_intensity`: the columns and the words."""

from __future__ import annotations

from edgefl import units
from edgefl.records.record import UNSET, Maybe, Record, types_of


class CarbonGrams(Record):
    """CO2 equivalent by phase: of a flight, or of the flights of a round."""

    download_carbon_grams: float | Maybe = UNSET
    """CO2 equivalent of the energy while downloading; only with `fleet.carbon_intensity`"""
    compute_carbon_grams: float | Maybe = UNSET
    """CO2 equivalent of the energy while computing; only with `fleet.carbon_intensity`"""
    upload_carbon_grams: float | Maybe = UNSET
    """CO2 equivalent of the energy while uploading; only with `fleet.carbon_intensity`"""


def carbon_words(totals: CarbonGrams) -> str:
    """One line: "CO2 equivalent of the clients' energy: 1.2 g (download 0.1 g, ...)"; empty without an intensity."""
    grams = {name.split("_")[0]: g for name in types_of(CarbonGrams) if (g := getattr(totals, name)) is not UNSET}
    if not grams:
        return ""
    by = ", ".join(f"{phase} {units.show_grams(each)}" for phase, each in grams.items())
    return f"CO2 equivalent of the clients' energy: {units.show_grams(sum(grams.values()))} ({by})"
