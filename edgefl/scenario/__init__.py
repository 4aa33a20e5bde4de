"""Scenarios: YAML files as validated options; errors name the file and line.

The names of ``__all__`` are imported on first use: the shipped scenarios can be listed and copied without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgefl.scenario.library import library_folder, scenario_names
    from edgefl.scenario.problems import ScenarioErrors
    from edgefl.scenario.scenario import Scenario, load
    from edgefl.scenario.schema import json_schema

__all__ = ["Scenario", "ScenarioErrors", "json_schema", "library_folder", "load", "scenario_names"]

_MODULES = {
    "Scenario": "scenario",
    "ScenarioErrors": "problems",
    "json_schema": "schema",
    "library_folder": "library",
    "load": "scenario",
    "scenario_names": "library",
}
"""Module of each public name."""


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
