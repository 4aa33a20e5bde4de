"""Sizes without end: refused with the number before anything is built, priced where that is possible."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import edgefl
from edgefl.errors import MethodError, ScenarioError
from edgefl.scenario import load
from edgefl.setup import host_need
from edgefl.setup.compose import compose
from edgefl.setup.host_need import SlowWarning, check_host, parameters_of

Tiny = Callable[..., dict[str, Any]]
DECLARED = {"source": "declared", "clients": {"image": 2, "text": 2}, "samples": 40,
            "shapes": {"image": {"channels": 1, "size": 32, "classes": 12}, "text": {"vocabulary": 200}}}  # fmt: skip


@pytest.mark.parametrize(
    ("override", "trains", "expected"),
    [
        ("model.image.blocks=1000000000000", True, "blocks"),
        ("model.image.blocks=1000000000000", False, "blocks"),
        ("training.epochs=1000000000000", True, "training.epochs: running it takes at least 14.6 TiB of memory"),
        ("training.epochs=1000000000000", False, "training.epochs: predicting its costs takes at least 14.6 TiB"),
        ("model.text.tokens=16000000000", True, "texts of 16,000,000,000 tokens"),
        ("data.clients.image=1000000000000", True, "data.clients: "),
        ("data.size=1000000", False, "pictures of 1,000,000 x 1,000,000 pixels"),
        ("model.image.width=1000000", True, "parameters at the server"),
        ("executor={name: processes, workers: 1000000000}", True, "executor.workers: "),
        ("method={name: fedgems, server_epochs: 1000000000000}", True, "method: "),
        ("model.text.mlp_ratio=1e300", False, "larger than torch can address (2^63 bytes)"),
    ],
)
def test_what_this_machine_cannot_hold_is_refused_within_a_second(
    tiny: Tiny, override: str, trains: bool, expected: str
) -> None:
    scenario = load(tiny(), [override])
    started = time.process_time()
    with pytest.raises(ScenarioError) as caught:
        check_host(scenario, trains=trains)
    assert time.process_time() - started < 1
    assert expected in str(caught.value)
    assert "torch can address" in expected or "but this machine has" in str(caught.value)


def test_declared_classes_are_refused_for_training_and_priced_otherwise(tiny: Tiny) -> None:
    shapes = {"image": {"size": 32, "classes": 10**9}}
    data = {"source": "declared", "clients": {"image": 2}, "samples": 40, "shapes": shapes}
    with pytest.raises(ScenarioError, match="parameters at the server"):
        edgefl.validate(tiny(data=data), ["model.image.width=64"])
    priced = edgefl.profile(tiny(data=data), ["model.image.width=64"])["rows"]
    assert priced[0]["peak_memory_bytes"] > 64 * 10**9 * 4
    assert edgefl.validate(tiny(data=data, training="none"))["combinations"][0]["parameters"]["image"] > 10**9
    with pytest.raises(MethodError, match="larger than torch can address"):
        edgefl.profile(tiny(data=data), ["data.shapes.image.classes=1000000000000"])


def test_the_estimate_of_parameters_is_the_model_s(tiny: Tiny) -> None:
    for model in ({}, {"model.image.blocks": 7, "model.text.blocks": 5}, {"model.image": "{tower: resnet}"}):
        overrides = [f"{path}={value}" for path, value in model.items()]
        scenario = load(tiny(data=DECLARED), overrides)
        exact = edgefl.validate(tiny(data=DECLARED, training="none"), overrides)["combinations"][0]["parameters"]
        assert parameters_of(scenario) == max(exact.values())


def test_a_run_that_is_only_slow_says_how_long_it_expects(tiny: Tiny) -> None:
    with pytest.warns(SlowWarning, match=r"1,000,000,000,000 rounds of 2 local epochs will take about [\d,.]+ years"):
        compose(load(tiny(), ["schedule.rounds=1000000000000", "training.epochs=2"]))
    with pytest.warns(SlowWarning, match=r"describing [\d,]+ blocks .* will take about [\d.]+ (s|min)"):
        check_host(load(tiny(), ["model.image.blocks=2000"]), trains=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compose(load(tiny()))


@pytest.mark.slow(smaller="test_a_run_that_is_only_slow_says_how_long_it_expects")
def test_the_expected_time_is_that_of_a_run_within_a_factor_of_ten(tiny: Tiny, tmp_path: Path) -> None:
    scenario = load(tiny(), ["schedule.rounds=4", "training.epochs=8"])
    expected = host_need.expected_seconds(scenario, compose(scenario))
    started = time.perf_counter()
    edgefl.run(scenario, out=tmp_path / "run")
    took = time.perf_counter() - started
    assert 0 < expected < 600 and expected / 10 < took < 60 + expected * 10


@pytest.mark.slow(smaller="test_a_run_that_is_only_slow_says_how_long_it_expects")
@pytest.mark.parametrize(
    "round", [{"cohort": 2}, {"cohort": 60}, {"policy": "buffered", "cohort": 20, "buffer": 5}], ids=str
)
def test_the_expected_time_of_a_simulation_is_so_within_a_factor_of_three(
    tiny: Tiny, tmp_path: Path, round: dict[str, Any]
) -> None:
    """Processor time, from the first round on: by cohorts and policies, the cost of a round and of its clients."""
    data = {**DECLARED, "clients": {"image": 100, "text": 50}}
    schedule = {"name": "layerwise", "stages": 2, "rounds": 400}
    scenario = load(tiny(data=data, training="none", round=round, schedule=schedule))
    expected, started = host_need.expected_seconds(scenario, compose(scenario)), list[float]()

    def begins(event: str, facts: Mapping[str, Any]) -> None:
        if event == "start":
            started.append(time.process_time())

    edgefl.run(scenario, out=tmp_path / "run", on_progress=begins)
    assert expected / 3 < time.process_time() - started[0] < 3 * expected
