"""What is predicted on fake tensors is what is measured on real ones, to the byte; FLOPs have closed forms."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import replace
from functools import cache, partial
from typing import Any

import pytest
import torch
from edgefl_toys import CPU, FACTS, Toy, described, do, inputs_of, make_work, scoring_pass, training_pass
from tensors import assert_equal_tensors
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from edgefl import models
from edgefl.cost.predict import Predictor, predict
from edgefl.cost.scratch import ScratchTable
from edgefl.errors import UncountedOperator
from edgefl.machine.kernel_scratch import probe
from edgefl.models.tower import without_compiler
from edgefl.plain_data import from_data, to_data
from edgefl.schedules import Layerwise
from edgefl.work import (
    PARTS,
    AllocatorPeak,
    Call,
    Inside,
    Item,
    LiveCall,
    Meter,
    Pass,
    Payload,
    StepTrace,
    Work,
    execute,
)


def optimizer(name: str = "adamw", implementation: str = "fused", **more: float) -> dict[str, object]:
    return {"name": name, "lr": 1e-3, "implementation": implementation, **more}


def small(modalities: tuple[str, ...] = ("image",), passes: tuple[Pass, ...] | None = None, **more: Any) -> Work:
    """Models of one block: operators repeat from block to block."""
    return make_work(modalities, passes, **{"model": described(modalities, blocks=1), **more})


def received_table() -> Work:
    table = Payload("prototypes", (Item("prototypes", (5, 16), "float32", "table/prototypes"),))
    work = small(passes=(Pass("toy-prototypes", "private", ("image",), 8),) * 2)
    trainable = tuple(n for n in work.trainable if "head" not in n)
    return replace(work, down=(*work.down, table), trainable=trainable)


def second_stage(gate: str = "") -> Work:
    schedule = Layerwise(Layerwise.Options(stages=2, rounds=2), {"image": 2})
    return schedule.stages[1].restrict_work(make_work(gate=gate))


PAIR = ("image", "text")
MEZO = {"name": "mezo", "lr": 1e-3, "epsilon": 1e-3}
CASES: dict[str, tuple[Work, Toy]] = {
    "image": (small(), Toy()),
    "text": (small(("text",)), Toy()),
    "pair": (small(PAIR), Toy()),
    "pair with projections": (
        small(PAIR, model=models.describe(
            models.ModelOptions(image={"width": 16, "heads": 2, "patch": 4, "blocks": 1},
                                text={"width": 8, "heads": 2, "tokens": 6, "blocks": 2}, dimension=12),
            PAIR, "retrieve", FACTS)),
        Toy(),
    ),
    "gates, partners train": (small(gate="trainable"), Toy()),
    "gates, partners frozen": (small(gate="frozen"), Toy()),
    "zeroth order": (small(optimizer=MEZO), Toy()),
    "zeroth order, pool, bfloat16": (
        small(PAIR, optimizer={**MEZO, "directions": 9}, precision="bfloat16"), Toy(),
    ),
    "proximal": (small(("text",), (training_pass(("text",), proximal=0.1),) * 2, reference=True), Toy()),
    "proximal of tensors": (
        small(passes=(training_pass(proximal=0.1, proximal_norm="tensor"),), reference=True, gate="trainable"),
        Toy(),
    ),
    "clip": (small(optimizer=optimizer(clip=1.0)), Toy()),
    "clip, for-loop": (small(optimizer=optimizer(implementation="for-loop", clip=1.0)), Toy()),
    "clip, foreach": (small(optimizer=optimizer(implementation="foreach", clip=1.0)), Toy()),
    "for-loop": (small(optimizer=optimizer(implementation="for-loop")), Toy()),
    "foreach": (small(optimizer=optimizer(implementation="foreach")), Toy()),
    "adam with decay": (small(optimizer=optimizer("adam", weight_decay=0.1)), Toy()),
    "sgd": (small(optimizer=optimizer("sgd", "for-loop")), Toy()),
    "sgd with momentum": (small(optimizer=optimizer("sgd", "foreach", momentum=0.9)), Toy()),
    "sgd fused": (small(optimizer=optimizer("sgd", "fused", momentum=0.9, weight_decay=0.1)), Toy()),
    "bfloat16": (small(precision="bfloat16"), Toy()),
    "bfloat16 with gates": (small(gate="trainable", precision="bfloat16"), Toy()),
    "checkpointing": (small(model=described(blocks=1, checkpointing=True)), Toy()),
    "checkpointing of 2 blocks": (small(model=described(blocks=4, checkpointing=2)), Toy()),
    "step in backward": (small(optimizer=optimizer(step_in_backward=True)), Toy()),
    "step in backward, for-loop, checkpointing": (
        small(model=described(checkpointing=True), optimizer=optimizer("adam", "for-loop", step_in_backward=True)),
        Toy(),
    ),
    "step in backward, foreach, bfloat16, gates": (
        small(gate="trainable", precision="bfloat16",
              optimizer=optimizer("sgd", "foreach", momentum=0.9, step_in_backward=True)),
        Toy(),
    ),
    "8-bit states": (small(model=described(blocks=1, width=48), optimizer=optimizer("adamw-8bit")), Toy()),
    "8-bit states, autocast, step in backward": (
        small(model=described(width=48), precision="bfloat16",
              optimizer=optimizer("adamw-8bit", weight_decay=0.1, step_in_backward=True)),
        Toy(),
    ),
    "step in backward, pair": (small(PAIR, optimizer=optimizer("sgd", step_in_backward=True)), Toy()),
    "drop path": (small(model=described(blocks=2, drop_path=0.2)), Toy()),
    "a received table": (received_table(), Toy()),
    "two batches an update": (small(optimizer=optimizer(accumulation=2)), Toy()),
    "three batches an update, some left over": (small(optimizer=optimizer(accumulation=3)), Toy()),
    "more batches an update than there are": (small(optimizer=optimizer(accumulation=8)), Toy()),
    "accumulation in one place, foreach, clip": (
        small(passes=(training_pass(),), optimizer=optimizer(implementation="foreach", clip=1.0, accumulation=4)), Toy()
    ),
    "float16": (small(precision="float16"), Toy()),
    "float16, clip, accumulation": (small(precision="float16", optimizer=optimizer(clip=1.0, accumulation=2)), Toy()),
    "attention by matrix products": (small(PAIR, attention="math"), Toy()),
    "flash attention": (small(attention="flash", gate="frozen"), Toy()),
    "evaluation of a classifier": (small(passes=(scoring_pass(),)), Toy(41)),
    "evaluation of retrieval": (small(PAIR, (scoring_pass(PAIR),)), Toy(41)),
    "training, then evaluation": (small(passes=(training_pass(), scoring_pass(), training_pass())), Toy(41)),
    "one step": (small(passes=(training_pass(),)), Toy(8)),
    "one step an epoch": (small(), Toy(8)),
    "no full batch": (small(), Toy(7)),
    "second stage of layer-wise": (second_stage(), Toy()),
    "second stage with gates": (second_stage("trainable"), Toy()),
}  # fmt: skip


@cache
def predicted(case: str) -> StepTrace:
    return predict(*CASES[case])


def flops(trace: StepTrace) -> dict[tuple[int, str], tuple[int, int]]:
    return {key: (step.forward_flops, step.backward_flops) for key, step in trace.steps.items()}


# variants of what other cases hold already
RARE = {
    "accumulation in one place, foreach, clip", "adam with decay", "bfloat16 with gates", "flash attention",
    "more batches an update than there are", "two batches an update", "clip, foreach", "clip, for-loop",
    "no full batch", "one step an epoch", "pair with projections", "proximal of tensors",
    "second stage of layer-wise", "sgd", "sgd fused", "step in backward, pair",
    # alone what others have together
    "step in backward", "float16", "clip", "foreach", "bfloat16", "checkpointing", "gates, partners train",
}  # fmt: skip


@pytest.mark.parametrize("case", [pytest.param(c, marks=[pytest.mark.slow] if c in RARE else []) for c in CASES])
def test_prediction_equals_measurement(case: str) -> None:
    work, source = CASES[case]
    trace, measured = predicted(case), do(work, source, meter=Meter()).trace
    assert measured is not None
    assert trace.peak_memory_bytes == measured.peak_memory_bytes > 0
    assert trace.memory_bytes == measured.memory_bytes
    assert flops(trace) == flops(measured)
    assert {k: s.operators for k, s in trace.steps.items()} == {k: s.operators for k, s in measured.steps.items()}
    assert {k: s.macs for k, s in trace.steps.items()} == {k: s.macs for k, s in measured.steps.items()}
    assert set(measured.memory_bytes) == set(PARTS)
    assert sum(measured.memory_bytes.values()) == measured.peak_memory_bytes


def test_parts_of_known_size() -> None:
    plain = predicted("image").memory_bytes
    own = sum(4 * p.numel() for p in models.build(described(blocks=1)).parameters())
    assert plain["parameters"] == own
    assert predicted("proximal").memory_bytes["reference"] == predicted("text").memory_bytes["parameters"]
    gated = predicted("gates, partners frozen").memory_bytes
    linear = sum(16 * n for n in (48, 16, 64, 64))  # qkv, proj, fc1, fc2
    assert gated["parameters"] == own + 4 * (linear + 4)
    assert predicted("a received table").memory_bytes["received"] == 5 * 16 * 4


def test_one_step_holds_no_optimizer_state_in_its_backward_pass() -> None:
    once, often = predicted("one step"), predicted("image")
    assert once.peak_memory_bytes < often.peak_memory_bytes
    assert often.memory_bytes["optimizer"] >= 2 * often.memory_bytes["parameters"]


def test_checkpointing_trades_memory_for_flops() -> None:
    plain, less = predicted("image"), predicted("checkpointing")
    assert less.memory_bytes["activations"] < plain.memory_bytes["activations"]
    assert flops(less)[0, "image"][0] == flops(plain)[0, "image"][0]
    assert flops(less)[0, "image"][1] > flops(plain)[0, "image"][1]
    assert less.steps[0, "image"].macs == plain.steps[0, "image"].macs


def test_a_trace_comes_back_from_json() -> None:
    trace = predicted("training, then evaluation")
    again = from_data(StepTrace, to_data(trace))
    assert again == trace and again.calls == trace.calls != ()


@cache
def scratch_here() -> ScratchTable:
    """What the kernels of this processor take, each probed once."""
    return ScratchTable("here", partial(probe, device="cpu"))


@pytest.mark.parametrize("case", [pytest.param(c, marks=[pytest.mark.slow] if c in RARE else []) for c in CASES])
def test_the_peak_is_the_allocators(case: str) -> None:
    work, source = CASES[case]
    trace = Predictor(scratch=scratch_here()).trace(work, source)
    module, inputs = models.build(work.model), inputs_of(work)
    tables = [value for name, value in inputs.items() if name == "prototypes"]
    resident = [*module.parameters(), *module.buffers(), *tables]
    torch.manual_seed(1)
    with AllocatorPeak(CPU, resident) as seen:
        execute(work, inputs, source, module=module, device=CPU, seed=1)
    # dropouts' and metrics' scalars of a few bytes
    assert trace.peak_memory_bytes == pytest.approx(seen.bytes, abs=16)
    assert trace.peak_memory_bytes == sum(trace.memory_bytes.values()) >= trace.live_memory_bytes
    assert trace.live_memory_bytes == predicted(case).peak_memory_bytes
    assert not trace.assumed


def test_scratch_counts_at_its_moment() -> None:
    quiet = LiveCall(Call("aten.mm.default", "[[],[],{}]"), 700, 0, (700, *[0] * (len(PARTS) - 1)))
    loud = LiveCall(Call("aten.mul.Tensor", "[[],[],{}]"), 100, 50, (150, *[0] * (len(PARTS) - 1)))
    raw = StepTrace(1000, {"parameters": 1000}, {}, 1000, (quiet, loud), live_parts={"parameters": 1000})
    assert raw.with_scratch([Inside(300), Inside(900)]).peak_memory_bytes == 1000
    moved = raw.with_scratch([Inside(301, assumed=True), Inside(950)])
    assert (moved.peak_memory_bytes, moved.live_memory_bytes, moved.assumed) == (1050, 1000, False)
    assert (moved.memory_bytes["parameters"], moved.memory_bytes["scratch"]) == (150, 900)
    assert raw.with_scratch([Inside(301, assumed=True), Inside(0)]).assumed


def counted(batch: int, *, blocks: int = 2, width: int = 16) -> tuple[int, int]:
    model = described(blocks=blocks, width=width)
    work = make_work(passes=(training_pass(batch=batch),), model=model)
    step = predict(work, Toy(64)).steps[0, "image"]
    return step.forward_flops, step.backward_flops


@pytest.mark.parametrize(("batch", "blocks", "width"), [(1, 1, 8), (8, 2, 16), (3, 4, 48)])
def test_flops_have_the_closed_form_of_a_transformer(batch: int, blocks: int, width: int) -> None:
    """docs/concepts/methods.md: 12 n D^2 + 2 n^2 D MACs per block; FLOPs are twice that."""
    n, d, patch = 17, width, 4
    convolution = (n - 1) * patch * patch * d
    linear, attention, head = blocks * 12 * n * d * d, blocks * 2 * n * n * d, d * 5
    forward, backward = counted(batch, blocks=blocks, width=width)
    assert forward == 2 * batch * (convolution + linear + attention + head)
    # pictures need no gradient; a flash backward computes its scores again: five products for the two of the forward
    assert backward == 2 * batch * (convolution + 2 * linear + 5 * attention // 2 + 2 * head)


def metered(module: nn.Module, *x: torch.Tensor) -> int:
    meter = Meter()
    with meter.step(0, "image"):
        module(*x)
    return meter.trace().steps[0, "image"].forward_flops


def test_flops_of_single_layers() -> None:
    assert metered(nn.Linear(7, 11), torch.rand(3, 5, 7)) == 2 * 3 * 5 * 7 * 11
    assert metered(nn.Conv2d(3, 8, 3), torch.rand(2, 3, 10, 10)) == 2 * 2 * 8 * 8 * 8 * 3 * 9
    assert metered(nn.LayerNorm(7), torch.rand(3, 7)) == 0


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_flops_of_convolutions_know_their_groups(groups: int) -> None:
    x = torch.rand(2, 6, 9, 9, requires_grad=True)
    meter = Meter()
    for layer in (nn.Conv2d(6, 12, 3, groups=groups), nn.ConvTranspose2d(6, 12, 3, groups=groups)):
        with meter.step(0, "image"):
            y = layer(x)
            meter.enter("backward")
            y.sum().backward()
        places = 2 * (7 * 7 if isinstance(layer, nn.Conv2d) else 9 * 9)
        forward = 2 * places * 6 * 12 * 9 // groups
        step = meter.steps[0, "image"]
        assert (step.forward_flops, step.backward_flops) == (forward, 2 * forward)


class Attend(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(q, k, v)


@pytest.mark.parametrize("gradient", [False, True])
def test_attention_on_a_cpu_is_counted(gradient: bool) -> None:
    q = torch.rand(2, 3, 17, 8, requires_grad=gradient)
    assert metered(Attend(), q, q, q) == 2 * 2 * (2 * 3 * 17 * 17 * 8)


def test_an_unknown_operator_of_matmul_class_is_an_error() -> None:
    work = make_work(passes=(Pass("toy-operator", "validation", ("image",), 8, False),))
    with pytest.raises(UncountedOperator, match="my_bmm"):
        predict(work, Toy())
    with pytest.raises(UncountedOperator, match="my_bmm"):
        do(work, meter=Meter())
    assert do(work).loss is None


@pytest.mark.parametrize("shape", [(5,), (2, 3)])
def test_products_of_two_inputs_and_a_tensor_are_counted_as_torch_computes_them(shape: tuple[int, ...]) -> None:
    layer, first, second = nn.Bilinear(4, 7, 3), torch.rand(*shape, 4), torch.rand(*shape, 7)
    inputs = first.requires_grad_(), second.requires_grad_()
    meter = Meter()
    with meter.step(0, "image"):
        loss = layer(*inputs).sum()
        meter.enter("backward")
        loss.backward()
    with torch.profiler.profile(record_shapes=True) as profiler:
        layer(*inputs).sum().backward()
    shapes = [event.input_shapes[:2] for event in profiler.events() if event.name == "aten::bmm"]
    step = meter.steps[0, "image"]
    assert step.forward_flops == 2 * math.prod(shape) * 3 * 7 * (4 + 1)
    assert step.forward_flops + step.backward_flops == sum(2 * math.prod(a) * b[-1] for a, b in shapes) > 0


@pytest.mark.parametrize(
    "layer",
    [
        nn.LSTM(6, 4, batch_first=True, bidirectional=True),
        nn.LSTM(6, 4, num_layers=2),
        nn.TransformerEncoderLayer(6, 2, 12, batch_first=True, dropout=0.0),
        nn.TransformerEncoderLayer(6, 2, 12, batch_first=True, dropout=0.0, activation="gelu", norm_first=True),
        nn.MultiheadAttention(6, 2, batch_first=True),
        nn.LSTMCell(6, 4),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_a_layer_takes_as_many_flops_in_evaluation_by_whatever_kernel(layer: nn.Module) -> None:
    x = torch.rand(5, 6) if isinstance(layer, nn.LSTMCell) else torch.rand(3, 5, 6)
    inputs = (x, x, x) if isinstance(layer, nn.MultiheadAttention) else (x,)
    layer, found = without_compiler("layer", layer), []  # as in a tower
    for trains in (True, False):
        meter = Meter()
        layer.train(trains)
        with torch.set_grad_enabled(trains), meter.step(0, "image"):
            out = layer(*inputs)
            meter.enter("backward")
            if trains:
                (out if isinstance(out, torch.Tensor) else out[0]).sum().backward()
        found.append(meter.steps[0, "image"])
    assert found[0].forward_flops == found[1].forward_flops > 0
    assert found[0].backward_flops > 0


def test_products_with_vectors_are_counted() -> None:
    matrix, vector, column = torch.rand(3, 7), torch.rand(7), torch.rand(3)
    meter = Meter()
    with meter.step(0, "image"):
        torch.mv(matrix, vector), torch.addmv(column, matrix, vector), torch.addr(matrix, column, vector)
        torch.dot(vector, vector), torch.vdot(vector, vector)
        torch.addbmm(torch.rand(3, 3), torch.rand(2, 3, 4), torch.rand(2, 4, 3))
    assert meter.steps[0, "image"].forward_flops == 2 * (3 * 21 + 2 * 7 + 2 * 3 * 4 * 3)


def test_a_storage_counts_once_and_dies() -> None:
    meter = Meter()
    x = torch.zeros(100)
    meter.adopt([x, x.view(10, 10), x[3:]], "inputs")
    assert meter.peak == 400
    y = torch.zeros(50)
    meter.adopt([y], "outputs")
    del x
    meter.adopt([torch.zeros(20)], "outputs")
    assert meter.trace().peak_memory_bytes == 600
    assert meter.trace().memory_bytes["inputs"] == 400


def test_sizes_are_rounded_up_as_the_allocator_does() -> None:
    meter = Meter(512)
    meter.adopt([torch.zeros(1), torch.zeros(128), torch.zeros(129)], "inputs")
    assert meter.peak == 512 + 512 + 1024


def test_a_prediction_allocates_nothing_large_and_draws_nothing() -> None:
    """Two blocks of a ViT-S hold gigabytes of such a batch: the prediction of its peak does not."""
    import resource

    state = torch.get_rng_state()
    model = described(blocks=2, width=384)
    work = make_work(passes=(training_pass(batch=3072),) * 2, model=model)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    needed = predict(work, Toy(6144)).peak_memory_bytes
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert needed > 2**31 > 16 * grown
    assert_equal_tensors(torch.get_rng_state(), state)


@pytest.mark.parametrize("grad", [True, False])
def test_a_bias_is_added_in_place_where_torch_does_so_without_a_meter(grad: bool) -> None:
    x, layer = torch.randn(8, 16, 32).transpose(0, 1), nn.Linear(32, 64)
    plain = x @ layer.weight.detach().t().contiguous()

    def by_layer() -> torch.Tensor:
        return layer(x)

    def by_hand() -> torch.Tensor:
        return x @ layer.weight.t() + layer.bias

    for compute in (by_layer, by_hand):
        with torch.set_grad_enabled(grad), AllocatorPeak(CPU) as seen:
            expected = compute()
        meter = Meter()
        with torch.set_grad_enabled(grad), meter.step(0, "image"):
            out = compute()
        assert torch.equal(out, expected)
        assert meter.peak == seen.bytes
        # x is copied for the product; by hand the sum is a tensor beside the product
        assert seen.bytes == x.nbytes + plain.nbytes if compute is by_layer else seen.bytes >= 2 * plain.nbytes
        if grad:
            out.sum().backward()
            assert layer.bias.grad is not None and layer.bias.grad[0] == 16 * 8
            layer.zero_grad()


def branches(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Four products of one tensor: each gives a gradient of its size, which autograd adds to that of those before."""
    h = x * w[0]
    return torch.stack([(h @ row[:, None]).square().mean() for row in w]).sum()


def skips(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Sums with what they were made of: the gradient of a sum is that of both, and must not be changed for one."""
    h = x * w[0]
    for row in w:
        h = h + (h * row).sum(1, keepdim=True)
    return h.square().mean()


@pytest.mark.parametrize("compute", [branches, skips])
@pytest.mark.parametrize("fake", [False, True])
def test_gradients_are_added_in_place_where_torch_does_so_without_a_meter(compute: Any, fake: bool) -> None:
    def tensors() -> tuple[torch.Tensor, torch.Tensor]:
        torch.manual_seed(0)
        return torch.rand(512, 64), torch.rand(4, 64).requires_grad_()

    x, w = tensors()
    with AllocatorPeak(CPU) as seen:
        compute(x, w).backward()
    meter = Meter()
    with FakeTensorMode() if fake else nullcontext():
        y, v = tensors()
        with meter.step(0, "image"):
            loss = compute(y, v)
            meter.enter("backward")
            loss.backward()
    # a product of vectors may copy a row; without the addition in place it is another tensor of x's size
    assert meter.peak == pytest.approx(seen.bytes, abs=x.nbytes // 4)
    if compute is branches:
        # the product, the sum of the gradients so far, and the next one
        assert 3 * x.nbytes <= seen.bytes < 4 * x.nbytes
    if not fake:
        assert w.grad is not None and v.grad is not None and torch.equal(v.grad, w.grad)


@pytest.mark.parametrize("batches", [6, 7])
def test_an_update_of_several_batches_has_the_last_of_them_in_memory_as_a_usual_loop_does(batches: int) -> None:
    every = 3
    pass_ = training_pass(batch=1)
    settings = optimizer(implementation="foreach", accumulation=every, weight_decay=0.0)
    work = make_work(passes=(pass_,), model=described(blocks=1, width=64), optimizer=settings)
    source = Toy(batches)
    table = ScratchTable("here", partial(probe, device="cpu"))
    trace = Predictor(scratch=table).trace(work, source)
    drawn = [batch for _, batch in source.batches(pass_, 1)]
    assert len(drawn) == batches
    module = models.build(work.model)
    made = {"lr": 1e-3, "weight_decay": 0.0, "foreach": True}
    with AllocatorPeak(CPU, [*module.parameters(), *module.buffers()]) as seen:
        by_hand = torch.optim.AdamW(module.parameters(), **made)
        for number, each in enumerate(drawn, 1):
            image, label = each["image"].clone(), each["label"].clone()
            loss = F.cross_entropy(module.logits("image", image), label) / every
            loss.backward()
            if number % every == 0 or number == batches:
                by_hand.step()
                by_hand.zero_grad()
    assert trace.memory_bytes["inputs"] == drawn[0]["image"].nbytes + drawn[0]["label"].nbytes
    assert trace.memory_bytes["activations"] < trace.memory_bytes["inputs"]  # the peak is in an update
    # without the batch it would be the image less; foreach copies constants of some bytes
    assert trace.peak_memory_bytes == pytest.approx(seen.bytes, abs=drawn[0]["image"].nbytes // 4)
