"""What a run's scenario says, as its reports read it: every scenario that edgefl ships can be read back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgefl.records.reading import decode
from edgefl.records.settings import Settings
from edgefl.scenario import load

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = sorted(path for path in (ROOT / "scenarios").rglob("*.yaml") if path.parent.name != "suites")
SCENARIOS = SHIPPED + sorted((ROOT / "tests/recorded/scenarios").glob("*.yaml"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_a_resolved_scenario_is_read_back(path: Path) -> None:
    scenario = load(path)
    resolved = scenario.to_data()
    found = decode(Settings, json.dumps(resolved).encode(), path)
    assert (found.name, found.seed) == (scenario.name, scenario.seed)
    assert found.method.name == scenario.method_name and found.schedule.name == scenario.schedule_name
    assert {kind: n for kind, n in (found.data.clients or {}).items() if n} == {
        kind: n for kind, n in scenario.data.clients.items() if n
    }
    assert found.training.mode == resolved["training"]["mode"]
