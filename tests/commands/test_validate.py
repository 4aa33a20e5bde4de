from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import edgefl
from edgefl.errors import EdgeflError, ScenarioError
from edgefl.scenario import load

DECLARED = {"source": "declared", "clients": {"image": 2, "text": 2}, "samples": 40,
            "shapes": {"image": {"channels": 1, "size": 32, "classes": 12}, "text": {"vocabulary": 200}}}  # fmt: skip

Tiny = Callable[..., dict[str, Any]]


def test_the_summary_says_what_a_run_would_be_made_of(tiny: Tiny) -> None:
    scenario = tiny(
        data=DECLARED,
        fleet={"devices": {"raspberry-pi-4-4gb": 3, "phone-mid": 1}, "links": "lte"},
        compare={"schedule": ["end-to-end", {"name": "layerwise", "stages": 2, "rounds": 6}]},
    )
    found = edgefl.validate(scenario)
    assert (found["scenario"], found["seed"]) == ("tiny", 3)
    one, two = found["combinations"]
    assert (one["label"], one["rounds_by_stage"]) == ("end-to-end", [2])
    assert (two["label"], two["rounds_by_stage"]) == ("layerwise", [3, 3])
    assert two["clients"] == {"image": 2, "text": 2} and two["samples"] == {"image": 80, "text": 80}
    assert two["devices"] == {"raspberry-pi-4-4gb": 3, "phone-mid": 1} and two["links"] == {"lte": 4}
    assert load(found["resolved"]) == load(scenario)


def test_towers_that_a_method_cannot_pair_are_found(tiny: Tiny) -> None:
    models = {
        "image": {"blocks": 2, "width": 16, "heads": 2},
        "text": {"blocks": 2, "width": 32, "heads": 2, "tokens": 12},
    }
    with pytest.raises(ScenarioError, match="method: .*blocks of the same shape"):
        edgefl.validate(tiny(data=DECLARED, model=models, method="fedcola"))


def test_data_that_cannot_be_opened_are_found(tiny: Tiny) -> None:
    with pytest.raises(EdgeflError, match="vocabulary"):
        edgefl.validate(tiny(data={**DECLARED, "vocabulary": 300}))
