"""Towers made of timm's and transformers' blocks: names, shapes and the published sizes."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from edgefl_toys import PUBLISHED_FACTS as PUBLISHED
from edgefl_toys import TOWER_FACTS as FACTS
from edgefl_toys import skeleton
from pydantic import ValidationError
from tensors import assert_equal_tensors

from edgefl import models, registry
from edgefl.errors import MethodError
from edgefl.models import ModelOptions

MODALITY = {"timm-vit": "image", "hf-vit": "image", "distilbert": "text", "bert": "text", "ast": "audio"}
SMALL = {"blocks": 3, "width": 32, "heads": 4}


def described(tower: str, facts: Any = FACTS, **fields: Any) -> dict[str, Any]:
    modality = MODALITY[tower]
    return models.describe(ModelOptions(**{modality: {"tower": tower, **fields}}), [modality], "classify", facts)


def published(tower: str, **fields: Any) -> Any:
    return skeleton(described(tower, PUBLISHED, **fields)).get_submodule(MODALITY[tower])


def count(module: Any) -> int:
    return sum(p.numel() for n, p in module.named_parameters() if not n.startswith("head."))


def sample(modality: str, tokens: int = 12) -> torch.Tensor:
    if modality == "text":
        return torch.randint(0, 60, (2, tokens))
    return torch.rand((2, 3, 32, 32) if modality == "image" else (2, 46, 36))


@pytest.mark.parametrize(
    ("tower", "parameters"),
    [
        ("timm-vit", 21_665_664),  # timm's 22,050,664 with 1,000 classes
        ("hf-vit", 5_561_472),
        ("distilbert", 66_362_880),
        ("bert", 22_565_376),  # all-MiniLM-L6-v2's 22,713,216 with its pooler
        ("ast", 42_527_232 + 197_376 + 2 * 768 + 1214 * 768 + 2 * 768),
    ],
)
def test_the_defaults_are_the_published_sizes_and_the_class_says_so(tower: str, parameters: int) -> None:
    assert count(published(tower)) == parameters
    assert f"{parameters:,}" in (registry.get("tower", tower).__doc__ or "")


def test_lw_fedmmls_encoders_have_the_papers_parameters() -> None:
    """ViT-Tiny with its unused pooler and DistilBERT: the published state less both projection heads."""
    assert count(published("hf-vit")) + count(published("distilbert")) == 111_540_864 - 18_628_608 - 20_987_904


@pytest.mark.parametrize(
    ("tower", "width"), [("timm-vit", 384), ("hf-vit", 192), ("distilbert", 768), ("bert", 384), ("ast", 768)]
)
def test_a_block_of_a_library_has_12_d2_plus_13_d_parameters(tower: str, width: int) -> None:
    assert {count(block) for block in published(tower).blocks} == {12 * width**2 + 13 * width}


@pytest.mark.parametrize(("variant", "width"), [("tiny", 192), ("small", 384), ("base", 768)])
@pytest.mark.parametrize("tower", ["timm-vit", "hf-vit"])
def test_a_variant_is_a_size(tower: str, variant: str, width: int) -> None:
    model = described(tower, PUBLISHED, variant=variant)["towers"]["image"]
    assert (model["blocks"], model["width"], model["heads"]) == (12, width, width // 64)
    assert described(tower, variant=variant, blocks=4)["towers"]["image"]["blocks"] == 4


@pytest.mark.parametrize("tower", MODALITY)
def test_a_tower_is_named_and_cut_as_ours(tower: str) -> None:
    modality = MODALITY[tower]
    model = described(tower, **SMALL)
    built: Any = models.build(models.at_depth(model, {modality: 2}))
    module = built.get_submodule(modality)
    assert [n for n, _ in module.named_children() if n not in ("norm", "pooler")] == ["embedding", "blocks", "head"]
    assert len(module.blocks) == 2
    assert {n for n, _ in built.named_parameters()} < {n for n, _ in skeleton(model).named_parameters()}
    assert built.logits(modality, sample(modality)).shape == (2, 5)
    assert module.pool_tokens(module(sample(modality))).shape == (2, module.width) == (2, 32)
    # what isn't in a state would be lost on the way to a client
    assert {n for n, _ in built.named_buffers()} <= built.state_dict().keys()


@pytest.mark.parametrize("tower", MODALITY)
def test_building_draws_from_the_generator_alone(tower: str) -> None:
    def built() -> dict[str, torch.Tensor]:
        with torch.random.fork_rng([]):
            torch.manual_seed(5)
            return models.build(described(tower, **SMALL)).state_dict()

    first, second = built(), built()
    assert_equal_tensors(first, second)


def test_the_text_towers_read_what_they_are_told() -> None:
    tokens = torch.rand(2, 12, 32)
    for read, expected in (("first", tokens[:, 0]), ("mean", tokens.mean(1))):
        module: Any = models.build(described("bert", **SMALL, read=read)).get_submodule("text")
        torch.testing.assert_close(module.pool_tokens(tokens), expected)


def test_position_ids_are_in_the_state_if_asked_for() -> None:
    model = skeleton(described("distilbert", position_ids=True))
    ((name, buffer),) = model.named_buffers()
    assert (name, tuple(buffer.shape), buffer.dtype) == ("text.embedding.position_ids", (1, 512), torch.int64)
    assert not list(skeleton(described("distilbert")).named_buffers())
    old, new = (
        models.build(described("distilbert", **SMALL, dropout=0, position_ids=kept)).get_submodule("text")
        for kept in (True, False)
    )
    new.load_state_dict({n: t for n, t in old.state_dict().items() if n != "embedding.position_ids"})
    texts = sample("text")
    assert_equal_tensors(old(texts), new(texts))


def test_the_unused_pooler_and_a_shared_norm_can_be_left_out() -> None:
    assert count(published("hf-vit")) - count(published("hf-vit", pooler=False)) == 192 * 192 + 192
    options = ModelOptions(image={"tower": "timm-vit", "variant": "small"}, text={"tower": "bert"})
    pair = skeleton(models.describe(options, ["image", "text"], "retrieve", PUBLISHED))
    assert not hasattr(pair.get_submodule("image"), "norm")
    assert hasattr(pair.get_submodule("joint"), "norm")


def test_drop_path_belongs_to_a_blocks_place_in_timms_model_too() -> None:
    model = models.at_depth(described("timm-vit", **SMALL, drop_path=0.2), {"image": 2})
    first, second = models.build(model).get_submodule("image.blocks").children()
    assert not hasattr(first.drop_path1, "drop_prob")
    assert (second.drop_path1.drop_prob, second.drop_path2.drop_prob) == (0.1, 0.1)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "blocks", "width", "patch", "tokens"),
    [
        ("deit_tiny_patch16_224", 12, 192, 16, 5),
        ("vit_small_patch14_reg4_dinov2", 12, 384, 14, 9),
        ("deit3_small_patch16_224", 12, 384, 16, 5),
        ("vit_base_patch32_clip_224", 12, 768, 32, 2),
    ],
)
def test_any_plain_vision_transformer_of_timm_is_a_tower(
    name: str, blocks: int, width: int, patch: int, tokens: int
) -> None:
    """As timm runs it: registers, layer scale, positions without a class token, a norm before the blocks."""
    import timm

    size = 2 * patch if tokens > 2 else patch
    facts = {"image": {**FACTS["image"], "size": size}}
    model = described("timm-vit", facts, variant=name)
    fields = model["towers"]["image"]
    assert (fields["blocks"], fields["width"], fields["patch"]) == (blocks, width, patch)
    with torch.random.fork_rng([]):
        torch.manual_seed(1)
        module = models.build(models.at_depth(model, {"image": 2})).get_submodule("image").eval()
        torch.manual_seed(1)
        theirs: Any = timm.create_model(name, num_classes=0, img_size=size, depth=2).eval()
    images = torch.rand(2, 3, size, size)
    assert module(images).shape == (2, tokens, width)
    assert_equal_tensors(module(images), theirs.forward_features(images))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image": {"tower": "timm-vit", "variant": "smal"}}, "unknown timm model 'smal'; did you mean 'small'"),
        ({"image": {"tower": "timm-vit", "variant": "vit_smal_patch16_224"}}, "did you mean 'vit_small_patch16_224'"),
        ({"image": {"tower": "timm-vit", "variant": "resnet18"}}, "'resnet18' isn't a vision transformer"),
        ({"image": {"tower": "hf-vit", "variant": "huge"}}, "'tiny', 'small' or 'base'"),
        ({"image": {"tower": "hf-vit", "drop_path": 0.1}}, "Extra inputs"),
        ({"text": {"tower": "bert", "tokens": 600}}, "600 tokens don't fit into 512 positions"),
        ({"text": {"tower": "distilbert", "width": 100}}, "width 100 can't be split over 12 heads"),
    ],
)
def test_wrong_options_of_a_library_tower(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ModelOptions(**options)


def test_what_does_not_fit_a_library_tower_is_said() -> None:
    for tower in ("timm-vit", "hf-vit"):
        with pytest.raises(MethodError, match="patch 5 doesn't divide the image size 32"):
            skeleton(described(tower, **SMALL, patch=5))
    with pytest.raises(MethodError, match="a patch of 16 doesn't fit a spectrogram of 8 bins, 46 frames"):
        skeleton(described("ast", {"audio": {**FACTS["audio"], "bins": 8}}, **SMALL))


@pytest.mark.slow(smaller="test_the_defaults_are_the_published_sizes_and_the_class_says_so")
def test_naming_a_tower_imports_no_library_and_building_it_warns_of_nothing() -> None:
    program = """
import sys
from edgefl import models
from edgefl.models import ModelOptions
options = ModelOptions(image={"tower": "timm-vit"}, text={"tower": "bert"}, audio={"tower": "ast"})
assert not {"timm", "transformers", "torchvision"} & set(sys.modules)
import torch
facts = {"image": {"channels": 3, "size": 32}, "text": {"vocabulary": 60}, "audio": {"bins": 36, "frames": 46}}
for modality in facts:
    facts[modality]["classes"] = 5
    with torch.device("meta"):
        models.build(models.describe(options, [modality], "classify", facts))
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
