"""The encoder of PmcmFL: its published size, what its experts see of each other, and its cost at full size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from edgefl_toys import CPU, FACTS, Toy, do, make_work, scoring_pass, skeleton
from pydantic import ValidationError
from tensors import assert_equal_tensors

from edgefl import models
from edgefl.cost.predict import predict
from edgefl.errors import MethodError
from edgefl.models.multiway import MultiwayOptions, describe_multiway
from edgefl.work import Meter, Pass, TensorSpec, Work, run
from edgefl.work.meter.meter import parts

PAIR = ("image", "text")
VQA = {
    "image": {"channels": 3, "size": 480, "classes": 310},
    "text": {"vocabulary": 64_010, "tokens": 64, "classes": 310},
}
SMALL = {"blocks": 2, "width": 16, "heads": 2, "patch": 4, "tokens": 6, "positions": 10}


def described(
    modalities: Sequence[str] = PAIR,
    task: str = "classify",
    facts: Any = FACTS,
    *,
    checkpointing: bool = False,
    **options: Any,
) -> dict[str, Any]:
    chosen = MultiwayOptions(**{**SMALL, **options} if facts is FACTS else options)
    return describe_multiway(chosen, modalities, task, facts, checkpointing=checkpointing)


def count(model: Any, under: str = "") -> int:
    return sum(p.numel() for name, p in model.named_parameters() if name.startswith(under))


def test_the_model_has_the_papers_parameters() -> None:
    """224,369,206 with 310 answers: all but the attention operation is there once for each modality."""
    model = skeleton(described(facts=VQA))
    d, h = 768, 3072
    expert = 4 * (d * d + d) + 2 * d * h + h + d + 2 * (2 * d + d + h)
    assert count(model, "multiway.blocks.11.") == 2 * expert
    assert count(model, "multiway.embedding.") == (64_010 + 16 * 16 * 3 + 1 + 1 + 1 + 903 + 1024) * d
    assert count(model, "joint.fusion.") == 4 * d + 2 * d * d + d
    assert count(model) == 224_369_206
    shared = skeleton(described(facts=VQA, shared_attention=True))
    assert count(model) - count(shared) == 12 * (4 * (d * d + d) + 2 * d)
    names = list(dict.fromkeys(name for name, _ in parts(model)))
    assert names == ["multiway.embedding", *(f"multiway.blocks.{i}" for i in range(12)), "joint.fusion", "joint.head"]


def test_every_kind_has_the_whole_model_and_a_depth_cuts_it() -> None:
    whole = described()
    names = [n for n, _ in skeleton(whole).named_parameters()]
    for kind in ("image", "text"):
        assert [n for n, _ in skeleton(described((kind,))).named_parameters()] == names
    assert models.blocks(whole) == {"multiway": 2}
    cut = [n for n, _ in skeleton(models.at_depth(whole, {"multiway": 1})).named_parameters()]
    assert cut == [n for n in names if not n.startswith("multiway.blocks.1.")]
    assert not [n for n, _ in skeleton(described(task="retrieve")).named_parameters() if n.startswith("joint")]


@pytest.fixture
def model() -> Any:
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        return models.build(described()).eval()


@pytest.fixture
def batch() -> dict[str, torch.Tensor]:
    return {"image": torch.rand(3, 1, 16, 16), "text": torch.randint(0, 40, (3, 6))}


def test_outputs_have_the_promised_shapes(model: Any, batch: dict[str, torch.Tensor]) -> None:
    assert model.multiway(batch)["image"].shape == (3, 17, 16) and model.multiway(batch)["text"].shape == (3, 6, 16)
    assert model.classify("image-text", batch).shape == (3, 5) == (3, model.classes("image-text"))
    for modality in PAIR:
        assert model.feature(modality, batch[modality]).shape == (3, model.dimension)
        torch.testing.assert_close(model.embed(modality, batch[modality]).norm(dim=-1), torch.ones(3))


def test_a_missing_feature_is_zero(model: Any, batch: dict[str, torch.Tensor]) -> None:
    image, text = (model.feature(m, batch[m]) for m in PAIR)
    nothing = torch.zeros(3, 16)
    torch.testing.assert_close(model.logits("image", batch["image"]), model.scores(model.fuse(image, nothing)))
    torch.testing.assert_close(model.logits("text", batch["text"]), model.scores(model.fuse(nothing, text)))


@pytest.mark.parametrize("pattern", ["image", "text", "image-text"])
def test_a_sample_trains_the_experts_of_its_modalities(
    model: Any, batch: dict[str, torch.Tensor], pattern: str
) -> None:
    model.classify(pattern, batch).sum().backward()
    trained = {n for n, p in model.multiway.blocks.named_parameters() if p.grad is not None}
    present = pattern.split("-")
    assert trained == {n for n, _ in model.multiway.blocks.named_parameters() if set(n.split(".")) & set(present)}


def test_modalities_meet_in_attention_alone(model: Any, batch: dict[str, torch.Tensor]) -> None:
    """With equal experts it is one pre-LN transformer with sub-LN over all tokens, whatever their modality."""
    with torch.no_grad():
        state = model.multiway.blocks.state_dict()
        model.multiway.blocks.load_state_dict({n: state[n.replace(".text.", ".image.")] for n in state})
        tokens = model.multiway.embedding(batch)
        x = torch.cat([tokens["image"], tokens["text"]], 1)
        for block in model.multiway.blocks:
            y, attn, ffn = block.norm1.image(x), block.attn, block.ffn.image
            q, k, v = (getattr(attn, n).image(y).view(3, 23, 2, 8).transpose(1, 2) for n in "qkv")
            seen = ((q @ k.transpose(2, 3)) / 8**0.5).softmax(-1) @ v
            x = x + attn.out.image(attn.norm.image(seen.transpose(1, 2).reshape(3, 23, 16)))
            x = x + ffn.fc2(ffn.norm(torch.nn.functional.gelu(ffn.fc1(block.norm2.image(x)))))
        found = model.multiway(batch)
        torch.testing.assert_close(torch.cat([found["image"], found["text"]], 1), x)
        alone = model.multiway({"image": batch["image"]})["image"]
        assert not torch.allclose(alone, found["image"])


def test_shared_attention_is_two_equal_experts(batch: dict[str, torch.Tensor]) -> None:
    shared: Any = models.build(described(shared_attention=True)).eval()
    apart: Any = models.build(described()).eval()
    state = shared.state_dict()
    both = {n: state[n] if n in state else state[n.replace(".image", ".both").replace(".text", ".both")]
            for n in apart.state_dict()}  # fmt: skip
    apart.load_state_dict(both)
    torch.testing.assert_close(shared.classify("image-text", batch), apart.classify("image-text", batch))


def test_drop_path_leaves_out_a_sample_as_a_whole() -> None:
    encoder: Any = models.build(described(drop_path=0.9)).get_submodule("multiway").train()
    assert [b.drop_path for b in encoder.blocks] == pytest.approx([0.0, 0.9])
    x = {"image": torch.rand(64, 4, 16), "text": torch.rand(64, 3, 16)}
    kept = {m: (out != x[m]).any(-1).any(-1) for m, out in encoder.blocks[1](x).items()}
    assert 0 < kept["image"].sum() < 40
    assert_equal_tensors(kept["image"], kept["text"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"modalities": ("audio",)}, "reads image and text; these clients have audio"),
        ({"patch": 5}, "patch 5 doesn't divide the image size 16"),
        ({"facts": {"image": VQA["image"]}}, "needs the vocabulary of text"),
        (
            {"facts": {**VQA, "text": {**VQA["text"], "classes": 4}}},
            "the modalities have 4 and 310 classes",
        ),
    ],
)
def test_what_does_not_fit_is_said(change: dict[str, Any], message: str) -> None:
    with pytest.raises(MethodError, match=message):
        described(**change)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 10, "heads": 4}, "can't be split over 4 heads"),
        ({"tokens": 1023}, "1024 positions are too few for 1023 tokens"),
        ({"pooling": "mean"}, "Extra inputs"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        MultiwayOptions(**options)


def passes(*patterns: str, batch: int = 8) -> tuple[Pass, ...]:
    return (Pass("classify", "private", patterns, batch, True, {}),)


CASES: dict[str, Work] = {
    "pairs": make_work(PAIR, passes("image-text"), model=described(blocks=1)),
    "two layers": make_work(PAIR, passes("image-text"), model=described()),
    "images": make_work(PAIR, passes("image"), model=described(("image",), drop_path=0.0)),
    "texts": make_work(PAIR, passes("text"), model=described(("text",))),
    "all patterns": make_work(PAIR, passes("image-text", "image", "text"), model=described()),
    "shared attention": make_work(PAIR, passes("image-text"), model=described(shared_attention=True)),
    "recomputed": make_work(PAIR, passes("image-text"), model=described(checkpointing=True)),
    "one layer of two": make_work(PAIR, passes("image-text"), model=models.at_depth(described(), {"multiway": 1})),
    "retrieval": make_work(PAIR, model=described(task="retrieve")),
    "scoring": make_work(PAIR, (scoring_pass(PAIR),), model=described(task="retrieve")),
}


@pytest.mark.parametrize("case", [pytest.param(c, marks=[pytest.mark.slow] if c != "pairs" else []) for c in CASES])
def test_prediction_equals_measurement(case: str) -> None:
    predicted, measured = predict(CASES[case], Toy()), do(CASES[case], meter=Meter()).trace
    assert predicted == measured
    if case in CLOSED:
        step = predicted.steps[0, "-".join(CLOSED[case][0])]
        assert (step.forward_flops, step.backward_flops) == flops(*CLOSED[case])


CLOSED = {"pairs": (PAIR, 1), "two layers": (PAIR, 2), "images": (("image",), 2), "texts": (("text",), 2),
          "shared attention": (PAIR, 2)}  # fmt: skip


def flops(
    modalities: Sequence[str], blocks: int, batch: int = 8, d: int = 16, patch: int = 4, classes: int = 5, **size: int
) -> tuple[int, int]:
    """12 n D^2 MACs of linear layers and 2 n^2 D of attention per layer, as in any transformer; fusion and head."""
    lengths = {"image": 17, "text": 6, **size}
    n = sum(lengths[m] for m in modalities)
    patches = (lengths["image"] - 1) * patch**2 * size.get("channels", 1) * d if "image" in modalities else 0
    linear, attention = blocks * 12 * n * d * d, blocks * 2 * n * n * d
    head = 2 * d * d + 2 * d * d + 2 * d * classes
    forward = patches + linear + attention + head
    backward = patches + 2 * linear + 5 * attention // 2 + 2 * head
    return 2 * batch * forward, 2 * batch * backward


class Vqa(Toy):
    """Samples of PmcmFL's sizes."""

    def spec(self, pass_: Pass, pattern: str) -> dict[str, TensorSpec]:
        image, text = TensorSpec((pass_.batch, 3, 480, 480)), TensorSpec((pass_.batch, 64), "int64")
        return {"image": image, "text": text, "label": TensorSpec((pass_.batch,), "int64")}


@pytest.mark.slow(smaller="test_prediction_equals_measurement")
def test_the_full_size_fits_in_what_was_predicted() -> None:
    """At batch 1 the highest moment, late in the backward pass, holds little but weights, gradients and two moments."""
    work = make_work(PAIR, passes("image-text", batch=1), model=described(facts=VQA))
    source = Vqa(2)
    predicted = predict(work, source)
    measured = run(work, {}, source, module=models.build(work.model), device=CPU, seed=1, meter=Meter()).trace
    assert predicted == measured
    assert predicted.peak_memory_bytes == pytest.approx(4 * 4 * 224_369_206, rel=0.01)
    step, sizes = predicted.steps[0, "image-text"], {"image": 901, "text": 64, "channels": 3}
    expected = flops(PAIR, 12, batch=1, d=768, patch=16, classes=310, **sizes)
    assert (step.forward_flops, step.backward_flops) == expected
