"""Search spaces: what ``--search`` says, what it refuses, and what trials' settings are written as."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from edgefl.errors import ScenarioError
from edgefl.scenario import Scenario, load
from edgefl.scenario.search_space import (
    NumberRange,
    ValueList,
    parse_search_space,
    settings_sets,
    settings_yaml,
    with_settings,
)

Tiny = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def scenario(tiny: Tiny) -> Scenario:
    return load(tiny())


@pytest.mark.parametrize(
    ("text", "ends", "by_log", "whole"),
    [
        ("training.lr=1e-4..1e-1", (1e-4, 1e-1), True, False),
        ("training.lr=0.01..0.09", (0.01, 0.09), False, False),
        ("training.lr=0.01..0.1", (0.01, 0.1), True, False),
        ("training.lr=linear:1e-4..1e-1", (1e-4, 1e-1), False, False),
        ("training.lr=log:0.01..0.02", (0.01, 0.02), True, False),
        ("training.lr=1..2", (1.0, 2.0), False, False),  # whole ends, but the field takes others
        ("training.epochs=1..8", (1, 8), False, True),  # the field takes parts, but has a whole number
        ("training.epochs=0.5..2", (0.5, 2.0), False, False),
        ("training.batch=4..64", (4, 64), True, True),
        ("round.cohort=0.1..0.5", (0.1, 0.5), False, False),
        ("round.cohort=1..5", (1, 5), False, True),  # a share or a number: here numbers
        (" training.weight_decay = 0 .. 1 ", (0.0, 1.0), False, False),
    ],
)
def test_a_range(scenario: Scenario, text: str, ends: tuple[float, float], by_log: bool, whole: bool) -> None:
    (span,) = parse_search_space(scenario, [text])
    assert isinstance(span, NumberRange)
    assert (span.low, span.high) == ends and (span.by_log, span.whole) == (by_log, whole)
    assert span.size == (ends[1] - ends[0] + 1 if whole else None)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("training.lr=1e-3,1e-2", [1e-3, 1e-2]),
        ("method=fedavg,fedprox", ["fedavg", "fedprox"]),
        ("schedule={name: layerwise, stages: 2},end-to-end", [{"name": "layerwise", "stages": 2}, "end-to-end"]),
        ("fleet.budgets.memory=16MiB,12..48MiB", ["16MiB", "12..48MiB"]),
    ],
)
def test_a_list(scenario: Scenario, text: str, values: list[Any]) -> None:
    (choices,) = parse_search_space(scenario, [text])
    assert isinstance(choices, ValueList)
    assert [choices.setting(label) for label in choices.all_drawn()] == values and choices.size == len(values)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([], "nothing is searched: add --search"),
        ("training.lr=1..2", "search is a list such as"),
        (["training.lr"], "--search training.lr: an axis is path=value,value"),
        (["training.lr=1e-3"], "one value leaves nothing to search"),
        (
            ["training.lrr=1e-3..1"],
            "--search training.lrr=1e-3..1: training.lrr: unknown key 'lrr'; did you mean 'lr'?",
        ),
        (["training.lr=0..1"], "--search training.lr=0..1: training.lr: must be greater than 0, not 0"),
        (["training.lr=1e-3,-1"], "training.lr: must be greater than 0, not -1"),
        (["training.lr=1..a"], "a range goes from a number to a number, and 'a' is none"),
        (["training.lr=1e-1..1e-2"], "1e-1..1e-2 is empty: the first number must be the lower one"),
        (["training.lr=1..1"], "1..1 is empty"),
        (["training.weight_decay=log:0..1"], "0 has no logarithm"),
        (["training.lr=1e-3..inf"], "a range goes from a number to a number, and 'inf' is none"),
        (["training.accumulation=0.5..3"], "training.accumulation: must be a whole number, not 0.5"),
        (["training.lr=1e-3..1", "training.lr=1,2"], "training.lr: is searched twice"),
        (["seed=1..5"], "seed: is no setting to search: trials are compared over the same seeds"),
        (["evaluation.pairs=10..500"], "evaluation.pairs: is no setting to search: all trials are scored in one way"),
        (["executor.workers=1,2"], "is no setting to search: results don't depend on it"),
        (["training.lr=1e-3,1e-3"], "0.001 is listed twice"),
    ],
)
def test_what_is_refused(scenario: Scenario, texts: Any, message: str) -> None:
    with pytest.raises(ScenarioError) as error:
        parse_search_space(scenario, texts)
    assert message in str(error.value) and len(str(error.value).splitlines()) == 1


def test_settings_as_yaml_and_as_overrides_give_the_trial(tiny: Tiny, scenario: Scenario) -> None:
    space = parse_search_space(
        scenario,
        ["training.lr=1e-4..1e-1", "schedule={name: layerwise, stages: 2},end-to-end", "schedule.rounds=2..4",
         "method=fedavg,fedprox", "model.image.blocks=1..2"],
    )  # fmt: skip
    settings = {
        "training.lr": 1.5e-05, "schedule": {"name": "layerwise", "stages": 2}, "schedule.rounds": 3,
        "method": "fedprox", "model.image.blocks": 2,
    }  # fmt: skip
    trial = with_settings(scenario, space, settings)
    assert trial.training.lr == 1.5e-05 and trial.schedule_options.rounds == 3

    merged: dict[str, Any] = tiny()
    for section, fields in yaml.safe_load(settings_yaml(trial, space)).items():
        old = merged.get(section)
        merged[section] = {**old, **fields} if isinstance(old, dict) and section == "training" else fields
    merged["model"] = {**tiny()["model"], "image": {**tiny()["model"]["image"], "blocks": 2}}
    assert load(merged).to_data() == trial.to_data()
    assert load(tiny(), settings_sets(space, settings)).to_data() == trial.to_data()


@given(st.floats(1e-9, 1e3), st.floats(10, 1e6), st.floats(0, 1))
def test_the_edge_is_the_last_tenth_of_the_logarithm(low: float, ratio: float, share: float) -> None:
    span = NumberRange(("training", "lr"), low, low * ratio, True, False, "")
    value = low * ratio**share
    expected = "lower" if share < 0.0999 else "upper" if share > 0.9001 else None if 0.1001 < share < 0.8999 else "any"
    assert expected == "any" or span.edge(value) == expected
    for side in ("lower", "upper"):
        wider = span.widen(side)  # type: ignore[arg-type]
        assert math.isclose(wider.high / wider.low, ratio * 10, rel_tol=1e-9)
        added = sorted(span.added_interval(wider))
        assert math.isclose(added[1] / added[0], 10, rel_tol=1e-9) and wider.holds(added[0]) and wider.holds(added[1])


def test_whole_numbers_stay_positive_and_lists_only_know_their_ends() -> None:
    assert NumberRange(("training", "batch"), 4, 64, True, True, "").widen("lower").low == 1
    assert NumberRange(("training", "lr"), 1e-4, 1e-1, True, False, "").widen("lower").low == 1e-5


def test_the_ends_of_a_list_of_ordered_numbers(scenario: Scenario) -> None:
    ordered, mixed, words = parse_search_space(
        scenario, ["training.lr=1e-3,1e-2,1e-1", "training.batch=8,2,4", "method=fedavg,fedprox,scaffold"]
    )
    assert [ordered.edge(value) for value in (1e-3, 1e-2, 1e-1)] == ["lower", None, "upper"]
    assert mixed.edge(8) is None and words.edge("fedavg") is None
