"""Scenarios: from a YAML file to the objects that the rooms own, with an error's line where it is wrong."""

from __future__ import annotations

from edgefl.scenario.library import library_folder, scenario_names
from edgefl.scenario.problems import ScenarioErrors
from edgefl.scenario.scenario import Scenario, load
from edgefl.scenario.schema import json_schema

__all__ = ["Scenario", "ScenarioErrors", "json_schema", "library_folder", "load", "scenario_names"]
