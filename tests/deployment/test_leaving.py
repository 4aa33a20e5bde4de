"""What can't leave the simulation is refused by name, all reasons at once."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from edgefl.deployment.leaving import check_leaves
from edgefl.errors import ScenarioError
from edgefl.scenario import load

Scenario = Callable[..., dict[str, Any]]


@pytest.mark.parametrize(("sections", "said"), [
    ({"round": {"policy": "asynchronous"}}, "round.policy: "),
    ({"round": {"over_selection": 0.5}}, "round.over_selection: "),
    ({"round": {"gate": "everyone"}}, "round.gate: "),
    ({"round": {"selection": "oort"}}, "round.selection: "),
    ({"schedule": {"name": "split", "after": 1, "rounds": 2}}, "schedule: "),
    ({"method": "local"}, "method: not on real devices: the server scores the clients' own models"),
    ({"round": {"below_quorum": "wait"}}, "round.below_quorum: "),
    ({"method": "central"}, "method: "),
    ({"evaluation": {"clients": 0.2}}, "evaluation.clients: "),
    ({"payload": {"up": "int8"}}, "payload: "),
    ({"training": {"mode": "none"}}, "training.mode: "),
    ({"fleet": {"failures": {"upload": "10%"}}}, "fleet.failures: "),
    ({"fleet": {"failures": {"attack": {"share": 0.2, "name": "sign-flip"}}}}, "fleet.failures: "),
    ({"fleet": {"availability": {"diurnal": {"hours": "8..10 h"}}}}, "fleet.availability: "),
    ({"fleet": {"battery": {"capacity": "10 kJ"}}}, "fleet.battery: "),
    ({"fleet": {"throttling": True}}, "fleet.throttling: "),
    ({"fleet": {"relays": 2}}, "fleet.relays: "),
    ({"fleet": {"server_link": {"upload": "10 Mbit/s"}}}, "fleet.server_link: "),
    ({"fleet": {"carbon_intensity": "400 g/kWh"}}, "fleet.carbon_intensity: "),
    ({"fleet": {"budgets": {"energy_total": "2 kJ"}}}, "fleet.budgets: "),
    ({"compare": {"training.lr": [0.1, 0.2]}}, "compare: "),
])  # fmt: skip
def test_each_part_that_stays_is_named(tiny: Scenario, sections: dict[str, Any], said: str) -> None:
    with pytest.raises(
        ScenarioError, match="^" + re.escape(said if "not on" in said else f"{said}not on real devices: ")
    ):
        check_leaves(load(tiny(**sections)))


def test_all_reasons_are_told_at_once(tiny: Scenario) -> None:
    round, fleet = {"policy": "asynchronous", "selection": "oort"}, {"throttling": True}
    with pytest.raises(ScenarioError) as caught:
        check_leaves(load(tiny(round=round, fleet=fleet)))
    named = [line.split(":")[0] for line in str(caught.value).splitlines()]
    assert named == ["round.policy", "round.selection", "fleet.throttling"]


def test_a_scenario_without_them_leaves(tiny: Scenario) -> None:
    check_leaves(load(tiny(method="fedcola", schedule={"name": "layerwise", "stages": 2, "rounds": 4})))
