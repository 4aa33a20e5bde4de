"""On a CUDA device: the same scenarios train without a change, in the memory that was predicted."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from edgefl_toys import Toy, make_work

import edgefl
from edgefl.cost import predict
from edgefl.work.torch_device import device_of

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


SETTINGS = {
    "attention by products": ["training.attention=math"],
    "efficient attention": ["training.attention=efficient"],
    "flash attention in bfloat16": ["training.attention=flash", "training.precision=bfloat16"],
    "float16": ["training.precision=float16", "training.clip=1"],
    "accumulation": ["training.accumulation=2"],
    "checkpointing": ["training.checkpointing=true"],
    "library towers": [
        "model={image: {tower: timm-vit, variant: tiny, blocks: 2, patch: 8}, "
        "text: {tower: distilbert, width: 192, heads: 3, blocks: 2, tokens: 16}}",
        "method={name: fedcola, complementary: none}",
    ],
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_settings_of_training_are_predicted(tmp_path: Path, setting: str) -> None:
    overrides = [*TINY, "schedule={name: end-to-end, rounds: 1}", "executor.device=cuda", *SETTINGS[setting]]
    run = edgefl.run("quickstart", output=tmp_path / "run", overrides=overrides)
    assert run.clients.memory_error.abs().max() < TOLERANCE


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_gpu_is_predicted_alike_where_there_is_none(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    work = make_work(("image", "text"), precision=precision)
    here = predict(work, Toy(), "cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    elsewhere = predict(work, Toy(), "cuda")
    assert elsewhere.peak_memory_bytes == pytest.approx(here.peak_memory_bytes, rel=TOLERANCE)


def test_auto_takes_the_gpu() -> None:
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


DEVICES = ["[cuda:0]", pytest.param("[cuda:0, cuda:1]", marks=pytest.mark.skipif(
    torch.cuda.device_count() < 2, reason="two GPUs"))]  # fmt: skip


@pytest.mark.filterwarnings("error:.*run again")
@pytest.mark.parametrize("device", DEVICES)
def test_packed_workers_run_out_of_nothing_and_learn_what_one_process_learns(tmp_path: Path, device: str) -> None:
    overrides = [*TINY, "schedule={name: end-to-end, rounds: 2}"]
    weights = {}
    for name, executor in {"alone": "inline", "packed": "processes, workers: 4"}.items():
        place = device if name == "packed" else "cuda"
        options = f"executor={{name: {executor}, device: {place}}}"
        run = edgefl.run("quickstart", output=tmp_path / name, overrides=[*overrides, options])
        weights[name] = run.weights()
    assert all(torch.equal(tensor, weights["packed"][name]) for name, tensor in weights["alone"].items())


def test_a_worker_keeps_to_its_fraction() -> None:
    """What is beyond the fraction raises, so that workers beside it keep theirs."""
    device, total = torch.device("cuda:0"), torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(0.05, device)
    try:
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(int(0.06 * total), dtype=torch.uint8, device=device)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)
