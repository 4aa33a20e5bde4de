"""Scenarios: YAML files as validated options; errors name the file and line."""

from __future__ import annotations

from edgefl.scenario.library import library_folder, scenario_names
from edgefl.scenario.problems import ScenarioErrors
from edgefl.scenario.scenario import Scenario, load
from edgefl.scenario.schema import json_schema

__all__ = ["Scenario", "ScenarioErrors", "json_schema", "library_folder", "load", "scenario_names"]
