"""The meter's MACs and fvcore's: two programs that count different things, at different places, agree."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from edgefl_toys import FACTS, described

from edgefl import models
from edgefl.cost.fvcore_count import AGREEMENT, TwoCounts, count_twice
from edgefl.models import ModelOptions
from edgefl.work import TensorSpec

PAIR = ("image", "text")
WIDE = {"image": {"channels": 3, "size": 64, "classes": 10}, "text": {"vocabulary": 1000, "tokens": 40, "classes": 10},
        "audio": {"bins": 128, "frames": 256, "classes": 10}}  # fmt: skip

BERT = {"model_type": "bert", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}


def spec(facts: Any, tokens: int) -> dict[str, TensorSpec]:
    image, audio = facts["image"], facts.get("audio", {"frames": 1, "bins": 1})
    return {
        "image": TensorSpec((1, image["channels"], image["size"], image["size"])),
        "text": TensorSpec((1, tokens), "int64"),
        "audio": TensorSpec((1, audio["frames"], audio["bins"])),
    }


def closed_form(tokens: int, width: int, blocks: int) -> int:
    """docs/explanation/methods.md: 12 n D^2 + 2 n^2 D MACs a block, and its two LayerNorms at 5 an element."""
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


def test_what_differs_is_named() -> None:
    found = TwoCounts({"image.head": 100, "image.norm": 50}, {"image.head": 100}, {}, {"aten::my_bmm": 3})
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
    "resnet and gru": ({"image": {"tower": "resnet"}, "text": {"tower": "gru"}, "dimension": 64}, PAIR, "retrieve"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ZOO)
def test_the_zoo_agrees_to_half_a_percent(name: str) -> None:
    written, modalities, task = ZOO[name]
    options = ModelOptions(**written)
    model = models.describe(options, modalities, task, WIDE)
    found = count_twice(model, "-".join(modalities), task, spec(WIDE, options.tokens))
    assert abs(found.error) <= AGREEMENT and not found.unknown, found.differing()
    assert not found.differing()
    assert torch.get_default_device().type == "cpu"
