"""What can't leave the simulation is refused by name, all reasons at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from edgefl.deployment.leaving import check_leaves
from edgefl.errors import ScenarioError
from edgefl.scenario import load

Scenario = Callable[..., dict[str, Any]]


@pytest.mark.parametrize(("sections", "said"), [
    ({"round": {"policy": "asynchronous"}}, "round.policy asynchronous: "),
    ({"round": {"over_selection": 0.5}}, "round.over_selection: "),
    ({"round": {"gate": "everyone"}}, "round.gate everyone: "),
    ({"round": {"selection": "oort"}}, "round.selection oort: "),
    ({"schedule": {"name": "split", "after": 1, "rounds": 2}}, "schedule split: "),
    ({"method": "local"}, "method local: the server scores the clients' own models"),
    ({"evaluation": {"clients": 0.2}}, "evaluation.clients: "),
    ({"payload": {"up": "int8"}}, "payload: "),
    ({"training": {"mode": "none"}}, "training.mode none: "),
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
    with pytest.raises(ScenarioError, match=r"tiny can't leave the simulation:\n- .*" + said.replace(".", r"\.")):
        check_leaves(load(tiny(**sections)))


def test_all_reasons_are_told_at_once(tiny: Scenario) -> None:
    round, fleet = {"policy": "asynchronous", "selection": "oort"}, {"throttling": True}
    with pytest.raises(ScenarioError) as caught:
        check_leaves(load(tiny(round=round, fleet=fleet)))
    assert [line.split(":")[0] for line in str(caught.value).splitlines()[1:]] == [
        "- round.policy asynchronous", "- round.selection oort", "- fleet.throttling",
    ]  # fmt: skip


def test_a_scenario_without_them_leaves(tiny: Scenario) -> None:
    check_leaves(load(tiny(method="fedcola", schedule={"name": "layerwise", "stages": 2, "rounds": 4})))
