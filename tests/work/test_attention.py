"""Which kernel computes attention, and what that changes: memory, not results."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from edgefl_toys import CPU, Toy, described, do, inputs_of, make_work, training_pass
from tensors import assert_equal_tensors
from torch.nn import functional as F

from edgefl import models
from edgefl.cost import cost_key, predict, timeline
from edgefl.errors import MethodError
from edgefl.work import Work, execute
from edgefl.work.attention import attention

BATCH, TOKENS, HEADS, WIDTH = 8, 17, 2, 16


def work(attention: str, **more: object) -> Work:
    model = described(blocks=1, width=WIDTH)
    return make_work(passes=(training_pass(),), model=model, attention=attention, **more)  # type: ignore[arg-type]


def operators(work: Work, device: str) -> set[str]:
    return {moment.operator for moment in timeline(work, Toy(), device).moments}


def test_the_kernel_that_is_asked_for_answers() -> None:
    assert "aten._scaled_dot_product_flash_attention_for_cpu" in operators(work("device"), "cpu")
    assert "aten._scaled_dot_product_flash_attention_for_cpu" in operators(work("flash"), "cpu")
    found = operators(work("math"), "cpu")
    assert "aten._safe_softmax" in found and not any("scaled_dot" in name for name in found)


@pytest.mark.parametrize(
    ("attention", "precision", "kernel"),
    [
        ("device", "float32", "efficient"),
        ("device", "bfloat16", "flash"),
        ("efficient", "bfloat16", "efficient"),
        ("flash", "bfloat16", "flash"),
        ("cudnn", "bfloat16", "cudnn"),
    ],
)
def test_a_gpu_is_predicted_without_one(attention: str, precision: str, kernel: str) -> None:
    found = operators(work(attention, precision=precision), "cuda")
    assert f"aten._scaled_dot_product_{kernel}_attention" in found
    assert f"aten._scaled_dot_product_{kernel}_attention_backward" in found


def test_what_a_gpu_recomputes_it_recomputes_by_the_same_kernels() -> None:
    recomputed = make_work(passes=(training_pass(),), model=described(blocks=1, width=WIDTH, checkpointing=True))
    found = operators(recomputed, "cuda")
    assert "aten._scaled_dot_product_efficient_attention" in found
    assert not any("for_cpu" in name for name in found)
    plain, less = (predict(each, Toy(), "cuda").steps[0, "image"] for each in (work("device"), recomputed))
    assert less.backward_flops > plain.backward_flops and less.forward_flops == plain.forward_flops


def test_matrix_products_keep_what_the_other_kernels_recompute() -> None:
    math, fused = (predict(work(a), Toy()).memory_bytes["activations"] for a in ("math", "device"))
    scores = 4 * BATCH * HEADS * TOKENS**2
    # at the least the softmax is kept for the backward pass, where a fused kernel keeps one number a row
    assert math - fused >= scores - 4 * BATCH * HEADS * TOKENS


def test_results_do_not_depend_on_the_kernel() -> None:
    math, flash = (do(work(a)).payloads["model"] for a in ("math", "flash"))
    assert_equal_tensors(flash, math, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("kernel", ["flash", "cudnn"])
def test_a_gpu_that_is_not_there_refuses_what_one_that_is_would(kernel: str) -> None:
    with pytest.raises(MethodError, match="half precision only: set training.precision to bfloat16"):
        predict(work(kernel), Toy(), "cuda")


def test_flops_do_not_depend_on_the_kernel_going_forward() -> None:
    steps = {
        a: predict(work(a, precision="bfloat16"), Toy(), "cuda").steps[0, "image"]
        for a in ("math", "efficient", "flash")
    }
    assert len({step.forward_flops for step in steps.values()}) == 1
    backward = {a: steps[a].backward_flops for a in ("math", "flash")}
    # 4 products against 5: the scores are made once more
    product = 2 * BATCH * HEADS * TOKENS**2 * (WIDTH // HEADS)
    assert backward["flash"] - backward["math"] == product


def test_a_cpu_refuses_a_kernel_that_it_lacks() -> None:
    with pytest.raises(MethodError, match=r"'efficient', which needs a CUDA device; a CPU has math and flash"):
        do(work("efficient"))


def test_dropout_on_a_gpu_keeps_a_byte_an_element() -> None:
    description = described(("image", "text"), blocks=1)
    towers = {m: {**t, "rep": {"hidden": [64], "batch_norm": False, "dropout": 0.5, "dimension": 8}}
              for m, t in description["towers"].items()}  # fmt: skip
    pair = make_work(("image", "text"), model={**description, "towers": towers, "joint": {}})
    assert "aten.native_dropout" in operators(pair, "cuda")
    assert "aten.bernoulli_" in operators(pair, "cpu")


def test_the_key_knows_the_kernel() -> None:
    assert cost_key(work("math"), Toy()) != cost_key(work("device"), Toy())


def step_by_step(batch: int, every: int) -> dict[str, torch.Tensor]:
    """Weights after an epoch of plain descent, unshuffled: ``batch`` samples a step, ``every`` steps an update."""
    settings = {"name": "sgd", "lr": 0.1, "implementation": "for-loop", "accumulation": every}
    once = replace(make_work(passes=(training_pass(batch=batch),)), optimizer=settings)
    samples = next(Toy(24).batches(training_pass(batch=24), 3))[1]

    class Same(Toy):
        def batches(self, pass_, seed):  # type: ignore[no-untyped-def]
            for start in range(0, 24, pass_.batch):
                yield "image", {name: value[start : start + pass_.batch] for name, value in samples.items()}

    torch.manual_seed(0)
    module = models.build(once.model)
    execute(once, inputs_of(once), Same(24), module=module, device=CPU, seed=0)
    return {name: value.detach().clone() for name, value in module.named_parameters()}


@pytest.mark.parametrize(("batch", "every"), [(8, 3), (4, 6), (12, 2)])
def test_small_batches_together_are_one_large_one(batch: int, every: int) -> None:
    whole = step_by_step(24, 1)
    assert_equal_tensors(step_by_step(batch, every), whole, atol=1e-5, rtol=1e-4)


def test_batches_that_are_left_over_count_too() -> None:
    # 3 batches, two an update: the third is half an update
    assert not torch.equal(step_by_step(8, 2)["image.head.weight"], step_by_step(8, 3)["image.head.weight"])


def test_half_precision_learns_with_a_scaled_loss() -> None:
    half = do(make_work(passes=(training_pass(),) * 4, precision="float16"))
    full = do(make_work(passes=(training_pass(),) * 4))
    assert half.loss is not None and full.loss is not None
    assert half.loss == pytest.approx(full.loss, rel=0.02)


def test_a_gpus_autocast_takes_its_norms_in_float32_however_they_are_called() -> None:
    x = torch.ones(2, 4, dtype=torch.bfloat16)
    with attention("device", CPU, "cuda"), torch.autocast("cpu", torch.bfloat16):
        assert F.softmax(x, -1).dtype == F.softmax(input=x, dim=-1).dtype == torch.float32
