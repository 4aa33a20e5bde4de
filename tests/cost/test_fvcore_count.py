"""The meter's MACs and fvcore's: two programs that count different things, at different places, agree."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from edgefl_toys import FACTS, described
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import edgefl
from edgefl import models, registry
from edgefl.cost.fvcore_count import AGREEMENT, TwoCounts, count_twice
from edgefl.models import ModelOptions
from edgefl.registry.registered import PARTS
from edgefl.work import TensorSpec

PAIR = ("image", "text")
WIDE = {"image": {"channels": 3, "size": 64, "classes": 10}, "text": {"vocabulary": 1000, "tokens": 40, "classes": 10},
        "audio": {"bins": 128, "frames": 256, "classes": 10},
        "motion": {"readings": 128, "channels": 9, "classes": 6}}  # fmt: skip

BERT = {"model_type": "bert", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}


def spec(facts: Any, tokens: int) -> dict[str, TensorSpec]:
    image, audio = facts["image"], facts.get("audio", {"frames": 1, "bins": 1})
    motion = facts.get("motion", {"readings": 1, "channels": 1})
    return {
        "image": TensorSpec((1, image["channels"], image["size"], image["size"])),
        "text": TensorSpec((1, tokens), "int64"),
        "audio": TensorSpec((1, audio["frames"], audio["bins"])),
        "motion": TensorSpec((1, motion["readings"], motion["channels"])),
    }


def closed_form(tokens: int, width: int, blocks: int) -> int:
    """docs/concepts/methods.md: 12 n D^2 + 2 n^2 D MACs a block, and its two LayerNorms at 5 an element."""
    return blocks * (12 * tokens * width**2 + 2 * tokens**2 * width + 2 * 5 * tokens * width)


@pytest.mark.parametrize("modality", PAIR)
def test_a_transformer_has_the_closed_form_in_both_counts(modality: str) -> None:
    tokens, width = FACTS["text"]["tokens"], 16
    found = count_twice(described((modality,)), modality, "classify", spec(FACTS, tokens))
    n = tokens if modality == "text" else (FACTS["image"]["size"] // 4) ** 2 + 1
    for counts in (found.meter, found.fvcore):
        assert sum(m for part, m in counts.items() if ".blocks." in part) == closed_form(n, width, 2)
    assert found.meter == found.fvcore
    assert found.error == 0 and not found.differing() and not found.unknown


def test_pairs_gates_and_checkpointing_change_no_agreement() -> None:
    model = described(PAIR, checkpointing=True)
    found = count_twice(model, "image-text", "retrieve", spec(FACTS, FACTS["text"]["tokens"]))
    assert found.meter == found.fvcore and {p.partition(".")[0] for p in found.meter} == {"image", "text", "joint"}


class Unclaimed(nn.Module):
    """Products in ``forward`` and in a function that the model calls by itself."""

    def __init__(self, channels: int, size: int):
        super().__init__()
        self.rows, self.width = nn.Linear(channels * size, 8), size
        self.query = nn.Parameter(torch.ones(size))

    def forward(self, image: Tensor) -> Tensor:
        rows = self.rows(image.permute(0, 2, 1, 3).flatten(2))
        return torch.einsum("bik,bjk->bij", rows, rows)

    def pool_tokens(self, tokens: Tensor) -> Tensor:
        return torch.einsum("bij,bi->bj", tokens, (tokens @ self.query).softmax(-1))


@pytest.fixture
def unclaimed() -> Iterator[None]:
    edgefl.register("tower", "unclaimed")(Unclaimed)
    yield
    PARTS.clear()
    registry.forget()


def test_what_no_part_claims_belongs_to_the_tower(unclaimed: None) -> None:
    size = FACTS["image"]["size"]
    options = ModelOptions(image={"tower": "unclaimed"})  # type: ignore[arg-type]
    model = models.describe(options, ("image",), "classify", FACTS)
    found = count_twice(model, "image", "classify", spec(FACTS, 1))
    assert found.meter["image"] == size * size * 8 + 2 * size * size
    assert found.error == 0 and not found.differing() and not found.unknown
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        models.build(model)(torch.zeros(spec(FACTS, 1)["image"].shape))
    vector = size * size  # torch's own counter has no formula for a product with a vector
    assert sum(found.meter.values()) == counter.get_total_flops() // 2 + vector == found.total


def test_what_no_part_claims_has_the_backward_macs_of_its_operands(unclaimed: None) -> None:
    shapes = {"image": {**FACTS["image"], "classes": 12}}
    data = {"source": "declared", "clients": {"image": 1}, "samples": 8, "shapes": shapes}
    model = {"image": {"tower": "unclaimed"}}
    row = edgefl.profile({"name": "x", "data": data, "model": model, "training": {"batch": 4}}).rows[0]
    counts = count_twice(
        models.describe(ModelOptions(image={"tower": "unclaimed"}), ("image",), "classify", shapes),  # type: ignore[arg-type]
        "image", "classify", spec(FACTS, 1),
    )  # fmt: skip
    assert row.fvcore_macs_per_sample == 3 * counts.total  # every operand of the tower's products needs a gradient


def test_scores_by_the_rows_of_an_embedding_are_counted() -> None:
    config = {"model_type": "gpt2", "n_embd": 16, "n_layer": 1, "n_head": 2}
    options = ModelOptions(text={"tower": "hf-causal", "config": config, "tokens": 6})  # type: ignore[arg-type]
    facts = {"text": {"vocabulary": 50, "tokens": 6, "classes": 2}}
    model = models.describe(options, ("text",), "next-token", facts)
    found = count_twice(model, "text", "next-token", {"text": TensorSpec((1, 6), "int64")})
    assert found.meter["text"] == 6 * 16 * 50
    assert found.error == 0 and not found.differing()


def test_what_differs_is_named() -> None:
    found = TwoCounts({"image.head": 100, "image.norm": 50}, {"image.head": 100}, {}, {"aten::my_bmm": 3}, 100)
    assert found.error == pytest.approx(-1 / 3)
    assert found.differing() == [
        "image.norm: meter 50, fvcore 0 (nothing)",
        "aten::my_bmm: 3 calls that fvcore can't count",
    ]


ZOO: dict[str, tuple[dict[str, Any], tuple[str, ...], str]] = {
    "resnet": ({"image": {"tower": "resnet"}}, ("image",), "classify"),
    "gru": ({"text": {"tower": "gru", "hidden": 32}}, ("text",), "classify"),
    "timm-vit": ({"image": {"tower": "timm-vit", "blocks": 2}}, ("image",), "classify"),
    "hf-vit": ({"image": {"tower": "hf-vit", "blocks": 2}}, ("image",), "classify"),
    "distilbert": ({"text": {"tower": "distilbert", "blocks": 2}}, ("text",), "classify"),
    "bert": ({"text": {"tower": "bert", "blocks": 2}}, ("text",), "classify"),
    "hf": ({"text": {"tower": "hf", "config": BERT}}, ("text",), "classify"),
    "timm": ({"image": {"tower": "timm"}}, ("image",), "classify"),
    "ast": ({"audio": {"tower": "ast", "blocks": 2}}, ("audio",), "classify"),
    "conv1d": ({"motion": {"tower": "conv1d"}}, ("motion",), "classify"),
    "resnet and gru": ({"image": {"tower": "resnet"}, "text": {"tower": "gru"}, "dimension": 64}, PAIR, "retrieve"),
}


@pytest.mark.slow(smaller="test_a_transformer_has_the_closed_form_in_both_counts")
@pytest.mark.parametrize("name", ZOO)
def test_the_zoo_agrees_to_half_a_percent(name: str) -> None:
    written, modalities, task = ZOO[name]
    options = ModelOptions(**written)
    model = models.describe(options, modalities, task, WIDE)
    found = count_twice(model, "-".join(modalities), task, spec(WIDE, options.tokens))
    assert abs(found.error) <= AGREEMENT and not found.unknown, found.differing()
    assert not found.differing()
    assert torch.get_default_device().type == "cpu"
