"""Noise is refused where a client's samples decide whether it may be drawn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from edgefl.errors import ScenarioError
from edgefl.scenario import load
from edgefl.setup.compose import compose
from edgefl.setup.private_rounds import private_faults

Tiny = Callable[..., dict[str, Any]]
LIMITS = {"energy_per_round": "joules", "flops_per_round": "flops"}


def noisy(tiny: Tiny, partition: Any, budgets: dict[str, str], **round_: Any) -> dict[str, Any]:
    data = {**tiny()["data"], "clients": {"image": 12}, "samples": 400, "partition": partition}
    return tiny(
        data=data,
        aggregation={"clip": 1.0, "noise": 1.0},
        privacy={"delta": 1e-3, "accountant": "rdp"},
        round={"cohort": 0.5, "selection": "poisson", "weighting": "equal", **round_},
        fleet={"devices": {"raspberry-pi-4-4gb": 1.0}, "links": {"wifi-5": 1.0}, "budgets": budgets},
    )


@pytest.mark.parametrize(("field", "name"), LIMITS.items())
def test_a_budget_that_samples_spend_is_refused_where_clients_have_different_numbers(
    tiny: Tiny, field: str, name: str
) -> None:
    budgets, unequal = {field: "1 kJ" if name == "joules" else "1 TFLOP"}, {"quantity": 1.0}
    with pytest.raises(
        ScenarioError, match=f"round.gate: a budget of {name} lets image clients take part by their num"
    ):
        compose(load(noisy(tiny, unequal, budgets)))
    for other in (noisy(tiny, "iid", budgets), noisy(tiny, unequal, {"memory": "1 MiB"}),
                  noisy(tiny, unequal, budgets, gate="everyone")):  # fmt: skip
        assert compose(load(other)).privacy.delta == 1e-3


def test_a_deadline_is_a_budget_of_seconds(tiny: Tiny) -> None:
    with pytest.raises(ScenarioError, match="a budget of seconds lets image clients"):
        compose(load(noisy(tiny, {"quantity": 1.0}, {}, deadline="1 h")))


def test_a_scenario_without_noise_is_asked_nothing(tiny: Tiny) -> None:
    scenario = load(tiny())
    assert list(private_faults(scenario, compose(scenario), [])) == []
