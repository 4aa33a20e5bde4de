"""Scenarios: YAML files as validated options; errors name the file and line.

The names of ``__all__`` are imported on first use: the shipped scenarios can be listed and copied without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgefl import first_use

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


__getattr__ = first_use.imports(__name__, _MODULES)
