"""What clients note of their gradients, against a loop by hand; what it costs; who can't note anything."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
import torch
from edgefl_toys import TOWER_FACTS, Toy, described, do, inputs_of, make_work, training_pass
from torch import Tensor
from torch.nn import functional as F

import edgefl
from edgefl import models, registry
from edgefl.cost.predict import predict, work_key
from edgefl.errors import EdgeflError
from edgefl.models import ModelOptions
from edgefl.models.layers import attention_outputs
from edgefl.registry.registered import PARTS
from edgefl.scenario import load
from edgefl.schedules import Layerwise
from edgefl.setup.compose import compose
from edgefl.work import Context, Meter, Pass, Work
from edgefl.work.steps import ClassifyStep

Tiny = Callable[..., dict[str, Any]]
LR = 0.5
OUTPUTS = [f"image.blocks.{index}.attn.proj.weight" for index in (0, 1)]
METRICS = [f"gradient[image.blocks.{index}]" for index in (0, 1)]


class Same(Toy):
    """The same batches in every pass."""

    def batches(self, pass_: Any, seed: int) -> Any:
        return super().batches(pass_, 0)


def noting(passes: int = 2, **more: Any) -> Work:
    optimizer = {"name": "sgd", "lr": LR, "implementation": "for-loop", "note_gradients": True, **more}
    return make_work(passes=(training_pass(),) * passes, optimizer=optimizer)


def by_hand(accumulation: int = 1, clip: float | None = None, passes: int = 2) -> list[float]:
    """Plain SGD; the mean of ``p.grad.norm()`` before clipping, over the updates."""
    work = noting()
    module = models.build(work.model)
    module.load_state_dict(inputs_of(work))
    norms: list[list[float]] = []
    for _ in range(passes):
        batches = [batch for _, batch in Same().batches(work.passes[0], 0)]
        for start in range(0, len(batches), accumulation):
            module.zero_grad()
            for batch in batches[start : start + accumulation]:
                loss = F.cross_entropy(module.logits("image", batch["image"]), batch["label"])  # type: ignore[operator]
                (loss / accumulation).backward()
            gradients = {name: p.grad for name, p in module.named_parameters()}
            norms.append([float(gradients[name].norm()) for name in OUTPUTS])  # type: ignore[union-attr]
            whole = float(torch.cat([g.flatten() for g in gradients.values() if g is not None]).norm())
            factor = 1.0 if clip is None else min(1.0, clip / whole)
            with torch.no_grad():
                for name, p in module.named_parameters():
                    p -= LR * factor * gradients[name]  # type: ignore[operator]
    return [sum(each) / len(norms) for each in zip(*norms, strict=True)]


CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "foreach": ({"implementation": "foreach"}, {}),
    "fused": ({"implementation": "fused"}, {}),
    "clipped": ({"clip": 0.1}, {"clip": 0.1}),
    "accumulated": ({"accumulation": 2}, {"accumulation": 2}),
    "in the backward pass": ({"step_in_backward": True}, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_the_mean_norm_is_that_of_a_loop_by_hand(case: str) -> None:
    settings, hand = CASES[case]
    result = do(noting(**settings), Same())
    expected = by_hand(**hand)
    assert expected[0] != pytest.approx(expected[1], rel=0.01)
    assert dict(result.metrics) == pytest.approx(dict(zip(METRICS, expected, strict=True)), rel=1e-4)


def test_only_blocks_that_train_are_noted() -> None:
    second = Layerwise(Layerwise.Options(stages=2, rounds=2), {"image": 2}).stages[1]
    assert list(do(second.restrict_work(noting())).metrics) == METRICS[1:]


def test_a_pass_that_leaves_a_tower_alone_is_not_in_its_mean() -> None:
    """Images train in a pass of their own, and the text tower has no gradient there."""
    pair = ("image", "text")
    passes = (training_pass(pair), replace(training_pass(pair), step="image-alone"))
    edgefl.register("step", "image-alone")(ImageAlone)
    found, alone = (
        do(make_work(pair, passes[:n], model=described(pair), optimizer=noting().optimizer | {"lr": 1e-9}), Same())
        for n in (2, 1)
    )
    text = "gradient[text.blocks.1]"
    assert found.metrics[text] == pytest.approx(alone.metrics[text], rel=1e-4)
    assert found.metrics[METRICS[0]] != pytest.approx(alone.metrics[METRICS[0]], rel=0.01)


class ImageAlone(ClassifyStep):
    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> Tensor:
        return ctx.client_model.embed("image", batch["image"])[:, 0].sum()


class Overflowing(ClassifyStep):
    """Batches of which every second has an infinite loss."""

    seen = count()

    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> Tensor:
        loss = super().loss(ctx, batch, pattern, pass_) * 1e-3
        return loss * float("inf") if next(self.seen) % 2 else loss


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    edgefl.register("step", "overflowing")(Overflowing)
    yield
    PARTS.clear()
    registry.forget()


def test_an_update_that_is_skipped_is_not_noted() -> None:
    optimizer = {**noting().optimizer, "implementation": "fused", "lr": 1e-9}
    work = make_work(passes=(replace(training_pass(), step="overflowing"),), optimizer=optimizer, precision="float16")
    result = do(work, Same())
    assert result.updates == 3
    plain = do(noting(passes=1, lr=1e-9), Same())  # five batches of one loss each
    for name in METRICS:
        assert 0 < result.metrics[name] == pytest.approx(1e-3 * plain.metrics[name], rel=0.3)


def test_the_cost_is_predicted_and_nothing_changes_where_nobody_notes() -> None:
    for settings in ({}, {"clip": 1.0}, {"step_in_backward": True}):
        meter = Meter()
        do(noting(**settings), meter=meter)
        assert meter.trace().memory_bytes == predict(noting(**settings), Toy()).memory_bytes
    silent = {"name": "sgd", "lr": LR, "implementation": "for-loop"}
    assert not do(make_work(passes=noting().passes, optimizer=silent)).metrics
    assert work_key(make_work(optimizer=silent).form) != work_key(noting().form)


def test_clients_note_and_the_server_does_not(tiny: Tiny) -> None:
    plain, noted = (
        compose(load(tiny(training={"batch": 8, "note_gradients": notes}))).method for notes in (False, True)
    )
    work = noted.client_work("image-text", 1)
    assert plain.client_work("image-text", 1) == replace(work, optimizer=plain.client_work("image-text", 1).optimizer)
    assert work.optimizer == {**plain.client_work("image-text", 1).optimizer, "note_gradients": True}
    assert noted.work("image-text", 1) == plain.work("image-text", 1)


TOWERS: dict[str, dict[str, Any]] = {
    "vit": {"image": {"blocks": 2, "width": 16, "heads": 2, "patch": 8}},
    "transformer": {"text": {"blocks": 2, "width": 16, "heads": 2, "tokens": 12}},
    "timm-vit": {"image": {"tower": "timm-vit", "blocks": 2, "width": 16, "heads": 2, "patch": 8}},
    "bert": {"text": {"tower": "bert", "blocks": 2, "width": 16, "heads": 2, "tokens": 12}},
    "distilbert": {"text": {"tower": "distilbert", "blocks": 2, "width": 16, "heads": 2, "tokens": 12}},
}


@pytest.mark.parametrize("tower", TOWERS)
def test_a_tower_has_one_attention_output_in_each_block(tower: str) -> None:
    ((modality, options),) = TOWERS[tower].items()
    model = models.describe(ModelOptions(**{modality: options}), (modality,), "classify", TOWER_FACTS)
    shapes = {name: tuple(p.shape) for name, p in models.on_meta(model).named_parameters()}
    found = attention_outputs(model["towers"], shapes)
    assert list(found.values()) == [f"{modality}.blocks.0", f"{modality}.blocks.1"]
    assert all(shapes[name] == (16, 16) and ".query" not in name and "q_lin" not in name for name in found)


NOTES = {"note_gradients": True, "batch": 8}


@pytest.mark.parametrize(
    ("sections", "told"),
    [
        ({"model": {"image": {"tower": "resnet"}, **TOWERS["transformer"], "dimension": 16}},
         r"training.note_gradients: image clients train no attention output of the blocks of image \(resnet\)"),
        ({"model": {**TOWERS["vit"], "text": {"tower": "gru"}, "dimension": 16}}, r"the blocks of text \(gru\)"),
        ({"model": {"multiway": {"blocks": 2, "width": 16, "heads": 2, "patch": 8}}}, r"of multiway \(multiway\)"),
        ({"adapter": {"name": "lora", "rank": 2}}, "allowed: vit, .*; without an adapter"),
        ({"training": {**NOTES, "optimizer": "mezo"}}, "mezo has no gradients .*: leave out note_gradients"),
    ],
)  # fmt: skip
def test_who_has_nothing_to_note_is_told(tiny: Tiny, sections: dict[str, Any], told: str) -> None:
    with pytest.raises(EdgeflError, match=told):
        compose(load(tiny(**{"training": NOTES, **sections})))
