"""A scenario whose plans break a rule is refused before it trains: its weights would start at random in every round."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from torch import Tensor, nn

import edgefl
from edgefl import models, registry
from edgefl.errors import ScenarioError
from edgefl.methods.fedavg import FedAvg
from edgefl.registry.registered import PARTS
from edgefl.testing import check_part
from edgefl.work import Payload, Work

Tiny = Callable[..., dict[str, Any]]


def first_block(payload: Payload) -> Payload:
    return payload.only(lambda item: ".blocks.1." not in item.name)


class Careless(FedAvg):
    """FedAvg with one mistake in its work."""

    class Options(FedAvg.Options):
        name: Literal["careless"] = "careless"  # type: ignore[assignment]
        mistake: Literal["none", "shorter", "headless", "phantom", "forgetful", "moody"] = "none"

    def work(self, kind: str, round: int) -> Work:
        work = super().work(kind, round)
        match self.options.mistake:
            case "shorter":  # its own model has one block; the stage that it trains in has two
                return replace(
                    work,
                    model=models.at_depth(work.model, dict.fromkeys(work.model["towers"], 1)),
                    trainable=tuple(name for name in work.trainable if ".blocks.1." not in name),
                    down=tuple(map(first_block, work.down)),
                    up=tuple(map(first_block, work.up)),
                )
            case "headless":
                return replace(work, down=tuple(p.only(lambda item: ".head." not in item.name) for p in work.down))
            case "phantom":
                return replace(work, trainable=(*work.trainable, f"{kind}.blocks.0.attn.adapter"))
            case "forgetful":
                return replace(work, keep=(f"{kind}.memory.weight",))
            case "moody":
                return replace(work, scalars={**work.scalars, "lr": random.random()})
        return work


@pytest.fixture
def careless(tiny: Tiny) -> Iterator[Callable[[str], dict[str, Any]]]:
    edgefl.register("method", "careless")(Careless)
    data = {"source": "glyphs", "clients": {"image": 2}, "samples": 16, "validation": 24, "test": 24}
    yield lambda mistake, **sections: tiny(data=data, method={"name": "careless", "mistake": mistake}, **sections)
    PARTS.clear()
    registry.forget()


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        (
            "shorter",
            r"image clients at stage 1 breaks a rule: 'image\.blocks\.1\..* and \d+ more isn't in down: it would",
        ),
        ("headless", r"'image\.head\.bias' and 1 more isn't in down: it would start at random in every round"),
        ("phantom", r"'image\.blocks\.0\.attn\.adapter' is trainable but doesn't exist"),
        ("forgetful", r"'image\.memory\.weight' is kept but not in down, which gives its first value"),
        ("moody", r"two calls of work\(\) give different works for image clients"),
    ],
    ids=["shorter", "headless", "phantom", "forgetful", "moody"],
)
def test_works_that_break_a_rule_are_refused(
    careless: Callable[..., dict[str, Any]], tmp_path: Path, mistake: str, said: str
) -> None:
    scenario = careless(mistake)
    for command in (edgefl.validate, edgefl.profile, lambda it: edgefl.run(it, out=tmp_path / "run")):
        with pytest.raises(ScenarioError, match=said):
            command(scenario)
    assert not (tmp_path / "run").exists()
    if mistake != "moody":
        report = check_part("method", Careless, schedules=["end-to-end"], kinds=["image"], mistake=mistake)
        assert not report.ok


def test_a_stage_that_is_as_short_as_the_model_is_fine(careless: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    staged = {"name": "layerwise", "stages": 2, "rounds": 2}
    assert edgefl.run(careless("none", schedule=staged), out=tmp_path / "run").is_finished
    with pytest.raises(ScenarioError, match=r"image clients at stage 2 breaks a rule: 'image\.blocks\.1\."):
        edgefl.validate(careless("shorter", schedule=staged))


# --- parameters that several places share ----------------------------------------------------------------------------

LAYERWISE = {"name": "layerwise", "stages": 2, "rounds": 4}
SINGLE = {"name": "elastic", "parts": ["layerwise"], "rounds": 2}
ELASTIC = {"name": "elastic", "parts": ["all", "progressive"], "rounds": 2}
PROGRESSIVE = {**LAYERWISE, "name": "progressive"}


class Sharing(nn.Module):
    """A tower that has a parameter at several places."""

    blocks = "layers"

    def __init__(self, channels: int, size: int, share: str = "blocks"):
        super().__init__()
        self.width = 6
        self.start = nn.Linear(channels * size * size, 6)
        self.middle = nn.Linear(6, 6)
        own = [nn.Linear(6, 6) for _ in range(4)]
        layers = {"blocks": own[:1] * 4, "embedding": [*own[:3], self.middle]}
        self.layers = nn.ModuleList(layers.get(share, own))
        self.end = nn.Linear(6, 6)
        if share == "norm":
            self.end.weight = self.middle.weight
        if share == "block and norm":
            self.end.weight = own[3].weight

    def forward(self, image: Tensor) -> Tensor:
        x = self.middle(self.start(image.flatten(1)))
        for layer in self.layers:
            x = x + layer(x).relu()
        return self.end(x)


@pytest.fixture
def sharing(tiny: Tiny) -> Iterator[Callable[..., dict[str, Any]]]:
    edgefl.register("tower", "sharing")(Sharing)
    shapes = {"image": {"channels": 1, "size": 8, "classes": 3}}
    data = {"source": "declared", "clients": {"image": 2}, "samples": 16, "shapes": shapes}

    def make(share: str, schedule: Any) -> dict[str, Any]:
        model = {"image": {"tower": "sharing", "share": share}}
        return tiny(data=data, model=model, schedule=schedule, training={"mode": "none", "batch": 8})

    yield make
    PARTS.clear()
    registry.forget()


@pytest.mark.parametrize(
    ("share", "schedule", "first", "other"),
    [
        ("blocks", LAYERWISE, "image.blocks.0.weight", "image.blocks.2.weight"),
        ("blocks", SINGLE, "image.blocks.0.weight", "image.blocks.2.weight"),
        ("blocks", {"name": "frozen-prefix", "rounds": 2}, "image.blocks.0.weight", "image.blocks.2.weight"),
        ("embedding", LAYERWISE, "image.embedding.middle.weight", "image.blocks.3.weight"),
        ("norm", LAYERWISE, "image.embedding.middle.weight", "image.norm.end.weight"),
        # the block that gives the parameter its name isn't there in stage 1
        ("block and norm", PROGRESSIVE, "image.blocks.3.weight", "image.norm.end.weight"),
    ],
)
def test_stages_that_cut_a_shared_parameter_are_refused(
    sharing: Callable[..., dict[str, Any]], share: str, schedule: dict[str, Any], first: str, other: str
) -> None:
    with pytest.raises(ScenarioError) as caught:
        edgefl.validate(sharing(share, schedule))
    assert f"schedule: {first} and {other} of image clients are one parameter, which stage" in str(caught.value)
    assert "trains all its places together (end-to-end)" in str(caught.value)
    assert edgefl.validate(sharing(share, "end-to-end"))["combinations"]


@pytest.mark.parametrize("schedule", [PROGRESSIVE, ELASTIC, "end-to-end"])
def test_stages_that_train_a_shared_parameter_everywhere_are_valid(
    sharing: Callable[..., dict[str, Any]], schedule: Any
) -> None:
    assert edgefl.validate(sharing("blocks", schedule))["combinations"]
