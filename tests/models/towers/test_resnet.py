"""ResNets as towers: torchvision's counts and outputs, and what a cut or a recomputation leaves as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from edgefl_toys import FACTS, Toy, do, make_work, skeleton
from safetensors.torch import save_file

from edgefl import models
from edgefl.cost.predict import predict
from edgefl.models import ModelOptions
from edgefl.models.towers.resnet import ResNet
from edgefl.models.towers.vision import import_torchvision
from edgefl.work import Meter

LARGE = {"image": {"channels": 3, "size": 224, "classes": 1000}}


def described(depth: int = 4, facts: Any = FACTS, *, checkpointing: bool = False, **options: Any) -> dict[str, Any]:
    model = ModelOptions(image={"tower": "resnet", **options})
    return models.at_depth(
        models.describe(model, ["image"], "classify", facts, checkpointing=checkpointing), {"image": depth}
    )


@pytest.mark.parametrize(
    ("layers", "parameters", "gmacs"), [(18, 11_689_512, 1.81), (34, 21_797_672, 3.66), (50, 25_557_032, 4.09),
                                        (101, 44_549_160, 7.80)]
)  # fmt: skip
def test_sizes_and_operations_are_the_published_ones(layers: int, parameters: int, gmacs: float) -> None:
    """torchvision's documentation of its weights for 1,000 classes at 224 pixels: "Num Params" and "GFLOPS" (MACs)."""
    model: Any = skeleton(described(facts=LARGE, layers=layers))
    assert sum(p.numel() for p in model.parameters()) == parameters
    meter = Meter()
    with torch.device("meta"), meter.step(0, "image"):
        model.logits("image", torch.empty(1, 3, 224, 224))
    assert round(meter.steps[0, "image"].forward_flops / 2e9, 2) == gmacs


def test_a_tower_computes_what_torchvisions_resnet_does(tmp_path: Path) -> None:
    """Loaded from a file in torchvision's names, running statistics included; cut, it is its first stages."""
    import_torchvision()
    from torchvision.models import resnet18

    torch.manual_seed(0)
    whole = resnet18()
    whole.fc = torch.nn.Identity()
    x = torch.rand(4, 3, 32, 32)
    whole(x)  # statistics to hand on
    whole.eval()
    save_file(whole.state_dict(), tmp_path / "model.safetensors")
    description = {**ResNet.Options().model_dump(), "channels": 3, "size": 32}
    stages = torch.nn.Sequential(whole.conv1, whole.bn1, whole.relu, whole.maxpool, whole.layer1, whole.layer2)
    with torch.no_grad():
        for depth, expected in ((4, whole(x)), (2, stages(x).mean((2, 3)))):
            tower = ResNet.build({**description, "depth": depth}, True).eval()
            ResNet.load(tower, str(tmp_path), description)
            read = tower.pool_tokens(tower(x))
            assert read.shape == (4, 512)
            torch.testing.assert_close(read[:, : expected.shape[1]], expected)
            assert not read[:, expected.shape[1] :].any()


def test_the_small_stem_keeps_positions() -> None:
    x = torch.rand(2, 1, 16, 16)
    for stem, positions in (("small", 16 * 16), ("imagenet", 4 * 4)):
        tower = ResNet.build({"stem": stem, "channels": 1, "depth": 1}, True)
        assert tower(x).shape == (2, positions, 64)


def test_a_recomputed_batch_is_recorded_once() -> None:
    x, states = torch.rand(4, 1, 16, 16), []
    for checkpointing in (False, True):
        torch.manual_seed(1)
        model: Any = models.build(described(2, stem="small", checkpointing=checkpointing)).train()
        model.logits("image", x).square().sum().backward()
        states.append({**model.state_dict(), **{f"{n}.grad": p.grad for n, p in model.named_parameters()}})
        assert model.image.blocks[0][0].bn1.momentum == 0.1
    torch.testing.assert_close(*states)
    assert states[1]["image.blocks.1.0.bn1.num_batches_tracked"] == 1


CASES = {
    "two stages": described(2),
    "all stages": described(),
    "small stem, recomputed": described(2, stem="small", checkpointing=True),
    "bottlenecks": described(2, layers=50),
}


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=[pytest.mark.slow] if c != "two stages" else []) for c in CASES]
)
def test_prediction_equals_measurement(case: str) -> None:
    work = make_work(model=CASES[case])
    predicted, measured = predict(work, Toy()), do(work, meter=Meter()).trace
    assert predicted == measured
    assert predicted.memory_bytes["buffers"] == sum(
        b.numel() * b.element_size() for b in skeleton(CASES[case]).buffers()
    )
