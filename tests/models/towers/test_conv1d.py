"""Convolutions over time: a block by hand, torch's count of FLOPs, stages, and the peak of the allocator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from edgefl_toys import PUBLISHED_FACTS, skeleton
from miniatures import uci_har
from pydantic import ValidationError
from torch.utils.flop_counter import FlopCounterMode

import edgefl
from edgefl import models
from edgefl.errors import MethodError
from edgefl.models import ModelOptions
from edgefl.models.towers.conv1d import Conv1d, ConvolutionBlock

SMALL = {"tower": "conv1d", "blocks": 2, "width": 8, "kernel": 3, "patch": 8}


def by_hand(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """Each token's sum over its neighbours, which are zero outside of the window: ``[tokens, dim]``."""
    reach = weight.shape[2] // 2
    padded = np.pad(x, ((reach, reach), (0, 0)))
    return np.stack(
        [sum(weight[:, :, k] @ padded[t + k] for k in range(weight.shape[2])) + bias for t in range(len(x))]
    )


def test_a_block_is_two_convolutions_of_its_normalised_tokens() -> None:
    torch.manual_seed(0)
    block = ConvolutionBlock(4, 3)
    x = torch.randn(1, 5, 4)
    own = {name: tensor.detach().double().numpy() for name, tensor in block.named_parameters()}
    tokens = x[0].double().numpy()
    normed = (tokens - tokens.mean(1, keepdims=True)) / np.sqrt(tokens.var(1, keepdims=True) + 1e-6)
    hidden = torch.nn.functional.gelu(torch.from_numpy(by_hand(normed, own["conv1.weight"], own["conv1.bias"]))).numpy()
    expected = tokens + by_hand(hidden, own["conv2.weight"], own["conv2.bias"])
    assert np.allclose(block(x)[0].detach().numpy(), expected, atol=1e-5)


def described(depth: int, **fields: Any) -> Any:
    model = models.describe(ModelOptions(motion={"tower": "conv1d", **fields}), ["motion"], "classify", PUBLISHED_FACTS)
    return models.at_depth(model, {"motion": depth})


def test_the_defaults_have_the_parameters_that_the_class_says() -> None:
    blocks = skeleton(described(4)).get_submodule("motion.blocks")
    (count,) = {sum(p.numel() for p in block.parameters()) for block in blocks.children()}
    assert count == 2 * 5 * 64**2 + 4 * 64 and f"{count:,}" in (Conv1d.__doc__ or "")


def test_flops_are_torchs_count(uci: Path) -> None:
    for blocks in (1, 2):
        row = edgefl.profile(scenario(uci, model={"motion": {**SMALL, "blocks": blocks}})).rows[0]
        module: Any = models.build(described(blocks, **{**SMALL, "blocks": blocks}))
        with FlopCounterMode(display=False) as counter:
            module.logits("motion", torch.zeros(4, 128, 9)).sum().backward()
        steps = 3  # 12 windows by 4
        assert row.flops == steps * counter.get_total_flops()


def test_a_cut_tower_is_its_first_blocks_and_reads_any_length() -> None:
    module: Any = models.build(described(4)).get_submodule("motion")
    short: Any = models.build(described(2)).get_submodule("motion")
    short.load_state_dict({name: tensor for name, tensor in module.state_dict().items() if name in short.state_dict()})
    windows = torch.randn(2, 128, 9)
    assert torch.equal(short.run(windows), module.run(windows, until=2))
    assert module.pool_tokens(module(torch.randn(2, 300, 9))).shape == (2, 64)
    with pytest.raises(MethodError, match="a patch of 200 doesn't fit a window of 128 readings"):
        skeleton(described(1, patch=200))
    with pytest.raises(ValidationError, match="Input should be 1, 3, 5, 7, 9 or 11"):
        described(1, kernel=4)


@pytest.fixture(scope="module")
def uci(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("uci")
    uci_har(folder)
    return folder


def scenario(folder: Path, **more: Any) -> dict[str, Any]:
    return {
        "name": "motion",
        "data": {"source": "uci-har", "folders": {"uci-har": str(folder)}, "validation": 0},
        "model": {"motion": SMALL},
        "schedule": {"name": "end-to-end", "rounds": 2},
        "training": {"batch": 4, "lr": 3e-3, "epochs": 1},
        "round": {"cohort": 1.0},
        "evaluation": {"split": "test"},
        "executor": {"name": "inline", "device": "cpu"},
        **more,
    }


@pytest.mark.parametrize("name", ["end-to-end", "layerwise", "progressive", "elastic"])
def test_it_trains_under_every_schedule_and_its_peak_is_the_allocators(uci: Path, name: str) -> None:
    more = {} if name in ("end-to-end", "elastic") else {"stages": 2}
    run = edgefl.run(scenario(uci, schedule={"name": name, "rounds": 2, **more}))
    measured = run.clients.dropna(subset="measured_peak_memory_bytes")
    assert len(measured) and set(run.clients["kind"]) == {"motion"}
    assert (abs(measured["measured_peak_memory_bytes"] - measured["peak_memory_bytes"]) <= 4096).all()
    assert run.clients["loss"].notna().all() and "accuracy" in run.result["metrics"]["motion"]
