"""Grams of CO2 equivalent of a run, by phase; there are none unless its scenario states a carbon intensity."""

from __future__ import annotations

from edgefl import units
from edgefl.records import UNSET
from edgefl.records.rounds import CARBON, Sums


def carbon_of(totals: Sums) -> dict[str, float]:
    """Grams by phase, of a run's totals; empty without an intensity."""
    found = {name.split("_")[0]: getattr(totals, name) for name in CARBON}
    return {phase: grams for phase, grams in found.items() if grams is not UNSET}


def carbon_words(totals: Sums) -> str:
    """One line: "CO2 equivalent of the clients' energy: 1.2 g (download 0.1 g, ...)"; empty without an intensity."""
    grams = carbon_of(totals)
    if not grams:
        return ""
    by = ", ".join(f"{phase} {units.show_grams(each)}" for phase, each in grams.items())
    return f"CO2 equivalent of the clients' energy: {units.show_grams(sum(grams.values()))} ({by})"
