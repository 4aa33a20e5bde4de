"""The towers of timm and transformers, and ``conv1d``, cost what is predicted, to the byte and to the operator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from edgefl_toys import PUBLISHED_FACTS as PUBLISHED
from edgefl_toys import TOWER_FACTS as FACTS
from edgefl_toys import inputs_of, make_work, skeleton, training_pass
from torch import Tensor

from edgefl import models
from edgefl.cost.predict import predict
from edgefl.errors import MethodError
from edgefl.models import ModelOptions
from edgefl.work import Meter, Pass, StepTrace, TensorSpec, Work, run

SMALL = {"blocks": 2, "width": 32, "heads": 4}
TOWERS: dict[str, tuple[str, dict[str, Any]]] = {
    "timm-vit": ("image", {"drop_path": 0.2}),
    "hf-vit": ("image", {}),
    "distilbert": ("text", {"tokens": 12, "position_ids": True}),
    "bert": ("text", {"tokens": 12, "read": "mean"}),
    "ast": ("audio", {}),
    "conv1d": ("motion", {}),
}


@dataclass(frozen=True)
class Random:
    """Random samples of one modality, as its data would be shaped."""

    facts: Mapping[str, Mapping[str, int]]
    tokens: int = 12
    samples: int = 6

    def spec(self, pass_: Pass, pattern: str) -> dict[str, TensorSpec]:
        fact, batch = self.facts[pattern], pass_.batch
        match pattern:
            case "image":
                spec = TensorSpec((batch, fact["channels"], fact["size"], fact["size"]))
            case "text":
                spec = TensorSpec((batch, self.tokens), "int64")
            case "audio":
                spec = TensorSpec((batch, fact["frames"], fact["bins"]))
            case _:
                spec = TensorSpec((batch, fact["readings"], fact["channels"]))
        return {pattern: spec, "label": TensorSpec((batch,), "int64")}

    def counts(self, pass_: Pass) -> dict[str, int]:
        return dict.fromkeys(pass_.patterns, self.samples // pass_.batch)

    def size(self, pass_: Pass) -> int:
        return self.samples

    def batches(self, pass_: Pass, seed: int) -> Iterator[tuple[str, dict[str, Tensor]]]:
        draw = torch.Generator().manual_seed(seed)
        for pattern, count in self.counts(pass_).items():
            for _ in range(count):
                yield (
                    pattern,
                    {
                        name: torch.rand(spec.shape, generator=draw)
                        if spec.dtype == "float32"
                        else torch.randint(0, 5, spec.shape, generator=draw)
                        for name, spec in self.spec(pass_, pattern).items()
                    },
                )


def classifier(tower: str, facts: Any = FACTS, checkpointing: bool = False, **fields: Any) -> dict[str, Any]:
    modality = TOWERS[tower][0]
    options = ModelOptions(**{modality: {"tower": tower, **fields}})
    return models.describe(options, [modality], "classify", facts, checkpointing=checkpointing)


def measured(work: Work, source: Any) -> StepTrace:
    module = models.build(work.model)
    inputs = {**{n: b.clone() for n, b in module.named_buffers()}, **inputs_of(work)}
    result = run(work, inputs, source, module=module, device=torch.device("cpu"), seed=1, meter=Meter())
    assert result.trace is not None and result.loss is not None
    return result.trace


def small_work(tower: str, *, checkpointing: bool = False, gate: str = "") -> Work:
    modality, fields = TOWERS[tower]
    small = {**SMALL, **fields} if tower != "conv1d" else {"blocks": 2, "width": 32}
    model = classifier(tower, checkpointing=checkpointing, **small)
    return make_work((modality,), (training_pass((modality,), batch=3),), model=model, gate=gate)


QUICK = {("timm-vit", False), ("distilbert", True), ("ast", False), ("conv1d", False), ("conv1d", True)}
EVERY = [
    pytest.param(tower, checkpointing, marks=[] if (tower, checkpointing) in QUICK else pytest.mark.slow)
    for tower in TOWERS
    for checkpointing in (False, True)
]


@pytest.mark.parametrize(("tower", "checkpointing"), EVERY)
def test_what_is_predicted_is_measured(tower: str, checkpointing: bool) -> None:
    """Peak by part, FLOPs of both directions, MACs by part of the model, bytes touched by every operator."""
    work = small_work(tower, checkpointing=checkpointing)
    assert predict(work, Random(FACTS)) == measured(work, Random(FACTS))


@pytest.mark.slow(smaller="test_what_is_predicted_is_measured")
@pytest.mark.parametrize("tower", TOWERS)
def test_a_gpu_that_is_not_there_recomputes_blocks_as_it_computed_them(tower: str) -> None:
    """DistilBERT's dropout keeps another mask on a GPU than on a CPU: torch notices if it comes back as another."""
    plain, less = (predict(small_work(tower, checkpointing=c), Random(FACTS), "cuda") for c in (False, True))
    assert less.memory_bytes["parameters"] == plain.memory_bytes["parameters"]
    forward = [sum(step.forward_flops for step in trace.steps.values()) for trace in (plain, less)]
    backward = [sum(step.backward_flops for step in trace.steps.values()) for trace in (plain, less)]
    # every block once more, but for what lies outside of blocks
    assert forward[0] == forward[1] and 0 < backward[1] - backward[0] <= forward[0]


@pytest.mark.slow(smaller="test_what_is_predicted_is_measured")
@pytest.mark.parametrize("tower", TOWERS)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_what_is_predicted_is_measured_at_the_published_size(tower: str, precision: str) -> None:
    modality, _ = TOWERS[tower]
    size = {"variant": "tiny"} if tower == "timm-vit" else {}
    work = make_work(
        (modality,),
        (training_pass((modality,), batch=1),),
        model=classifier(tower, PUBLISHED, **size),
        precision=precision,
    )
    source = Random(PUBLISHED, tokens=40, samples=2)
    assert predict(work, source) == measured(work, source)


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch's own, which say why
def test_a_kernel_that_does_not_fit_the_tower_is_refused_in_a_line() -> None:
    """A CPU's flash kernel knows no dropout, which DistilBERT has."""
    work = replace(small_work("distilbert"), attention="flash")
    with pytest.raises(MethodError, match="set training.attention to device or math"):
        predict(work, Random(FACTS))


@pytest.mark.slow(smaller="test_forward_macs_are_the_closed_forms")
@pytest.mark.parametrize("gate", ["trainable", "frozen"])
def test_gates_attach_to_timms_layers(gate: str) -> None:
    work = small_work("timm-vit", gate=gate)
    assert {layer.split(".", 3)[3] for layer in work.edits[0].args["layers"]} == {
        "attn.qkv",
        "attn.proj",
        "mlp.fc1",
        "mlp.fc2",
    }
    trace = predict(work, Random(FACTS))
    assert trace == measured(work, Random(FACTS))
    assert trace.memory_bytes["parameters"] > predict(small_work("timm-vit"), Random(FACTS)).memory_bytes["parameters"]


def block_macs(tokens: int, width: int) -> int:
    """Linear layers, both products of attention, two layer norms at 5 an element."""
    return 12 * tokens * width**2 + 2 * tokens**2 * width + 10 * tokens * width


@pytest.mark.parametrize(
    ("tower", "tokens", "width", "embedding"),
    [
        ("hf-vit", 197, 192, 196 * 768 * 192),
        ("distilbert", 40, 768, 5 * 40 * 768),
        pytest.param("timm-vit", 197, 384, 196 * 768 * 384, marks=pytest.mark.slow),
        pytest.param("bert", 40, 384, 5 * 40 * 384, marks=pytest.mark.slow),
        pytest.param("ast", 1214, 768, 1212 * 256 * 768, marks=pytest.mark.slow),
    ],
)
def test_forward_macs_are_the_closed_forms(tower: str, tokens: int, width: int, embedding: int) -> None:
    """At the published widths, one sample: 102.4 M a ViT-Tiny block, 285.9 M a DistilBERT block at 40 tokens."""
    modality, _ = TOWERS[tower]
    model = models.at_depth(classifier(tower, PUBLISHED), {modality: 1})
    work = make_work((modality,), (training_pass((modality,), batch=1),), model=model)
    step = predict(work, Random(PUBLISHED, tokens=40, samples=2)).steps[0, modality]
    assert step.macs[f"{modality}.blocks.0"] == block_macs(tokens, width)
    assert step.macs[f"{modality}.embedding"] == embedding
    assert step.macs[f"{modality}.pooler"] == 0
    assert step.macs[f"{modality}.norm"] == (
        5 * tokens * width if hasattr(skeleton(model).get_submodule(modality), "norm") else 0
    )


@pytest.mark.slow(smaller="test_the_unused_pooler_and_a_shared_norm_can_be_left_out")
def test_the_unused_pooler_has_no_gradient() -> None:
    with_pooler, without = (
        predict(
            make_work(
                ("image",),
                (training_pass(("image",), batch=3),),
                model=classifier("hf-vit", **SMALL, pooler=pooler),
            ),
            Random(FACTS),
        ).memory_bytes
        for pooler in (True, False)
    )
    assert with_pooler["parameters"] - without["parameters"] == 4 * (32 * 32 + 32)
    assert with_pooler["gradients"] == without["gradients"]
    assert with_pooler["optimizer"] == without["optimizer"]
