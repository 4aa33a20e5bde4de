"""Grams of CO2 equivalent of a run, by phase; there are none unless its scenario states a carbon intensity."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgefl import units


def carbon_of(totals: Mapping[str, Any]) -> dict[str, float]:
    """Grams by phase, of a run's totals; empty without an intensity."""
    from edgefl.runs import CARBON

    return {name.split("_")[0]: totals[name] for name in CARBON if name in totals}


def carbon_words(totals: Mapping[str, Any]) -> str:
    """One line: "CO2 equivalent of the clients' energy: 1.2 g (download 0.1 g, ...)"; empty without an intensity."""
    grams = carbon_of(totals)
    if not grams:
        return ""
    by = ", ".join(f"{phase} {units.show_grams(each)}" for phase, each in grams.items())
    return f"CO2 equivalent of the clients' energy: {units.show_grams(sum(grams.values()))} ({by})"
