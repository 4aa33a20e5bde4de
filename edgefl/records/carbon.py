"""What records have of CO2 equivalent, only with `fleet.carbon_intensity`."""

from __future__ import annotations

from edgefl.records.record import UNSET, Maybe, Record


class CarbonGrams(Record):
    """CO2 equivalent by phase: of a flight, or of the flights of a round."""

    download_carbon_grams: float | Maybe = UNSET
    """CO2 equivalent of the energy while downloading; only with `fleet.carbon_intensity`"""
    compute_carbon_grams: float | Maybe = UNSET
    """CO2 equivalent of the energy while computing; only with `fleet.carbon_intensity`"""
    upload_carbon_grams: float | Maybe = UNSET
    """CO2 equivalent of the energy while uploading; only with `fleet.carbon_intensity`"""
