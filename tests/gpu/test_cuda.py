"""On a CUDA device: the same scenarios train without a change, in the memory that was predicted."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from edgefl_toys import Toy, make_work
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import edgefl
from edgefl.cost.predict import predict
from edgefl.work import CUDA_ROUNDING
from edgefl.work.attention import BACKENDS, AttentionCall, kernel_of
from edgefl.work.torch_device import device_of

pytestmark = pytest.mark.gpu
TINY = ["data.samples=200", "executor=inline", "evaluation.every=100", "compare=null"]
TOLERANCE = 0.03
"""Of ``torch.cuda.max_memory_allocated``: kernels' own workspaces are not live tensors."""


@pytest.mark.parametrize("schedule", ["{name: end-to-end, rounds: 2}", "{name: layerwise, stages: 2, rounds: 2}"])
def test_predicted_memory_is_what_the_allocator_had_at_most(tmp_path: Path, schedule: str) -> None:
    overrides = [*TINY, f"schedule={schedule}", "executor.device=cuda"]
    run = edgefl.run("quickstart", out=tmp_path / "run", overrides=overrides)
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
    "step in backward": ["training.step_in_backward=true"],
    "states in the host's memory": ["training.offload_states=true"],
    "8-bit states": ["training.optimizer=adamw-8bit"],
    "projected steps": ["training.optimizer=adamp"],
    "library towers": [
        "model={image: {tower: timm-vit, variant: tiny, blocks: 2, patch: 8}, "
        "text: {tower: distilbert, width: 192, heads: 3, blocks: 2, tokens: 16}}",
        "method={name: fedcola, complementary: none}",
    ],
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_settings_of_training_are_predicted(tmp_path: Path, setting: str) -> None:
    overrides = [*TINY, "schedule={name: end-to-end, rounds: 1}", "executor.device=cuda", *SETTINGS[setting]]
    run = edgefl.run("quickstart", out=tmp_path / "run", overrides=overrides)
    assert run.clients.memory_error.abs().max() < TOLERANCE


def test_a_loss_in_chunks_is_predicted(tmp_path: Path) -> None:
    """A vocabulary that trains, whose gradient is added up in one buffer, beside adapters."""
    overrides = [*TINY, "training.loss_chunk=32", "schedule.rounds=1", "executor.device=cuda"]
    run = edgefl.run("finetune/names-lora", out=tmp_path / "run", overrides=overrides)
    assert run.clients.memory_error.abs().max() < TOLERANCE


def test_a_prediction_makes_no_tensor_on_the_gpu() -> None:
    """So it is the same where there is none."""
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    assert predict(make_work(("image", "text")), Toy(), "cuda").peak_memory_bytes > 0
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


CUDNN_APART = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""The kernels among which a prediction chooses; a GPU of compute capability 9 or 10 may prefer cuDNN's."""


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("heads", [(8, 8), (8, 2), (8, 1), (8, 3)])
@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("how", ["plain", "causal", "masked", "fewer keys, causal"])
@pytest.mark.parametrize("width", [6, 12, 64, 320])
def test_torch_chooses_the_kernel_that_a_prediction_takes(
    dtype: torch.dtype, heads: tuple[int, int], grouped: bool, how: str, width: int
) -> None:
    keys = 16 if "fewer" in how else 32
    q, k, v = (
        torch.zeros(2, h, n, width, dtype=dtype, device="cuda")
        for h, n in ((heads[0], 32), (heads[1], keys), (heads[1], keys))
    )
    mask = torch.ones(32, keys, dtype=torch.bool, device="cuda") if how == "masked" else None
    asked = AttentionCall(q, k, v, mask, "causal" in how, grouped)
    with sdpa_kernel(CUDNN_APART):
        number = torch._fused_sdp_choice(q, k, v, mask, 0.0, asked.causal, enable_gqa=grouped)
    assert SDPBackend(number) == BACKENDS[kernel_of("device", asked)]


@pytest.mark.parametrize("kernel", ["flash", "cudnn"])
@pytest.mark.parametrize("keys", [2, 8])
def test_grouped_queries_keep_their_own_heads_of_keys(kernel: str, keys: int) -> None:
    """After the forward pass: the output, a float32 number a query, and some generator's states; no keys again."""
    samples, heads, tokens, width = 2, 8, 1024, 64
    q, k, v = (
        torch.zeros(samples, h, tokens, width, dtype=torch.bfloat16, device="cuda", requires_grad=True)
        for h in (heads, keys, keys)
    )
    with sdpa_kernel(BACKENDS[kernel]):
        before = torch.cuda.memory_allocated()
        out = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        after = torch.cuda.memory_allocated()
        gradient = torch.ones_like(out)
        torch.cuda.reset_peak_memory_stats()
        live = torch.cuda.memory_allocated()
        out.backward(gradient)
    kept = 2 * samples * heads * tokens * width + 4 * samples * heads * tokens
    assert kept <= after - before <= kept + 4 * CUDA_ROUNDING
    # what a prediction without a GPU assumes at most: twice the arguments, which are q, k, v, the output, its gradient
    queries, groups = out.nbytes, k.nbytes + v.nbytes
    most = torch.cuda.max_memory_allocated() - live - (queries + groups)
    assert most <= 2 * (3 * queries + groups + 4 * samples * heads * tokens)


def test_auto_takes_the_gpu() -> None:
    assert device_of("auto").type == "cuda"


def test_training_on_the_gpu_learns_what_the_cpu_learns(tmp_path: Path) -> None:
    # one round: of two, an H100's losses differed from a CPU's by 0.2, since AdamW makes much of rounding
    overrides = [*TINY, "schedule={name: end-to-end, rounds: 1}"]
    losses = {}
    for device in ("cpu", "cuda"):
        run = edgefl.run("quickstart", out=tmp_path / device, overrides=[*overrides, f"executor.device={device}"])
        losses[device] = run.clients.set_index(["round", "client"]).loss
    assert (losses["cpu"] - losses["cuda"]).abs().max() < 0.02


@pytest.mark.slow(smaller="test_training_on_the_gpu_learns_what_the_cpu_learns")
def test_the_whole_quickstart_on_the_gpu(tmp_path: Path) -> None:
    run = edgefl.run("quickstart", out=tmp_path / "run", overrides=["executor.device=cuda"])
    assert run.is_finished
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
        run = edgefl.run("quickstart", out=tmp_path / name, overrides=[*overrides, options])
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
