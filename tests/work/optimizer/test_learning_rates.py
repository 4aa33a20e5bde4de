"""Learning rates by part: which key speaks of a parameter, which stage's value it gets, and what torch makes of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from edgefl_toys import Toy, described, do, inputs_of, make_work, training_pass
from pydantic import ValidationError
from torch.nn import functional as F

from edgefl import models
from edgefl.cost.predict import predict, work_key
from edgefl.errors import ScenarioError
from edgefl.scenario import load
from edgefl.schedules import Stage
from edgefl.work import Meter, Work
from edgefl.work.optimizer.learning_rates import at_stage, parameter_groups
from edgefl.work.training_options import OwnTraining, TrainingOptions

RATES: dict[str, Any] = {
    "image": {"lr": 0.5},
    "norm": {"weight_decay": 0.25},
    "head": {"lr": 0.125, "weight_decay": 0.0},
    "image.head": {"lr": [0.75, 0.375]},
}


def settings(name: str = "sgd", implementation: str = "for-loop", **more: Any) -> dict[str, Any]:
    return {"name": name, "lr": 1.0, "weight_decay": 0.0625, "implementation": implementation, "rates": RATES, **more}


def test_the_most_specific_key_wins_for_each_setting_by_itself() -> None:
    expected = {
        "image.blocks.0.norm1.weight": (0.5, 0.0625),  # a block's own norm is of the blocks
        "image.norm.weight": (0.5, 0.25),
        "joint.norm.weight": (1.0, 0.25),
        "text.head.weight": (0.125, 0.0),
        "image.head.bias": (0.375, 0.0),  # the last of a list where no stage has chosen
        "text.embedding.word.weight": (1.0, 0.0625),
    }
    groups = parameter_groups(settings(), expected)
    assert {n: (own["lr"], own["weight_decay"]) for own, names in groups for n in names} == expected
    assert len(groups) == len(set(expected.values()))


def test_an_exit_within_the_blocks_is_a_part_of_its_own() -> None:
    found = parameter_groups(
        {"lr": 1.0, "rates": {"exit": {"lr": 0.5}}}, ["image.blocks.1.exit.head.weight", "image.blocks.1.w"]
    )
    assert [own["lr"] for own, _ in found] == [0.5, 1.0]


def test_a_stage_takes_its_value_of_each_list() -> None:
    work = make_work(optimizer=settings())
    assert [at_stage(work.scalars, s)["rates"]["image.head"]["lr"] for s in (1, 2)] == [0.75, 0.375]
    plain = make_work(optimizer=settings(rates={"image": {"lr": 0.5}})).scalars
    assert at_stage(plain, 2) is plain and at_stage({"lr": 1.0}, 2) == {"lr": 1.0}
    stage = Stage(2, {"image": 2}, {"image": 1}, ("norm", "rep", "head"), 1)
    assert stage.restrict_work(work).scalars["rates"]["image.head"] == {"lr": 0.375}


def test_decay_and_the_batch_scale_every_rate() -> None:
    options = TrainingOptions(
        lr=1.0, lr_decay=0.5, batch={"image": 64, "text": 32}, accumulation=2, scale_with_batch=256,
        rates={"image": [0.5, 0.25], "head": {"lr": 2.0, "weight_decay": 1e-6}, "norm": {"weight_decay": 0.5}},
    )  # fmt: skip
    found = options.scalars_of(2, "image")
    assert found["lr"] == 0.5 * 128 / 256
    assert found["rates"] == {
        "image": {"lr": [0.125, 0.0625]}, "head": {"lr": 0.5, "weight_decay": 1e-6}, "norm": {"weight_decay": 0.5}
    }  # fmt: skip
    assert options.scalars_of(2, "text")["lr"] == 0.5 * 64 / 256
    own = options.with_own(OwnTraining(lr=0.5)).scalars_of(2, "image")  # type: ignore[call-arg]
    assert own["lr"] == 0.25 and "rates" not in own
    assert TrainingOptions().scalars_of(3) == {**TrainingOptions().scalars_of(1)}


def test_groups_do_what_torch_does_with_each_by_itself() -> None:
    """One step of SGD with decoupled groups: ``w - lr (g + wd w)`` with each part's own lr and wd, by hand."""
    work = make_work(passes=(training_pass(batch=40),), optimizer=settings(momentum=0.0))
    work = replace(work, scalars=at_stage(work.scalars, 1))
    inputs = inputs_of(work)
    module = models.build(work.model)
    module.load_state_dict(inputs)
    ((_, batch),) = Toy().batches(work.passes[0], 0)  # the whole: no shuffling changes the mean
    F.cross_entropy(module.logits("image", batch["image"]), batch["label"]).backward()  # type: ignore[operator]

    class Same(Toy):
        def batches(self, pass_: Any, seed: int) -> Any:
            return super().batches(pass_, 0)

    sent = do(work, Same()).payloads["model"]
    for name, parameter in module.named_parameters():
        part = name.split(".")[1]
        lr, decay = {"head": (0.75, 0.0), "norm": (0.5, 0.25)}.get(part, (0.5, 0.0625))
        assert parameter.grad is not None
        torch.testing.assert_close(sent[name], inputs[name] - lr * (parameter.grad + decay * inputs[name]))


@pytest.mark.parametrize("implementation", ["for-loop", "foreach", "fused"])
@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_memory_with_groups_is_predicted_to_the_byte(name: str, implementation: str) -> None:
    optimizer = settings(name, implementation, momentum=0.9, clip=1.0)
    pair = ("image", "text")
    model = described(pair, blocks=1)
    work = make_work(pair, passes=(training_pass(pair),), model=model, optimizer=optimizer)
    meter = Meter()
    do(work, meter=meter)
    assert meter.trace().memory_bytes == predict(work, Toy()).memory_bytes


def test_a_rate_changes_no_cost_and_a_part_of_its_own_does() -> None:
    def key(rates: dict[str, Any]) -> str:
        return work_key(make_work(optimizer=settings(rates=rates)).form)

    one = key({"image": {"lr": 0.5}})
    assert one == key({"image": {"lr": [0.1, 0.2]}}) != key({"image": {"lr": 0.5}, "head": {"lr": 0.5}})
    assert key({"head": {"lr": 0.5, "weight_decay": 0.0}}) != key({"head": {"lr": 0.5, "weight_decay": 0.1}})


def test_a_work_with_rates_survives_being_written_down() -> None:
    options = TrainingOptions(rates={"image": [1e-3, 1e-4]})
    work = make_work(model=described(), optimizer=options.settings(), scalars=options.scalars_of(1))
    again = Work.decode(work.encode())
    assert again == work and dict(again.scalars) == dict(work.scalars) == options.scalars_of(1)


@pytest.mark.parametrize(
    ("rates", "told"),
    [
        ({"imag": 1.0}, "unknown tower or part 'imag'; did you mean 'image'"),
        ({"image.hed": 1.0}, "unknown tower or part 'hed'; did you mean 'head'"),
        ({"image": []}, "an empty list"),
        ({"image": 0.0}, "greater than 0"),
        ({"image": {"weight_decay": -1.0}}, "greater than or equal to 0"),
    ],
)
def test_rates_that_mean_nothing(rates: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        TrainingOptions(rates=rates)


def test_a_scenarios_list_has_a_rate_for_every_stage(tiny: Any) -> None:
    staged = {"name": "layerwise", "stages": 2}
    for rates, told in (
        ({"image": [1e-3]}, "training.rates.image: lists 1 learning rate, but the schedule has 2 stages"),
        (
            {"text": {"lr": [1e-3] * 3}},
            r"training.rates.text.lr: lists 3 learning rates, but the schedule has 2 "
            "stages: list as many, or one for all",
        ),
        ({"audio.rep": 1e-3}, r"training.rates.audio.rep: the model has no audio tower, only image, text"),
    ):
        with pytest.raises(ScenarioError, match=told):
            load({"edgefl": 1, **tiny(schedule=staged, training={"rates": rates})})
    rates = {"image": [1e-3, 1e-4], "head": {"lr": 1e-3, "weight_decay": 1e-6}}
    scenario = load({"edgefl": 1, **tiny(schedule=staged, training={"rates": rates})})
    assert load(scenario.to_data()).training == scenario.training
