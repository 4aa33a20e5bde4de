"""Trained towers under the names of their libraries: a model that the library builds itself takes their state_dict."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from edgefl.models import build
from edgefl.models.client import describe
from edgefl.models.libraries import as_library
from edgefl.models.options import ModelOptions
from edgefl.models.towers.vision import import_torchvision

import_torchvision()

import timm  # noqa: E402
import transformers  # noqa: E402

CLASSES, SIZE, VOCABULARY, TOKENS = 4, 32, 90, 8
FACTS = {
    "image": {"channels": 3, "size": SIZE, "classes": CLASSES},
    "text": {"vocabulary": VOCABULARY, "tokens": TOKENS, "classes": CLASSES},
    "audio": {"bins": 32, "frames": 64, "classes": CLASSES},
}
SMALL = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 96}
OFF = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
FIELDS = {"blocks": 2, "width": 24, "heads": 2}


def trained(modality: str, tower: dict[str, Any], task: str = "classify") -> tuple[Any, dict[str, Any]]:
    """A model whose values are all drawn anew, so that nothing agrees by initialisation."""
    options = ModelOptions.model_validate({modality: tower})
    described = describe(options, (modality,), task, FACTS)
    model: Any = build(described).eval()
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, value in (*model.named_parameters(), *model.named_buffers()):
            if value.is_floating_point():
                noise = torch.randn(value.shape, generator=generator) * 0.1
                value.copy_(noise.abs() + 1 if "var" in name else value + noise)
    return model, described


def state(model: Any, modality: str, described: dict[str, Any]) -> dict[str, Tensor]:
    made = as_library(model, modality, described["towers"][modality])
    assert made is not None
    return made.state_dict()


def inputs(modality: str) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    shapes = {"image": (3, 3, SIZE, SIZE), "audio": (3, 64, 32)}
    if modality == "text":
        return torch.randint(3, VOCABULARY, (3, TOKENS), generator=generator)
    return torch.rand(shapes[modality], generator=generator)


@pytest.mark.parametrize("variant", ["mobilenetv3_small_100", "resnet10t", "convnext_atto", "efficientvit_b0"])
def test_any_net_of_timm(variant: str) -> None:
    model, described = trained("image", {"tower": "timm", "variant": variant})
    own: Any = timm.create_model(variant, num_classes=CLASSES).eval()
    own.load_state_dict(state(model, "image", described))
    torch.testing.assert_close(own(inputs("image")), model(inputs("image")), atol=1e-6, rtol=1e-6)


def test_a_vision_transformer_of_timm() -> None:
    model, described = trained("image", {"tower": "timm-vit", **FIELDS, "patch": 8})
    own = timm.models.VisionTransformer(SIZE, 8, num_classes=CLASSES, embed_dim=24, depth=2, num_heads=2).eval()
    own.load_state_dict(state(model, "image", described))
    torch.testing.assert_close(own(inputs("image")), model(inputs("image")), atol=1e-6, rtol=1e-6)


VISION = {**SMALL, **OFF, "image_size": SIZE, "patch_size": 8}
BUILT: dict[str, tuple[str, dict[str, Any], Callable[[], Any]]] = {
    "hf-vit": (
        "image",
        {"tower": "hf-vit", **FIELDS, "patch": 8},
        lambda: transformers.ViTModel(transformers.ViTConfig(**VISION)),
    ),
    "dinov2": (
        "image",
        {
            "tower": "hf",
            "config": {"model_type": "dinov2", "patch_size": 8, **{k: SMALL[k] for k in list(SMALL)[:3]}},
        },
        lambda: transformers.Dinov2Model(
            transformers.Dinov2Config(
                image_size=SIZE, patch_size=8, hidden_size=24, num_hidden_layers=2, num_attention_heads=2
            )
        ),
    ),
    "bert": (
        "text",
        {"tower": "bert", **FIELDS, "tokens": TOKENS},
        lambda: transformers.BertModel(
            transformers.BertConfig(vocab_size=VOCABULARY, **SMALL, **OFF), add_pooling_layer=False
        ),
    ),
    "distilbert": (
        "text",
        {"tower": "distilbert", **FIELDS, "tokens": TOKENS},
        lambda: transformers.DistilBertModel(
            transformers.DistilBertConfig(vocab_size=VOCABULARY, dim=24, n_layers=2, n_heads=2, hidden_dim=96)
        ),
    ),
    "modernbert": (
        "text",
        {"tower": "hf", "tokens": TOKENS, "config": {"model_type": "modernbert", **SMALL}},
        lambda: transformers.ModernBertModel(
            transformers.ModernBertConfig(
                vocab_size=VOCABULARY, **SMALL, cls_token_id=None, sep_token_id=None, pad_token_id=None,
                bos_token_id=None, eos_token_id=None,
            )
        ),
    ),
    "gpt2": (
        "text",
        {
            "tower": "hf-causal", "tokens": TOKENS,
            "config": {"model_type": "gpt2", "n_embd": 24, "n_layer": 2, "n_head": 2},
        },
        lambda: transformers.GPT2Model(
            transformers.GPT2Config(
                vocab_size=VOCABULARY, n_embd=24, n_layer=2, n_head=2, bos_token_id=None, eos_token_id=None
            )
        ),
    ),
    "llama": (
        "text",
        {"tower": "hf-causal", "tokens": TOKENS, "config": {"model_type": "llama", **SMALL}},
        lambda: transformers.LlamaModel(
            transformers.LlamaConfig(vocab_size=VOCABULARY, **SMALL, bos_token_id=None, eos_token_id=None)
        ),
    ),
    "phi": (
        "text",
        {"tower": "hf-causal", "tokens": TOKENS, "config": {"model_type": "phi", **SMALL}},
        lambda: transformers.PhiModel(
            transformers.PhiConfig(vocab_size=VOCABULARY, **SMALL, bos_token_id=None, eos_token_id=None)
        ),
    ),
    "ast": (
        "audio",
        {"tower": "ast", **FIELDS},
        lambda: transformers.ASTModel(transformers.ASTConfig(**SMALL, max_length=64, num_mel_bins=32)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BUILT)
def test_a_model_that_transformers_builds(name: str) -> None:
    modality, tower, make = BUILT[name]
    model, described = trained(modality, tower)
    own = make().eval()
    own.load_state_dict(state(model, modality, described))
    x = inputs(modality)
    given = {"image": {"pixel_values": x}, "text": {"input_ids": x}, "audio": {"input_values": x}}[modality]
    if modality == "text":
        given["attention_mask"] = torch.ones_like(x)
    with torch.no_grad():
        found = own(**given).last_hidden_state
        torch.testing.assert_close(found, model.tower(modality)(x), atol=1e-6, rtol=1e-6)


def test_the_shared_norm_of_a_retrieval_model_stands_for_its_own() -> None:
    options = ModelOptions.model_validate({"image": {"tower": "timm-vit", **FIELDS, "patch": 8}, "text": FIELDS})
    described = describe(options, ("image", "text"), "retrieve", FACTS)
    model: Any = build(described).eval()
    with torch.no_grad():
        model.joint.norm.weight.mul_(1.5).add_(0.1)
    own = timm.models.VisionTransformer(SIZE, 8, num_classes=0, embed_dim=24, depth=2, num_heads=2).eval()
    own.load_state_dict(state(model, "image", described))
    x = inputs("image")
    torch.testing.assert_close(own(x), model.feature("image", x), atol=1e-6, rtol=1e-6)


def test_a_tower_of_no_library_has_no_such_model() -> None:
    model, described = trained("image", {"tower": "vit", **FIELDS})
    assert as_library(model, "image", described["towers"]["image"]) is None
