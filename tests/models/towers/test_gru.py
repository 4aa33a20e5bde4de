"""GRUs as towers: one layer is one block, and all of them are what torch stacks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from edgefl_toys import FACTS, Toy, do, make_work, skeleton, training_pass
from torch import nn

from edgefl import models
from edgefl.cost.predict import predict
from edgefl.models import ModelOptions
from edgefl.models.towers.gru import Gru
from edgefl.work import Meter

SMALL = {"blocks": 2, "embedding": 10, "hidden": 8, "tokens": 6}


def described(depth: int = 2, *, checkpointing: bool = False, **options: Any) -> dict[str, Any]:
    model = ModelOptions(text={"tower": "gru", **SMALL, **options})
    return models.at_depth(
        models.describe(model, ["text"], "classify", FACTS, checkpointing=checkpointing), {"text": depth}
    )


def test_the_default_is_as_large_as_creamfls() -> None:
    """Word vectors of 300, two directions of 256 states: 2 x 3 h (e + h + 2) parameters under the embedding."""
    options = Gru.Options()
    tower = Gru.build({**options.model_dump(), "vocabulary": 1000, "depth": 1}, True)
    sizes = {name: sum(p.numel() for p in part.parameters()) for name, part in tower.named_children()}
    assert sizes == {"embedding": 300_000, "blocks": 2 * 3 * 256 * (300 + 256 + 2)}
    assert options.model_dump()["width"] == tower.width == 512


def test_layers_are_what_torch_stacks() -> None:
    stacked = nn.GRU(10, 8, 2, batch_first=True, bidirectional=True)
    tower: Any = models.build(described()).get_submodule("text")
    for layer, block in enumerate(tower.blocks):
        for name, parameter in block.named_parameters():
            parameter.data = getattr(stacked, name.replace("l0", f"l{layer}")).data
    text = torch.randint(0, 40, (3, 6))
    out, last = stacked(tower.embedding(text))
    torch.testing.assert_close(tower(text), out)
    read = {pooling: Gru.build({**described()["towers"]["text"], "pooling": pooling}, True).pool_tokens(out)
            for pooling in ("last", "max", "mean")}  # fmt: skip
    torch.testing.assert_close(read["last"], torch.cat([last[2], last[3]], 1))
    torch.testing.assert_close(read["max"], out.max(1).values)
    torch.testing.assert_close(read["mean"], out.sum(1) / 6)


def test_a_cut_tower_reads_as_wide() -> None:
    names = [n for n, _ in skeleton(described(1)).named_parameters() if ".blocks." in n]
    assert {n.split(".")[2] for n in names} == {"0"} and "text.blocks.0.weight_ih_l0_reverse" in names
    for depth in (0, 1, 2):
        model: Any = models.build(described(depth))
        assert model.logits("text", torch.randint(0, 40, (3, 6))).shape == (3, 5)


def flops(inputs: tuple[int, ...], tokens: int = 6, batch: int = 8) -> tuple[int, int]:
    """2 x MAC of the gates, from each layer's inputs; there is no gradient of the first state."""
    gates, first = sum(2 * 3 * 8 * (width + 8) for width in inputs), 2 * 3 * 8 * 8 * len(inputs)
    forward, head = 2 * batch * tokens * gates, 2 * batch * 16 * 5
    return forward + head, 2 * forward - 2 * batch * first + 2 * head


CASES = {
    "one layer": described(1),
    "maximum": described(),
    "mean": described(pooling="mean"),
    "last": described(pooling="last"),
    "recomputed": described(checkpointing=True),
}


@pytest.mark.parametrize("case", [pytest.param(c, marks=[pytest.mark.slow] if c != "one layer" else []) for c in CASES])
def test_prediction_equals_measurement(case: str) -> None:
    work = make_work(("text",), (training_pass(("text",)),), model=CASES[case])
    predicted, measured = predict(work, Toy()), do(work, meter=Meter()).trace
    assert predicted == measured
    if case != "recomputed":
        step = predicted.steps[0, "text"]
        assert (step.forward_flops, step.backward_flops) == flops((10,) if case == "one layer" else (10, 16))
