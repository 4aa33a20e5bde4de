"""``--set`` of a path that the scenario compares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from edgefl.scenario import load

COMPARE = {"schedule": ["end-to-end", {"name": "layerwise", "stages": 2, "rounds": 2}], "training.batch": [4, 8]}


@pytest.mark.parametrize(
    ("override", "left"),
    [
        ("schedule=end-to-end", {"training.batch"}),
        ("training.batch=2", {"schedule"}),
        ("training.lr=0.1", {"schedule", "training.batch"}),
        ("schedule.rounds=3", {"schedule", "training.batch"}),
        ("compare=null", set()),
    ],
)
def test_what_is_set_is_compared_no_longer(tiny: Callable[..., dict[str, Any]], override: str, left: set[str]) -> None:
    assert set(load(tiny(compare=COMPARE), [override]).compare) == left


def test_the_value_that_is_set_is_the_scenarios(tiny: Callable[..., dict[str, Any]]) -> None:
    assert load(tiny(compare=COMPARE), ["training.batch=2"]).training.batch == 2
