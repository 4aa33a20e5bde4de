"""Learning rates by round: closed forms, torch's own schedulers, and what runs train with and record."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from math import cos, pi
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tensors import assert_equal_tensors
from torch.optim import lr_scheduler

import edgefl
from edgefl.errors import ScenarioError
from edgefl.scenario import load
from edgefl.work.optimizer.rate_schedules import RateSchedule, parse_rate_schedule
from edgefl.work.training_options import OwnTraining, TrainingOptions

Tiny = Callable[..., dict[str, Any]]


def rate_schedule(**fields: Any) -> RateSchedule:
    made: RateSchedule = parse_rate_schedule(fields)
    return made


def test_closed_forms_by_hand() -> None:
    def rates(rounds: int, **fields: Any) -> list[float]:
        return list(rate_schedule(**fields).factors(rounds))

    assert rates(4) == [1.0] * 4
    assert rates(4, warm_up=2, start=0.5) == [0.5, 0.75, 1.0, 1.0]
    assert rates(6, name="step", every=2, factor=0.5) == [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]
    assert rates(6, name="step", every=[1, 4], warm_up=1, start=0.5, factor=0.25) == [0.5, 1.0, *[0.25] * 3, 0.0625]
    assert rates(4, name="cosine", floor=0.5) == pytest.approx(
        [0.5 + 0.5 * (1 + cos(pi * passed / 4)) / 2 for passed in range(4)], rel=1e-15
    )
    assert rates(5, name="cosine", warm_up=3)[2:] == pytest.approx([0.1 + 0.9 * 2 / 3, 1.0, 0.5])


@settings(deadline=None)  # torch imports its schedulers at the first
@given(
    rounds=st.integers(2, 40),
    warm_up=st.integers(0, 12),
    start=st.floats(0.01, 1),
    shape=st.sampled_from(["constant", "cosine", "step", "steps"]),
    share=st.floats(0.01, 0.9),
    every=st.integers(1, 9),
)
def test_torchs_schedulers_give_the_same_rates(
    rounds: int, warm_up: int, start: float, shape: str, share: float, every: int
) -> None:
    warm_up = min(warm_up, rounds - 1)
    fields = {
        "constant": {}, "cosine": {"floor": share}, "step": {"every": every, "factor": share},
        "steps": {"every": [every, every + 3], "factor": share},
    }[shape]  # fmt: skip
    name = shape.removesuffix("s")
    found = rate_schedule(name=name, warm_up=warm_up, start=start, **fields).factors(rounds)  # type: ignore[arg-type]
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.25)
    after: Any = {
        "constant": lambda: lr_scheduler.ConstantLR(optimizer, factor=1.0),
        "cosine": lambda: lr_scheduler.CosineAnnealingLR(optimizer, rounds - warm_up, eta_min=0.25 * share),
        "step": lambda: lr_scheduler.StepLR(optimizer, every, gamma=share),
        "steps": lambda: lr_scheduler.MultiStepLR(optimizer, [every, every + 3], gamma=share),
    }[shape]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch wants a step of the optimizer between two steps of the rate
        scheduler: Any
        if warm_up:
            first = lr_scheduler.LinearLR(optimizer, start_factor=start, total_iters=warm_up)
            scheduler = lr_scheduler.SequentialLR(optimizer, [first, after()], [warm_up])
        else:
            scheduler = after()
        witness = []
        for _ in range(rounds):
            witness.append(optimizer.param_groups[0]["lr"])
            scheduler.step()
    assert [0.25 * factor for factor in found] == pytest.approx(witness, rel=1e-9)
    assert min(found) > 0


def test_every_rate_is_scaled_the_servers_too() -> None:
    options = TrainingOptions(
        lr=1.0, lr_decay=0.5, rates={"image": [0.5, 0.25]}, lr_schedule={"name": "step", "every": 1, "factor": 0.25}
    ).over(3)  # type: ignore[arg-type]
    assert options.scalars_of(2)["lr"] == 0.125 and options.scalars_of(3)["lr"] == 1 / 64
    assert options.scalars_of(2)["rates"] == {"image": {"lr": [0.0625, 0.03125]}}
    own = options.with_own(OwnTraining(lr=2.0, lr_decay=1.0))
    assert own.scalars_of(2) == {**TrainingOptions(lr=0.5).scalars_of(1)}
    assert TrainingOptions(lr=0.5).over(3).scalars_of(3) == TrainingOptions(lr=0.5).scalars_of(1)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"name": "cosine", "every": 3}, "cosine has no every: it belongs to step"),
        ({"floor": 0.1}, "constant has no floor: it belongs to cosine"),
        ({"name": "step"}, "every\n  Field required"),
        ({"name": "cosine", "flor": None}, "flor"),
        ({"name": "step", "every": [5, 3]}, "must ascend"),
        ({"name": "step", "every": []}, "must ascend"),
        ({"warm_up": 2, "start": 0.0}, "greater than 0"),
    ],
)
def test_fields_that_mean_nothing(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        TrainingOptions(lr_schedule=fields)  # type: ignore[arg-type]


def test_rates_that_never_come_are_refused_with_their_field(tiny: Tiny) -> None:
    staged = {"name": "layerwise", "stages": 2, "rounds": 6}
    for schedule, rates, told in (
        (None, {"warm_up": 2}, "lr_schedule.warm_up: a warm-up of 2 rounds never ends: the run has 2 rounds"),
        (None, {"name": "step", "every": 2}, "lr_schedule.every: a step after 2 rounds never comes: the run has 2"),
        (staged, {"warm_up": 6}, "a warm-up of 6 rounds never ends: the run has 6 rounds"),
    ):
        sections = {"schedule": schedule} if schedule else {}
        with pytest.raises(ScenarioError, match=told):
            load(tiny(**sections, training={"lr_schedule": rates}))
    kept = load(tiny(schedule=staged, training={"lr_schedule": {"warm_up": 3}}))
    assert load(kept.to_data()).training == kept.training and kept.training.lr_schedule.warm_up == 3


IMAGES = {"source": "glyphs", "clients": {"image": 3}, "samples": 16, "validation": 20, "test": 20}


@pytest.mark.slow(smaller="test_torchs_schedulers_give_the_same_rates")
def test_a_step_after_every_round_trains_as_decay_does(tiny: Tiny, tmp_path: Path) -> None:
    """Powers of a half are exact, so the weights are equal bit for bit, and so they are after an interruption."""

    def run(name: str, **rates: Any) -> Any:
        executor = {"name": "inline", "device": "cpu", "checkpoints": 3}
        schedule = {"name": "end-to-end", "rounds": 3}
        training = {"batch": 8, **rates}
        return edgefl.run(
            tiny(data=IMAGES, schedule=schedule, training=training, executor=executor), out=tmp_path / name
        )

    halved = run("halved", lr_schedule={"name": "step", "every": 1, "factor": 0.5})
    decayed, constant = run("decayed", lr_decay=0.5), run("constant")
    assert_equal_tensors(halved.weights(), decayed.weights())
    assert any(not torch.equal(value, constant.weights()[name]) for name, value in halved.weights().items())
    assert halved.rounds["lr"].tolist() == [1e-3, 5e-4, 2.5e-4]
    assert "lr" not in decayed.rounds and "lr" not in decayed.clients
    shutil.copytree(halved.path, tmp_path / "again")
    for late in ("round-000003", "round-000002"):
        shutil.rmtree(tmp_path / "again" / "checkpoints" / late)
    (tmp_path / "again" / "result.json").unlink()
    again = edgefl.run(resume=tmp_path / "again")
    assert_equal_tensors(again.weights(), halved.weights())
    assert again.records("clients") == halved.records("clients")


def test_asynchronous_clients_take_the_rate_of_the_round_in_which_they_began(tiny: Tiny, tmp_path: Path) -> None:
    batch = {"image": 8, "text": 4, "image-text": 4}
    training = {"mode": "none", "batch": batch, "scale_with_batch": 8, "lr_schedule": "cosine"}
    scenario = tiny(
        schedule={"name": "end-to-end", "rounds": 12}, training=training, round={"policy": "asynchronous", "cohort": 3}
    )
    run = edgefl.run(scenario, out=tmp_path / "run")
    rates = [1e-3 * (1 + cos(pi * passed / 12)) / 2 for passed in range(12)]
    assert run.rounds["lr"].tolist() == pytest.approx(rates)
    lines = run.records("clients")
    assert any(line["base_round"] < line["round"] for line in lines)
    for line in lines:
        assert line["lr"] == pytest.approx(rates[line["base_round"] - 1] * batch[line["kind"]] / 8)
    costs = run.clients.groupby(["kind", "device", "samples"])["peak_memory_bytes"].nunique()
    assert set(costs) == {1}
