"""A scenario whose plans break a rule is refused before it trains: its weights would start at random in every round."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

import edgefl
from edgefl import models, registry
from edgefl.errors import ScenarioError
from edgefl.methods.fedavg import FedAvg
from edgefl.registry.registered import PARTS
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
    for command in (edgefl.validate, edgefl.profile, lambda it: edgefl.run(it, output=tmp_path / "run")):
        with pytest.raises(ScenarioError, match=said):
            command(scenario)
    assert not (tmp_path / "run").exists()
    if mistake != "moody":
        report = edgefl.check("method", Careless, schedules=["end-to-end"], kinds=["image"], mistake=mistake)
        assert not report.ok


def test_a_stage_that_is_as_short_as_the_model_is_fine(careless: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    staged = {"name": "layerwise", "stages": 2, "rounds": 2}
    assert edgefl.run(careless("none", schedule=staged), output=tmp_path / "run").is_finished
    with pytest.raises(ScenarioError, match=r"image clients at stage 2 breaks a rule: 'image\.blocks\.1\."):
        edgefl.validate(careless("shorter", schedule=staged))
