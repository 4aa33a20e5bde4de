"""On a CUDA device: the same scenarios train without a change, in the memory that was predicted."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import edgefl

pytestmark = pytest.mark.gpu
TINY = ["data.samples=200", "executor=inline", "evaluation.every=100", "compare=null"]
TOLERANCE = 0.03
"""Of ``torch.cuda.max_memory_allocated``: kernels' own workspaces are not live tensors."""


@pytest.mark.parametrize("schedule", ["{name: end-to-end, rounds: 2}", "{name: layerwise, stages: 2, rounds: 2}"])
def test_predicted_memory_is_what_the_allocator_had_at_most(tmp_path: Path, schedule: str) -> None:
    overrides = [*TINY, f"schedule={schedule}", "executor.device=cuda"]
    run = edgefl.run("quickstart", output=tmp_path / "run", overrides=overrides)
    assert run.environment["gpu"] == torch.cuda.get_device_name(0)
    metered = run.clients[run.clients.measured_peak_memory_bytes.notna()]
    assert set(metered.kind) == {"image", "text", "image-text"}
    assert metered.memory_error.abs().max() < TOLERANCE


def test_auto_takes_the_gpu(tmp_path: Path) -> None:
    from edgefl.training import device_of

    assert device_of("auto").type == "cuda"


def test_training_on_the_gpu_learns_what_the_cpu_learns(tmp_path: Path) -> None:
    overrides = [*TINY, "schedule={name: end-to-end, rounds: 2}"]
    losses = {}
    for device in ("cpu", "cuda"):
        run = edgefl.run("quickstart", output=tmp_path / device, overrides=[*overrides, f"executor.device={device}"])
        losses[device] = run.clients.set_index(["round", "client"]).loss
    assert (losses["cpu"] - losses["cuda"]).abs().max() < 0.05


@pytest.mark.slow
def test_the_whole_quickstart_on_the_gpu(tmp_path: Path) -> None:
    run = edgefl.run("quickstart", output=tmp_path / "run", overrides=["executor.device=cuda"])
    assert run.finished
    assert run.clients.memory_error.abs().max() < TOLERANCE
