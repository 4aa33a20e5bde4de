"""Calls too large to be run: extrapolated scratch against the profiler at the whole call, and what stays assumed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from edgefl.machine import kernel_scratch
from edgefl.machine.kernel_scratch import PROBED_BYTES, probe
from edgefl.work import Inside, LiveCall
from edgefl.work.meter.operator_calls import Call, call_of

aten = torch.ops.aten
AMX = torch.cpu._is_amx_tile_supported()
"""Whether products in bfloat16 run in tiles, whose scratch grows in steps."""
SIZES = (1024, 1536, 2048)
WORDS, WIDTH = 1000, 64
Zeros = Callable[..., Tensor]
OPERATORS: dict[str, Callable[[int, Zeros], tuple[Any, tuple[Any, ...]]]] = {
    "mm": lambda n, z: (aten.mm.default, (z(n, WIDTH), z(WORDS, WIDTH).T)),
    "mm, of weights": lambda n, z: (aten.mm.default, (z(n, WORDS).T, z(n, WIDTH))),
    "mm, of inputs": lambda n, z: (aten.mm.default, (z(n, WORDS), z(WORDS, WIDTH))),
    "addmm": lambda n, z: (aten.addmm.default, (z(256), z(n, WIDTH), z(WIDTH, 256))),
    "bmm": lambda n, z: (aten.bmm.default, (z(n // 16, 32, 16), z(n // 16, 16, 32))),
    "softmax": lambda n, z: (aten._softmax.default, (z(n // 64, 4, 32, 32), -1, False)),
    "softmax of three": lambda n, z: (aten._softmax.default, (z(3, n // 8, n // 8), -1, False)),
    "softmax back": lambda n, z: (
        aten._softmax_backward_data.default,
        (x := z(n // 64, 4, 32, 32), z(*x.shape), -1, x.dtype),
    ),
    "log_softmax": lambda n, z: (aten._log_softmax.default, (z(n, WORDS), 1, False)),
    "log_softmax back": lambda n, z: (
        aten._log_softmax_backward_data.default,
        (x := z(n, WORDS), z(n, WORDS), 1, x.dtype),
    ),
    "nll": lambda n, z: (aten.nll_loss_forward.default, (z(n, WORDS), z(n).long(), None, 1, -100)),
    "nll back": lambda n, z: (
        aten.nll_loss_backward.default,
        (z(), z(n, WORDS), z(n).long(), None, 1, -100, z()),
    ),
    "layer_norm": lambda n, z: (aten.native_layer_norm.default, (z(n, WIDTH), [WIDTH], z(WIDTH), z(WIDTH), 1e-5)),
    "layer_norm back": lambda n, z: (
        aten.native_layer_norm_backward.default,
        (z(n, WIDTH), z(n, WIDTH), [WIDTH], z(n, 1), z(n, 1), z(WIDTH), z(WIDTH), [True] * 3),
    ),
    "group_norm": lambda n, z: (
        aten.native_group_norm.default,
        (z(n // 16, 16, 14, 14), z(16), z(16), n // 16, 16, 196, 4, 1e-5),
    ),
    "gelu": lambda n, z: (aten.gelu.default, (z(n, WIDTH),)),
    "gelu back": lambda n, z: (aten.gelu_backward.default, (z(n, WIDTH), z(n, WIDTH))),
    "embedding": lambda n, z: (aten.embedding.default, (z(WORDS, WIDTH), z(n).long())),
    "embedding back": lambda n, z: (
        aten.embedding_dense_backward.default,
        (z(n, WIDTH), z(n).long(), WORDS, -1, False),
    ),
    "convolution": lambda n, z: (aten.convolution.default, (z(n // 16, 16, 14, 14), z(16, 16, 3, 3), None, *_plain(1))),
    "convolution back": lambda n, z: (aten.convolution_backward.default, _back(z, n // 16, 16, 16)),
    "as many channels": lambda n, z: (aten.convolution_backward.default, _back(z, n // 16, 3, n // 16)),
    "depthwise": lambda n, z: (aten.convolution.default, (z(n // 16, 16, 14, 14), z(16, 1, 3, 3), None, *_plain(16))),
    "depthwise back": lambda n, z: (aten.convolution_backward.default, _back(z, n // 16, 16, 16, groups=16)),
    "attention": lambda n, z: (aten._scaled_dot_product_flash_attention_for_cpu.default, (z(n // 32, 4, 32, 16),) * 3),
    "attention back": lambda n, z: (
        aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
        (*(z(n // 32, 4, 32, 16) for _ in range(5)), z(n // 32, 4, 32).float(), 0.0, False),
    ),
    "batch_norm": lambda n, z: (
        aten.native_batch_norm.default,
        (z(n // 16, 16, 14, 14), *(z(16).float() for _ in range(4)), True, 0.1, 1e-5),
    ),
    "batch_norm back": lambda n, z: (
        aten.native_batch_norm_backward.default,
        (*(z(n // 16, 16, 14, 14) for _ in range(2)), *(z(16).float() for _ in range(5)), True, 1e-5, [True] * 3),
    ),
    "copy": lambda n, z: (aten._to_copy.default, (z(n, WORDS),)),
    "few samples": lambda n, z: (aten._to_copy.default, (z(3, n, WORDS),)),
    "sum": lambda n, z: (aten.sum.dim_IntList, (z(n, 8, WIDTH), [0, 1])),
    "repeated": lambda n, z: (aten.mul.Tensor, (z(n, WIDTH), z(1, WIDTH).expand(n, WIDTH))),
    "index_put": lambda n, z: (aten.index_put.default, (z(WORDS, WIDTH), [z(n).long()], z(n, WIDTH), True)),
    "slice back": lambda n, z: (aten.slice_backward.default, (z(n, 3, WIDTH), [n, 5, WIDTH], 1, 0, 3, 1)),
    "cat": lambda n, z: (aten.cat.default, ([z(n, 2, WIDTH), z(n, 3, WIDTH)], 1)),
    "max_pool": lambda n, z: (aten.max_pool2d_with_indices.default, (z(n // 16, 16, 14, 14), [3, 3], [2, 2], [1, 1])),
    "norm": lambda n, z: (aten.linalg_vector_norm.default, (z(n * WIDTH),)),
}


def _plain(groups: int) -> tuple[Any, ...]:
    return [1, 1], [1, 1], [1, 1], False, [0, 0], groups


def _back(z: Zeros, images: int, channels: int, out: int, groups: int = 1) -> tuple[Any, ...]:
    shapes = (images, out, 14, 14), (images, channels, 14, 14), (out, channels // groups, 3, 3)
    return *(z(*shape) for shape in shapes), [0], *_plain(groups), [True, True, False]


def allocated(operator: Any, args: tuple[Any, ...]) -> tuple[int, int]:
    """The largest running sum of the profiler's memory events in a call, and the sum of all."""
    recording = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True)
    with torch.no_grad(), recording:
        out = operator(*args)  # noqa: F841 - it is held until the end
    recorded: Any = recording.profiler
    events = sorted((e.start_ns(), e.nbytes()) for e in recorded.kineto_results.events() if e.name() == "[memory]")
    sums = [sum(size for _, size in events[: i + 1]) for i in range(len(events))]
    return max(sums, default=0), sums[-1] if sums else 0


def zeros_of(dtype: torch.dtype) -> Zeros:
    return lambda *shape: torch.zeros(*shape, dtype=dtype) if shape else torch.zeros((), dtype=dtype)


def live_call(operator: Any, args: tuple[Any, ...]) -> LiveCall:
    call = call_of(operator, args, {})
    return LiveCall(call, 0, call.output_bytes(), (0,) * 11)


def halve(monkeypatch: pytest.MonkeyPatch, held: LiveCall) -> None:
    """Let only calls of half as many bytes run."""
    monkeypatch.setattr(kernel_scratch, "PROBED_BYTES", max(held.call.argument_bytes, held.outputs) // 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", OPERATORS)
def test_scratch_is_continued_to_the_call_that_is_too_large(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    for size in SIZES:
        operator, args = OPERATORS[name](size, zeros_of(dtype))
        peak, kept = allocated(operator, args)
        held = live_call(operator, args)
        halve(monkeypatch, held)
        (inside,) = probe([held], "cpu")
        assert not inside.assumed
        if dtype == torch.bfloat16 and AMX and (name == "convolution" or "mm" in name):  # scratch of tiles, in steps
            assert abs(inside.bytes - held.outputs - peak + kept) <= max(held.touched_bytes, PROBED_BYTES) / 500
        elif dtype == torch.bfloat16 and "mm" in name and name != "bmm":  # a product's blocks: some 100 KB at any size
            assert abs(inside.bytes - held.outputs - peak + kept) <= kernel_scratch.STRAIGHT * PROBED_BYTES
        else:
            assert inside.bytes - held.outputs == peak - kept


@pytest.mark.slow(smaller="test_scratch_is_continued_to_the_call_that_is_too_large")
@pytest.mark.parametrize("name", ["mm", "mm, of weights", "mm, of inputs"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_with_a_real_vocabulary_differ_by_less_than_a_thousandth(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "WORDS", 128_256)
    operator, args = OPERATORS[name](4096, zeros_of(dtype))
    peak, kept = allocated(operator, args)
    held = live_call(operator, args)
    (inside,) = probe([held], "cpu")
    assert held.touched_bytes > PROBED_BYTES and not inside.assumed
    assert abs(inside.bytes - held.outputs - peak + kept) <= held.touched_bytes / 1000


def test_a_view_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_scratch, "PROBED_BYTES", 100)
    x = torch.zeros(6, 50)
    views = [(aten._unsafe_view.default, (x, [2, 3, 50])), (aten.transpose.int, (x, 0, 1)), (aten.split.Tensor, (x, 2))]
    assert probe([LiveCall(call_of(*view, {}), 0, 0, (0,) * 11) for view in views], "cpu") == [Inside(0)] * 3


def assumed(held: LiveCall) -> Inside:
    return Inside(held.outputs + 2 * held.call.argument_bytes, assumed=True)


def test_what_does_not_lie_on_a_line_is_assumed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One sample's attention takes blocks of tokens, and a convolution of 1 x 1 nothing on few images."""
    query = torch.zeros(1, 1, 1024, 16)
    attention = live_call(
        aten._scaled_dot_product_flash_attention_for_cpu.default, (query, query.clone(), query.clone())
    )
    few = (torch.zeros(20, 64, 8, 8), torch.zeros(20, 16, 8, 8), torch.zeros(64, 16, 1, 1), [0])
    plain = [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, False]
    convolution = live_call(aten.convolution_backward.default, (*few, *plain))
    for held in (attention, convolution):
        halve(monkeypatch, held)
        assert probe([held], "cpu") == [assumed(held)]


def test_a_single_entry_per_sample_is_assumed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of attention by products over very many tokens no smaller call fits whose scores grow on a line."""
    scores = live_call(aten.bmm.default, (torch.zeros(1, 512, 8), torch.zeros(1, 512, 8).transpose(1, 2)))
    monkeypatch.setattr(kernel_scratch, "PROBED_BYTES", scores.outputs // 4)
    assert probe([scores], "cpu") == [assumed(scores)]


@pytest.mark.parametrize("name", ["aten.no_such_operator.default", "aten.cholesky.default", "aten._unique2.default"])
def test_an_operator_that_refuses_fewer_entries_is_assumed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call = Call(name, call_of(aten.neg.default, (torch.zeros(32, 8, 8),), {}).arguments)
    held = LiveCall(call, 0, 8192, (0,) * 11)
    halve(monkeypatch, held)
    assert probe([held], "cpu") == [assumed(held)]
