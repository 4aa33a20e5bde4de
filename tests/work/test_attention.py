"""Which kernel computes attention, and what that changes: memory, not results."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from edgefl_toys import CPU, Toy, described, do, inputs_of, make_work, training_pass
from tensors import assert_equal_tensors
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from edgefl import models
from edgefl.cost.predict import cost_key, predict, timeline
from edgefl.errors import MethodError
from edgefl.scenario import load
from edgefl.setup.compose import compose
from edgefl.work import LiveMoment, Meter, Work, execute
from edgefl.work.attention import AttentionCall, attention, kernel_of

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


class Seen(TorchDispatchMode):
    """The operators that run, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("needs_weights", [False, True])
def test_torchs_multi_head_attention_takes_a_gpus_kernels(needs_weights: bool) -> None:
    """torch calls attention inside a function of its own, where a CPU would keep scores and noise of them."""
    with FakeTensorMode(), attention("device", CPU, "cuda"), Seen() as seen:
        layer = nn.MultiheadAttention(32, 4, dropout=0.1)
        x = torch.empty(9, 2, 32)
        layer(x, x, x, need_weights=needs_weights)[0].sum().backward()
    expected = (
        "aten.native_dropout.default" if needs_weights else "aten._scaled_dot_product_efficient_attention.default"
    )
    assert expected in seen.names
    assert not any("for_cpu" in name or "bernoulli" in name for name in seen.names)
    assert F.scaled_dot_product_attention is torch._C._nn.scaled_dot_product_attention  # put back


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_products_with_dropout_keep_nine_bytes_a_score_on_a_gpu(masked: bool, half: bool) -> None:
    """The softmax, a byte of what is dropped, and what is left of the softmax; a CPU keeps noise of 4 bytes.

    torch computes products of halves in float32.
    """
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.numel() == 2 * HEADS * TOKENS**2:
            kept[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
        return tensor

    with FakeTensorMode(), attention("math", CPU, "cuda"), torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        x = torch.empty(2, HEADS, TOKENS, 8, requires_grad=True)
        mask = torch.empty(2, 1, TOKENS, TOKENS, dtype=torch.bool) if masked else None
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
            out = F.scaled_dot_product_attention(x, x, x, mask, dropout_p=0.1, is_causal=not masked)
        out.sum().backward()
    assert sum(kept.values()) == 9 * 2 * HEADS * TOKENS**2
    assert out.dtype == (torch.bfloat16 if half else torch.float32)


def test_autocast_on_a_gpu_computes_in_float32_what_torch_lists() -> None:
    """By torch's documentation of autocast; a CPU's autocast computes them in half precision."""
    with FakeTensorMode(), attention("device", CPU, "cuda"):
        x = torch.empty(2, 8, dtype=torch.bfloat16)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            listed = (
                x.softmax(-1),
                F.softmax(x, -1),
                x.log_softmax(-1),
                x**2,
                x.pow(2),
                x.exp(),
                x.rsqrt(),
                F.softplus(x),
            )
            others = x @ x.mT, F.gelu(x), x.relu(), x * 2, x.mean(-1)
        assert {y.dtype for y in listed} == {torch.float32}
        assert {y.dtype for y in others} == {torch.bfloat16} == {x.softmax(-1).dtype}


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


# grouped queries and masks on a GPU -----------------------------------------------------------------------------------

SINCE_2_14 = torch.torch_version.TorchVersion(torch.__version__) >= "2.14"
B, N, D = 2, 4096, 128
QUERIES, KEYS = 24, 8
"""A layer of Llama 3.2 3B on two texts of 4,096 tokens."""


def asked(
    dtype: torch.dtype = torch.bfloat16,
    heads: tuple[int, int] = (QUERIES, KEYS),
    tokens: tuple[int, int] = (64, 64),
    width: int = 16,
    masked: bool = False,
    causal: bool = False,
    grouped: bool = True,
) -> AttentionCall:
    q, k, v = (
        torch.empty(1, h, n, width, dtype=dtype) for h, n in zip((*heads, heads[1]), (*tokens, tokens[1]), strict=True)
    )
    return AttentionCall(q, k, v, torch.ones(tokens, dtype=torch.bool) if masked else None, causal, grouped)


@pytest.mark.parametrize(
    ("call", "kernel"),
    [
        (asked(), "flash"),
        (asked(torch.float16, causal=True), "flash"),
        (asked(heads=(8, 1)), "flash"),
        # the memory-efficient kernel takes groups of queries from torch 2.14 on
        (asked(torch.float32), "efficient" if SINCE_2_14 else "math"),
        (asked(masked=True), "efficient" if SINCE_2_14 else "math"),
        (asked(torch.float32, masked=True), "efficient" if SINCE_2_14 else "math"),
        (asked(heads=(8, 1), grouped=False), "flash" if SINCE_2_14 else "math"),
        (asked(heads=(8, 2), grouped=False), "math"),
        (asked(heads=(8, 3)), "math"),
        # equal heads
        (asked(torch.float32, (8, 8)), "efficient"),
        (asked(heads=(8, 8), masked=True), "efficient"),
        (asked(heads=(8, 8), tokens=(32, 64), causal=True), "efficient"),
        (asked(heads=(8, 8), width=320), "efficient"),
        (asked(torch.float32, (8, 8), width=6), "math"),
        (asked(heads=(8, 8), width=12), "flash"),
        (asked(heads=(8, 8), width=12, masked=True), "math"),
        (asked(torch.float64, (8, 8)), "math"),
    ],
)  # fmt: skip
def test_a_gpu_takes_the_first_kernel_that_torchs_conditions_admit(call: AttentionCall, kernel: str) -> None:
    assert kernel_of("device", call) == kernel


@pytest.mark.parametrize(
    ("choice", "call", "message"),
    [
        ("flash", asked(masked=True), "supports no mask"),
        ("flash", asked(heads=(8, 3)), r"doesn't take queries \(1, 8, 64, 16\) over keys \(1, 3, 64, 16\)"),
        ("flash", asked(width=320), "heads of one width of 256 at most; here 320"),
        ("flash", asked(tokens=(32, 64), causal=True), "as many keys as queries; here 32 and 64"),
        ("cudnn", asked(width=12), "widths in steps of 8, 128 at most; here 12"),
        ("cudnn", asked(tokens=(8, 1)), "2 keys or more"),
        ("efficient", asked(torch.float32, (8, 8), width=6), "widths in steps of 4; here 6"),
        ("efficient", asked(heads=(8, 3)), "doesn't take queries"),
    ],
)
def test_a_kernel_by_name_is_refused_where_torch_has_no_available_kernel(
    choice: str, call: AttentionCall, message: str
) -> None:
    with pytest.raises(MethodError, match=f"training.attention is '{choice}', which .*{message}"):
        kernel_of(choice, call)


def kept(
    dtype: torch.dtype, keys: int, mask: tuple[int, ...] | None = None, tokens: int = N, grouped: bool = True
) -> tuple[dict[str, int], list[LiveMoment]]:
    """Live bytes of a GPU's attention by moment: inputs alone, after the forward pass, at the backward pass's end."""
    moments: list[LiveMoment] = []
    meter, live = Meter(moments=moments), {}
    with FakeTensorMode(), attention("device", CPU, "cuda"):
        q, k, v = (torch.empty(B, h, tokens, D, dtype=dtype, requires_grad=True) for h in (QUERIES, keys, keys))
        added = None if mask is None else torch.empty(mask, dtype=torch.bool)
        meter.adopt([q, k, v], "inputs")
        live["inputs"] = meter._current
        with meter.step(0, "x"):
            out = F.scaled_dot_product_attention(q, k, v, added, is_causal=added is None, enable_gqa=grouped)
            live["forward"] = meter._current
            meter.enter("backward")
            out.backward(torch.empty(()).expand(out.shape).to(dtype))
            live["backward"] = meter._current
    assert q.grad is not None and k.grad is not None and (q.grad.shape, k.grad.shape) == (q.shape, k.shape)
    return live, moments


@pytest.mark.parametrize("keys", [1, KEYS, QUERIES])
def test_flash_keeps_the_output_and_a_number_a_query_however_few_heads_the_keys_have(keys: int) -> None:
    """What it saves: q ``[B, H, N, D]``, k and v ``[B, K, N, D]``, out as q, a float32 logsumexp ``[B, H, N]``."""
    live, moments = kept(torch.bfloat16, keys)
    q, k = 2 * B * QUERIES * N * D, 2 * B * keys * N * D
    generator = 2 * 8 + 8  # seed and offset of dropout, and a number that torch doesn't use
    assert live["inputs"] == q + 2 * k
    assert live["forward"] - live["inputs"] == q + 4 * B * QUERIES * N + generator
    # gradients of q, k and v; the output's own gradient lives until the kernel returns
    gradients = q + 2 * k
    assert max(m.bytes for m in moments) == live["forward"] + q + gradients


def test_grouped_queries_in_float32_have_whole_matrices_of_scores_until_torch_2_14() -> None:
    live, moments = kept(torch.float32, KEYS)
    scores = 4 * B * QUERIES * N * N
    grown = live["forward"] - live["inputs"]
    if SINCE_2_14:
        assert grown == 4 * B * QUERIES * N * (D + 1) + 2 * 8  # output, logsumexp, the generator's state
    else:
        repeated = 2 * 4 * B * QUERIES * N * D  # keys and values, as many heads as queries
        assert scores + repeated <= grown < 2 * scores
    kernels = {m.operator for m in moments if "softmax" in m.operator or "efficient" in m.operator}
    assert any("efficient" in name for name in kernels) == SINCE_2_14


@pytest.mark.parametrize("tokens", [61, 64])
@pytest.mark.parametrize("of_each_sample", [False, True])
def test_the_efficient_kernel_keeps_a_mask_of_numbers_with_rows_in_steps_of_eight(
    tokens: int, of_each_sample: bool
) -> None:
    """A mask of booleans becomes one of the queries' dtype, and isn't repeated for heads (or samples)."""
    shape = (B if of_each_sample else 1, 1, tokens, tokens)
    live, _ = kept(torch.bfloat16, QUERIES, shape, tokens)
    out, logsumexp = 2 * B * QUERIES * tokens * D, 4 * B * QUERIES * 64  # of queries in steps of 32
    mask = 2 * shape[0] * tokens * 64
    # fake tensors have the generator's state, two numbers of 8 bytes, on no device
    assert live["forward"] - live["inputs"] == pytest.approx(out + logsumexp + mask + 2 * 8, abs=16)


def llama(keys: int) -> dict[str, object]:
    config = {
        "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8,
        "num_key_value_heads": keys, "intermediate_size": 96, "max_position_embeddings": 64,
    }  # fmt: skip
    return {"tower": "hf-causal", "config": config, "tokens": 32}


@pytest.mark.parametrize(
    ("precision", "keys"),
    [
        ("bfloat16", 1), ("float16", 2), ("bfloat16", 8),
        *(pytest.param(*rare, marks=pytest.mark.slow) for rare in (("float16", 1), ("bfloat16", 2), ("float16", 8))),
    ],
)  # fmt: skip
def test_a_llama_of_transformers_reaches_flash_with_its_own_heads(keys: int, precision: str) -> None:
    scenario = load(
        {
            "edgefl": 1, "name": "llama", "data": {
                "source": "declared", "clients": {"text": 1}, "samples": 4, "tasks": {"text": "next-token"},
                "shapes": {"text": {"vocabulary": 64, "classes": 2}}, "validation": 0, "test": 2,
            },
            "model": {"text": llama(keys)}, "method": "fedavg", "schedule": {"name": "end-to-end", "rounds": 1},
            "training": {"batch": 2, "optimizer": "sgd", "precision": precision},
            "executor": {"device": "cuda"},
        }
    )  # fmt: skip
    setup = compose(scenario)
    source = setup.clients.client(0)
    work = setup.restrict_to_stage(setup.method.work("text", 1), setup.schedule.offered[0]).limit_batches(source.size)
    found = [
        call.call for call in predict(work, source, "cuda").calls if "flash_attention.default" in call.call.operator
    ]
    assert found
    for call in found:
        _, (q, k, v, *_), _ = json.loads(call.arguments)
        assert [t["t"][2] for t in (q, k, v)] == [[2, 8, 32, 8], [2, keys, 32, 8], [2, keys, 32, 8]]
