"""Optimizers and rate schedules of one's own: as torch's own class by hand, and as their formula says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import cos, pi
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from pydantic import Field
from torch.nn import functional as F

import edgefl
from edgefl import models, registry, seeds
from edgefl.commands.parts.schema_parts import parts_of
from edgefl.errors import EdgeflError, MethodError, PluginError
from edgefl.registry.part_fields import build_part
from edgefl.registry.registered import PARTS
from edgefl.scenario import json_schema, load
from edgefl.setup.compose import compose
from edgefl.training.assignment import Assignment
from edgefl.training.node import Node
from edgefl.work.optimizer.optimizers import Optimizer
from edgefl.work.optimizer.rate_schedules import RateSchedule

Tiny = Callable[..., dict[str, Any]]


class Signs(torch.optim.Optimizer):
    """Steps of one length: the sign of the gradient, after a friction."""

    def __init__(self, params: Any, lr: float = 1e-3, friction: float = 0.5):
        super().__init__(params, {"lr": lr, "friction": friction})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in (p for p in group["params"] if p.grad is not None):
                held = self.state[p].setdefault("held", torch.zeros_like(p))
                held.mul_(group["friction"]).add_(p.grad)
                p.sub_(held.sign(), alpha=group["lr"])


class Late(Optimizer):
    """SGD that reads momentum, and an option of its own."""

    class Options(Optimizer.Options):
        scale: float = Field(1.0, gt=0, description="factor on the rate")

    reads: ClassVar[tuple[str, ...]] = ("momentum",)

    def build(self, parameters: Any, settings: Any, implementation: str) -> Any:
        return torch.optim.SGD(parameters, lr=settings["lr"] * self.options.scale, momentum=settings["momentum"])


class Polynomial(RateSchedule):
    """A power of the rounds that are left."""

    power: float = Field(1.0, gt=0, description="1 falls in a line")

    def shape(self, passed: int, rounds: int) -> float:
        return float((1 - passed / rounds) ** self.power)


class Dead(RateSchedule):
    """No rate at all."""

    def shape(self, passed: int, rounds: int) -> float:
        return 0.0


@pytest.fixture(autouse=True, scope="module")
def _registered() -> Iterator[None]:
    for name, part in (("rmsprop", torch.optim.RMSprop), ("signs", Signs), ("late", Late)):
        edgefl.register("optimizer", name)(part)
    for name, kind in (("polynomial", Polynomial), ("dead", Dead)):
        edgefl.register("rate schedule", name)(kind)
    yield
    PARTS.clear()
    registry.forget()


def one_client(tiny: Tiny, **training: Any) -> dict[str, Any]:
    data = {"source": "glyphs", "clients": {"image": 1}, "samples": 40, "validation": 40, "test": 40}
    return tiny(
        data=data,
        model={"image": {"blocks": 1, "width": 16, "heads": 2}},
        training={"batch": 8, "epochs": 2, **training},
    )


BY_TORCH: dict[str, tuple[dict[str, Any], Callable[[Any], torch.optim.Optimizer]]] = {
    "rmsprop": (
        {"optimizer": {"name": "rmsprop", "alpha": 0.8, "centered": True}, "lr": 2e-3, "weight_decay": 0.01},
        lambda p: torch.optim.RMSprop(p, lr=2e-3, weight_decay=0.01, alpha=0.8, centered=True),
    ),
    "signs": ({"optimizer": {"name": "signs", "friction": 0.25}, "lr": 1e-2}, lambda p: Signs(p, 1e-2, 0.25)),
    "late": (
        {"optimizer": {"name": "late", "scale": 2}, "lr": 1e-2, "momentum": 0.5},
        lambda p: torch.optim.SGD(p, lr=2e-2, momentum=0.5),
    ),
}


@pytest.mark.parametrize("name", BY_TORCH)
def test_a_client_trains_as_torchs_class_does_by_hand(tiny: Tiny, name: str) -> None:
    training, make = BY_TORCH[name]
    setup = compose(load(one_client(tiny, **training)))
    work = setup.method.client_work("image", 1).limit_batches(setup.clients.client(0).size)
    state = setup.method.initial(setup.seed)
    seed = 5
    report = Node(setup.clients, torch.device("cpu")).run_assignment(
        Assignment(work.form, work.scalars, state.inputs(work), 0, seed)
    )
    model: Any = models.build(work.model).train()
    model.load_state_dict({k: v.clone() for k, v in state.inputs(work).items()})
    optimizer = make(list(model.parameters()))
    for epoch in range(2):
        shuffle = seeds.key(seed, "shuffle", 0, epoch)
        for _, batch in setup.clients.client(0).batches(work.passes[0], shuffle):  # type: ignore[attr-defined]
            optimizer.zero_grad()
            F.cross_entropy(model(batch["image"]), batch["label"]).backward()
            optimizer.step()
    sent = report.payloads["model"]
    for parameter, value in model.state_dict().items():
        torch.testing.assert_close(sent[parameter], value, atol=1e-6, rtol=1e-5)


def test_its_state_is_priced_as_it_is_measured(tiny: Tiny, tmp_path: Path) -> None:
    run = edgefl.run(one_client(tiny, optimizer={"name": "rmsprop", "centered": True}), out=tmp_path / "run")
    assert run.clients["memory_error"].dropna().abs().max() == 0
    own = edgefl.profile(one_client(tiny, optimizer={"name": "rmsprop", "centered": True}))["rows"][0]["memory_bytes"]
    # square averages and gradient averages are as large as the parameters, beside a counter of steps each
    parameters = list(run.model("image").parameters())
    assert own["optimizer"] == sum(2 * 4 * p.numel() + 4 for p in parameters)


def test_a_rate_schedule_is_its_formula(tiny: Tiny, tmp_path: Path) -> None:
    given = {"name": "polynomial", "power": 2, "warm_up": 2, "start": 0.5}
    scenario = one_client(tiny, lr=0.4, lr_schedule=given) | {"schedule": {"name": "end-to-end", "rounds": 6}}
    run = edgefl.run(scenario | {"training": {**scenario["training"], "mode": "none"}}, out=tmp_path / "run")
    by_hand = [0.2, 0.3, *(0.4 * (1 - passed / 4) ** 2 for passed in range(4))]
    assert [record["lr"] for record in run.records("rounds")] == pytest.approx(by_hand)
    options = load(run.path / "scenario.yaml").training.lr_schedule
    assert isinstance(options, Polynomial) and options.power == 2
    cosine = one_client(tiny, lr=1.0, lr_schedule={"name": "cosine", "floor": 0.1})
    factors = load(cosine).training.over(4)
    assert [factors.lr_factor(r + 1) for r in range(4)] == pytest.approx(
        [0.1 + 0.9 * (1 + cos(pi * r / 4)) / 2 for r in range(4)]
    )


def test_what_is_wrong_is_told(tiny: Tiny) -> None:
    for training, reason in (
        ({"optimizer": "rmsprob"}, "did you mean 'rmsprop'"),
        ({"optimizer": {"name": "rmsprop", "alfa": 1}}, "alfa"),
        ({"optimizer": {"name": "sgd", "momentum": 0.5}}, "momentum"),
        ({"optimizer": {"alpha": 1}}, "optimizer"),
        ({"optimizer": "adamw", "lr_schedule": "polynomal"}, "did you mean 'polynomial'"),
        ({"lr_schedule": {"name": "polynomial", "power": 0}}, "power"),
        ({"lr_schedule": {"name": "polynomial", "every": 3}}, "every"),
    ):
        with pytest.raises(EdgeflError, match=reason):
            load(one_client(tiny, **training))
    with pytest.raises(EdgeflError, match="rate schedule 'dead'.* gives the factor 0 after 0 of 2 rounds"):
        compose(load(one_client(tiny, lr_schedule="dead")))
    with pytest.raises(EdgeflError, match="signs has no weight decay"):
        edgefl.profile(one_client(tiny, optimizer="signs", weight_decay=0.1))
    with pytest.raises(PluginError, match=r"neither a subclass of .*Optimizer nor of torch"):
        edgefl.register("optimizer", "five")(5)
    with pytest.raises(PluginError, match="has no shape, factor_of"):
        edgefl.register("rate schedule", "five")(Optimizer)
    with pytest.raises(EdgeflError, match=r"scaffold counts steps of plain SGD"):
        compose(load(one_client(tiny, optimizer="signs") | {"method": "scaffold"}))
    with pytest.raises(MethodError, match="mezo trains without gradients"):
        build_part("optimizer", "mezo").build([], {}, "fused")


def test_lists_and_schema_have_them() -> None:
    listed = parts_of(["optimizer", "rate-schedule"]).sections
    by_name = {entry["name"]: entry for section in listed.values() for entry in section}
    assert {"adamw", "adam", "sgd", "mezo", "rmsprop", "constant", "step", "cosine", "polynomial"} <= set(by_name)
    assert {"alpha", "eps", "momentum", "centered"} == {option["name"] for option in by_name["rmsprop"]["options"]}
    fields = json_schema()["$defs"]["training"]["properties"]
    assert {"$ref": "#/$defs/training.lr_schedule.polynomial"} in fields["lr_schedule"]["anyOf"]
    assert {"$ref": "#/$defs/training.optimizer.rmsprop"} in fields["optimizer"]["anyOf"]
