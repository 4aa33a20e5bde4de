"""Learning rates that decay between local epochs, against sums by hand: a constant gradient, so that rates add up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from edgefl_toys import Toy, described, do, inputs_of, make_work, training_pass
from pydantic import ValidationError
from torch import Tensor

import edgefl
from edgefl import registry
from edgefl.cost.predict import predict
from edgefl.errors import EdgeflError
from edgefl.registry.registered import PARTS
from edgefl.scenario import load
from edgefl.schedules import Layerwise
from edgefl.setup.compose import compose
from edgefl.work import Context, Meter, Pass, Work
from edgefl.work.steps import Step
from edgefl.work.training_options import TrainingOptions

Tiny = Callable[..., dict[str, Any]]
LR, DECAY, EPOCHS = 0.5, 0.75, 3
PAIR = ("image", "text")
HEAD, BLOCK = "joint.norm.weight", "image.blocks.1.mlp.fc1.weight"
PER = {"round": (2, 0), "epoch": (2 * EPOCHS, 1), "local-epoch": (0, 1)}
"""Exponents of the decay: at the beginning of round 3, and after each local epoch."""


class Sloping(Step):
    """The sum of all parameters that train: every gradient is 1."""

    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> Tensor:
        return torch.stack([p.sum() for p in ctx.trained.values()]).sum()


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    edgefl.register("step", "sloping")(Sloping)
    yield
    PARTS.clear()
    registry.forget()


def sloping(pattern: str, batch: int, data: Any = "private", train: bool = True) -> Pass:
    return replace(training_pass((pattern,), batch), step="sloping", data=data, train=train)


def epochs(*passes: Pass) -> tuple[Pass, ...]:
    return passes * EPOCHS


def travelled(work: Work, name: str = HEAD) -> float:
    """How far a parameter went, the mean of its elements."""
    return float((inputs_of(work)[name] - do(work).payloads["model"][name]).double().mean())


def descending(passes: tuple[Pass, ...], options: Mapping[str, Any], round: int = 3) -> Work:
    given = {"optimizer": "sgd", "lr": LR, "lr_decay": DECAY, "epochs": EPOCHS, "lr_decay_per": "local-epoch"}
    training = TrainingOptions.model_validate({**given, **options})
    scalars = training.scalars_of(round)
    return make_work(PAIR, passes, model=described(PAIR), optimizer=training.settings(), scalars=scalars)


@pytest.mark.parametrize("per", PER)
def test_a_weight_goes_as_far_as_the_sum_of_all_rates(per: str) -> None:
    """``w_end = w_0 - lr g sum of factors x steps``: 40 samples are 5 batches of one pattern and 4 of the other."""
    before, after = PER[per]
    work = descending(epochs(sloping("image", 8), sloping("text", 10)), {"lr_decay_per": per})
    expected = LR * sum((5 + 4) * DECAY ** (before + after * epoch) for epoch in range(EPOCHS))
    assert travelled(work) == pytest.approx(expected, rel=1e-5)
    assert work.scalars["lr"] == pytest.approx(LR * DECAY**before)
    assert ("epoch_decay" in work.scalars) == (per != "round")  # an old work stays as it was


FACTORS = sum(DECAY**epoch for epoch in range(EPOCHS))
CASES: dict[str, tuple[dict[str, Any], float]] = {
    "for-loop": ({"implementation": "for-loop"}, 5),
    "foreach": ({"implementation": "foreach"}, 5),
    "accumulation": ({"accumulation": 2}, 2.5),  # the last batch of a pass alone is half an update
    "a step in the backward pass": ({"step_in_backward": True}, 5),
    "a rate of its own": ({"rates": {"norm": 2 * LR}}, 10),
    "a schedule": ({"lr_schedule": {"name": "step", "every": 2, "factor": 0.5}}, 5),
}


@pytest.mark.parametrize("case", CASES)
def test_every_way_to_take_steps_decays(case: str) -> None:
    options, steps = CASES[case]
    assert travelled(descending(epochs(sloping("image", 8)), options)) == pytest.approx(LR * steps * FACTORS, rel=1e-5)


def test_a_schedule_of_rates_and_the_decay_multiply() -> None:
    options = {"optimizer": "sgd", "lr": LR, "lr_decay": DECAY, "epochs": EPOCHS, "lr_decay_per": "epoch",
               "lr_schedule": {"name": "step", "every": 2, "factor": 0.5}}  # fmt: skip
    training = TrainingOptions.model_validate(options).over(4)
    rates = [LR * (0.5 if round > 2 else 1) * DECAY ** ((round - 1) * EPOCHS) for round in (1, 2, 3, 4)]
    assert [training.scalars_of(round)["lr"] for round in (1, 2, 3, 4)] == pytest.approx(rates)


def test_passes_on_public_samples_and_without_training_are_no_epochs() -> None:
    """A public pass has the rates of the epoch before it, and one before all epochs those of the first."""
    own, public = sloping("image", 8), sloping("image", 20, "public")
    scored = replace(own, train=False)
    work = descending((public, public, scored, *epochs(own, public)), {})
    assert travelled(work) == pytest.approx(LR * (4 + (5 + 2) * FACTORS), rel=1e-5)


def test_passes_of_a_second_model_have_epochs_of_their_own() -> None:
    """As Ditto's: the same samples again, by another pass."""
    first, second = sloping("image", 8), replace(sloping("image", 8), args={"chunk": 1})
    work = descending((*epochs(first), *epochs(second)), {})
    assert travelled(work) == pytest.approx(LR * 10 * FACTORS, rel=1e-5)


def test_a_stage_has_its_own_rate_and_the_same_decay() -> None:
    staged = Layerwise(Layerwise.Options(stages=2, rounds=4), {"image": 2, "text": 2}).stages
    work = descending(epochs(sloping("image", 8)), {"rates": {"blocks": [1.0, 2.0]}})
    for stage, (name, rate) in zip(staged, {"image.blocks.0.mlp.fc1.weight": 1.0, BLOCK: 2.0}.items(), strict=True):
        assert travelled(stage.restrict_work(work), name) == pytest.approx(rate * 5 * FACTORS, rel=1e-5)


def test_training_without_gradients_decays_too() -> None:
    """With a constant slope, a direction's step is as long as its rate."""
    options = {"optimizer": "mezo", "lr": 1e-3}
    two = (sloping("image", 40),) * 2
    first = travelled(descending(two[:1], options))
    plain = travelled(descending(two, {**options, "lr_decay_per": "round"}, round=1))
    assert travelled(descending(two, options)) - first == pytest.approx(DECAY * (plain - first), rel=1e-3)


def test_the_cost_is_that_of_a_constant_rate() -> None:
    passes = epochs(sloping("image", 8))
    decaying, constant = descending(passes, {}), descending(passes, {"lr_decay_per": "round"})
    meter = Meter()
    do(decaying, meter=meter)
    predicted = predict(decaying, Toy())
    assert meter.trace().memory_bytes == predicted.memory_bytes == predict(constant, Toy()).memory_bytes
    assert predicted.steps == predict(constant, Toy()).steps
    assert Work.decode(decaying.encode()).scalars == decaying.scalars


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"lr_decay": 1}, "lr_decay_per: local-epoch needs an lr_decay below 1"),
        ({"epochs": 1}, "set epochs to 2 or more, or lr_decay_per: round"),
        ({"lr_decay_per": "epochs"}, "'round', 'epoch' or 'local-epoch'"),
    ],
)
def test_a_decay_that_never_comes_is_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        TrainingOptions.model_validate({"lr_decay": 0.9, "epochs": 2, "lr_decay_per": "local-epoch", **options})


@pytest.mark.parametrize("method", ["scaffold", "fednova"])
def test_methods_that_count_equal_steps_refuse_a_decay_within_a_round(tiny: Tiny, method: str) -> None:
    training = {"optimizer": "sgd", "epochs": 2, "lr_decay": 0.9}
    compose(load(tiny(method=method, training=training)))
    with pytest.raises(EdgeflError, match="set training.lr_decay_per: round, not epoch"):
        compose(load(tiny(method=method, training={**training, "lr_decay_per": "epoch"})))
