"""Towers and client models: the papers' parameter counts, cuts at a depth, and what can't be described."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from edgefl_toys import FACTS, described, skeleton
from pydantic import ValidationError
from tensors import assert_equal_tensors

from edgefl import models
from edgefl.errors import MethodError, UnknownName
from edgefl.models import ModelOptions

VIT_S = {"blocks": 12, "width": 384, "heads": 6}
PAPER = ModelOptions(image={**VIT_S, "patch": 16}, text={**VIT_S, "tokens": 40})
PAPER_FACTS = {
    "image": {"channels": 3, "size": 224, "classes": 100},
    "text": {"vocabulary": 30522, "tokens": 40, "classes": 4},
}


def parameters(model: Any, under: str = "") -> int:
    return sum(p.numel() for name, p in skeleton(model).named_parameters() if name.startswith(under))


@pytest.mark.parametrize(
    ("modalities", "task", "count"),
    [
        (("image",), "classify", 21_704_164),
        (("text",), "classify", 33_033_220),
        (("image", "text"), "retrieve", 54_696_576),
    ],
)
def test_fedcolas_models_have_the_papers_parameters(modalities: tuple[str, ...], task: str, count: int) -> None:
    """FedCola at ViT-S size (docs/evidence/papers/fedcola-colayer.md)."""
    assert parameters(models.describe(PAPER, modalities, task, PAPER_FACTS)) == count


def test_the_parts_of_fedcolas_models() -> None:
    image = models.describe(PAPER, ["image"], "classify", PAPER_FACTS)
    text = models.describe(PAPER, ["text"], "classify", PAPER_FACTS)
    assert parameters(image, "image.embedding") == 371_328
    assert parameters(text, "text.embedding") == 11_737_344
    for model, tower, head in ((image, "image", 38_500), (text, "text", 1_540)):
        assert parameters(model, f"{tower}.blocks.7.") == 1_774_464
        assert parameters(model, f"{tower}.blocks.") == 21_293_568
        assert parameters(model, f"{tower}.norm.") == 768
        assert parameters(model, f"{tower}.head.") == head


@pytest.mark.parametrize(("width", "count"), [(192, 444_864), (384, 1_774_464), (768, 7_087_872)])
def test_a_block_has_12_d2_plus_13_d_parameters(width: int, count: int) -> None:
    assert parameters(described(width=width, blocks=1), "image.blocks.0.") == count == 12 * width**2 + 13 * width


def test_a_model_is_cut_at_a_depth() -> None:
    model = described(("image", "text"), blocks=4)
    assert models.blocks(model) == {"image": 4, "text": 4}
    cut = models.at_depth(model, {"image": 1, "text": 3})
    names = [n for n, _ in skeleton(cut).named_parameters()]
    assert {n.split(".")[2] for n in names if n.startswith("image.blocks.")} == {"0"}
    assert {n.split(".")[2] for n in names if n.startswith("text.blocks.")} == {"0", "1", "2"}
    assert set(names) < {n for n, _ in skeleton(model).named_parameters()}
    assert models.blocks(cut) == {"image": 4, "text": 4}
    assert model["towers"]["image"]["depth"] == 4
    assert models.at_depth(cut, {}) == cut


def test_drop_path_belongs_to_a_blocks_place_in_the_full_model() -> None:
    model = described(blocks=3, drop_path=0.2)
    rates = [block.drop_path for block in skeleton(models.at_depth(model, {"image": 2})).image.blocks]  # type: ignore[union-attr]
    assert rates == pytest.approx([0.0, 0.1])


def test_outputs_have_the_promised_shapes() -> None:
    images, texts = torch.rand(3, 1, 16, 16), torch.randint(0, 40, (3, 6))
    classifier: Any = models.build(described())
    assert classifier.logits("image", images).shape == (3, 5)
    assert classifier.feature("image", images).shape == (3, classifier.dimension) == (3, 16)
    pair: Any = models.build(described(("image", "text")))
    for modality, x in (("image", images), ("text", texts)):
        torch.testing.assert_close(pair.embed(modality, x).norm(dim=-1), torch.ones(3))
    assert classifier.image(images).shape == (3, 17, 16)


def test_a_projection_lets_towers_differ_in_width() -> None:
    options = ModelOptions(
        image={"width": 16, "heads": 2, "patch": 4}, text={"width": 24, "heads": 2, "tokens": 6}, dimension=10
    )
    pair: Any = models.build(models.describe(options, ["image", "text"], "retrieve", FACTS))
    assert pair.dimension == 10
    assert pair.embed("text", torch.randint(0, 40, (2, 6))).shape == (2, 10)
    assert not hasattr(pair, "joint") and hasattr(pair.image, "norm")


def test_what_does_not_fit_is_said() -> None:
    image = {"width": 16, "heads": 2, "patch": 4}
    with pytest.raises(MethodError, match=r"need a model.text tower; the model has \['image'\]"):
        models.describe(ModelOptions(image=image), ["text"], "classify", FACTS)
    wide = ModelOptions(image=image, text={"width": 24, "heads": 2, "tokens": 6})
    with pytest.raises(MethodError, match=r"widths \[16, 24\] needs model.dimension"):
        models.describe(wide, ["image", "text"], "retrieve", FACTS)
    with pytest.raises(MethodError, match="patch 5 doesn't divide the image size 16"):
        skeleton(models.describe(ModelOptions(image={**image, "patch": 5}), ["image"], "classify", FACTS))
    with pytest.raises(UnknownName, match="unknown model"):
        models.build({"name": "twoers"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image": {"width": 10, "heads": 4}}, "width 10 can't be split over 4 heads"),
        ({"image": {"blocks": 0}}, "greater than 0"),
        ({"image": {"depth": 3}}, "Extra inputs"),
        ({"image": 3}, "a tower is a mapping"),
        ({}, "at least one tower"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ModelOptions(**options)


def test_an_unknown_tower_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match="did you mean 'vit'"):
        ModelOptions(image={"tower": "vti"})


def test_building_draws_from_the_generator_alone() -> None:
    def built() -> dict[str, torch.Tensor]:
        with torch.random.fork_rng([]):
            torch.manual_seed(5)
            return models.build(described(("image", "text"))).state_dict()

    first, second = built(), built()
    assert_equal_tensors(first, second)
