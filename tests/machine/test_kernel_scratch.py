"""What kernels take: probed calls against the allocator at the same call elsewhere, and what can't be probed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from edgefl.machine import kernel_scratch
from edgefl.machine.kernel_scratch import PROBED_BYTES, kernels, probe
from edgefl.work import AllocatorPeak, Inside, LiveCall
from edgefl.work.meter.operator_calls import call_of

aten = torch.ops.aten
CPU = torch.device("cpu")


def held(operator: object, *args: object, outputs: int = 0) -> LiveCall:
    return LiveCall(call_of(operator, args, {}), 0, outputs, (0,) * 11)


def seen(do: Callable[[], object]) -> int:
    with AllocatorPeak(CPU) as peak:
        do()
    return peak.bytes


def test_an_operator_without_scratch_takes_its_output() -> None:
    x = torch.randn(30, 50)
    assert probe([held(aten.mul.Tensor, x, x), held(aten.mul_.Tensor, x, x)], "cpu") == [Inside(x.nbytes), Inside(0)]


CONVOLUTION = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("channels", [3, 24])
def test_a_convolutions_backward_pass_takes_what_the_allocator_says(channels: int, dtype: torch.dtype) -> None:
    x, w = torch.randn(4, channels, 20, 20, dtype=dtype), torch.randn(32, channels, 3, 3, dtype=dtype)
    out = torch.randn(4, 32, 20, 20, dtype=dtype)
    args = (out, x, w, [32], *CONVOLUTION, [True, True, True])
    (inside,) = probe([held(aten.convolution_backward.default, *args)], "cpu")
    assert inside == Inside(seen(lambda: aten.convolution_backward.default(*args)))
    assert inside.bytes >= x.nbytes + w.nbytes + 32 * out.itemsize  # its outputs


def test_every_call_gets_its_own_figure_and_the_generator_stays_as_it_was() -> None:
    torch.manual_seed(3)
    state = torch.get_rng_state()
    sizes = [10, 1000, 7, 50_000]
    calls = [held(aten.bernoulli.p, torch.empty(n), 0.5) for n in sizes]
    assert probe(calls, "cpu") == [Inside(4 * n) for n in sizes]
    assert torch.equal(state, torch.get_rng_state())


def test_values_do_not_matter() -> None:
    x, index = torch.randn(100, 16), torch.randint(0, 100, (300,))
    gradient = torch.randn(300, 16)
    (inside,) = probe([held(aten.embedding_dense_backward.default, gradient, index, 100, -1, False)], "cpu")
    assert inside.bytes == seen(lambda: aten.embedding_dense_backward.default(gradient, index, 100, -1, False))
    (inside,) = probe([held(aten.index_select.default, x, 0, index)], "cpu")
    assert inside.bytes == seen(lambda: aten.index_select.default(x, 0, index))


def test_what_cannot_run_is_assumed_between_its_outputs_and_twice_its_arguments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = torch.zeros(10, 10)
    singular = held(aten.linalg_inv_ex.default, x, outputs=400)
    cholesky = held(aten.cholesky.default, x, outputs=400)  # refuses zeros
    first, second = probe([singular, cholesky], "cpu")
    assert not first.assumed
    assert second == Inside(400 + 2 * 400, assumed=True)
    monkeypatch.setattr(kernel_scratch, "PROBED_BYTES", 100)
    assert probe([cholesky], "cpu") == [Inside(400 + 2 * 400, assumed=True)]


def test_of_a_large_call_on_lists_the_largest_entry_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    parameters = [torch.zeros(n) for n in (5, 100, 40)]
    operator, outputs = aten._foreach_add.List, 4 * 145
    call = held(operator, parameters, [torch.zeros_like(p) for p in parameters], outputs=outputs)
    assert probe([call], "cpu") == [Inside(outputs)]
    monkeypatch.setattr(kernel_scratch, "PROBED_BYTES", 900)
    assert probe([call], "cpu") == [Inside(outputs, assumed=True)]
    for limit in (2000, 1500):  # of the optimizer's largest entry 1,604 bytes: the second runs fewer numbers of it
        monkeypatch.setattr(kernel_scratch, "PROBED_BYTES", limit)
        assert probe([_fused(parameters)], "cpu") == [Inside(0, assumed=True)]
    monkeypatch.setattr(kernel_scratch, "PROBED_BYTES", 500)
    whole = [torch.ones(len(p), dtype=torch.int64) for p in parameters]
    taken = seen(lambda: aten._foreach_div_.List(parameters[1:2], whole[1:2]))
    assert taken == 400 and probe([held(aten._foreach_div_.List, parameters, whole)], "cpu") == [
        Inside(400, assumed=True)
    ]


def _fused(parameters: list[Tensor]) -> LiveCall:
    zeros = [[torch.zeros_like(p) for p in parameters] for _ in range(3)]
    steps = [torch.ones(()) for _ in parameters]
    call = call_of(
        aten._fused_adamw_.default,
        (parameters, *zeros, [], steps),
        {
            "lr": 1e-3,
            "beta1": 0.9,
            "beta2": 0.99,
            "weight_decay": 0.0,
            "eps": 1e-8,
            "amsgrad": False,
            "maximize": False,
        },
    )
    return LiveCall(call, 0, 0, (0,) * 11)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_gpu_that_is_not_there_is_assumed() -> None:
    x = torch.zeros(10, 10)
    assert probe([held(aten.mm.default, x, x, outputs=512)], "cuda") == [Inside(512 + 2 * 400, assumed=True)]
    assert probe([held(aten.mul.Tensor, x, x, outputs=512)], "cuda") == [Inside(512, assumed=True)]
    assert kernels("cuda") == "assumed"


def test_the_machine_is_named() -> None:
    assert torch.__version__ in kernels("cpu") and kernels("cpu").endswith("1 thread")


def factors(dtype: torch.dtype, layout: str, m: int = 64, k: int = 700, n: int = 300) -> tuple[Tensor, Tensor]:
    """Factors ``[m, k]`` and ``[k, n]``, each by rows (r) or by columns (c)."""
    a = torch.zeros(k, m, dtype=dtype).T if layout[0] == "c" else torch.zeros(m, k, dtype=dtype)
    b = torch.zeros(n, k, dtype=dtype).T if layout[1] == "c" else torch.zeros(k, n, dtype=dtype)
    return a, b


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", ["rr", "rc", "cr", "cc"])
def test_a_product_by_torchs_own_loops_takes_as_much_with_fewer_terms(layout: str, dtype: torch.dtype) -> None:
    a, b = factors(dtype, layout)
    for operator, args in ((aten.mm.default, [a, b]), (aten.addmm.default, [torch.zeros(300, dtype=dtype), a, b])):
        *before, left, right = call_of(operator, args, {}).with_fewer_terms(64).make("cpu")[1]
        assert left.shape == (64, 64) and right.shape == (64, 300)
        assert (left.stride(), right.stride()) == (a.stride(), b.stride())
        if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            whole, fewer = seen(lambda: operator(*args)), seen(lambda: operator(*before, left, right))  # noqa: B023
            assert whole == fewer == 64 * 300 * dtype.itemsize


def test_only_slow_products_run_with_fewer_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_scratch, "SLOW_PRODUCT", 64 * 700 * 300 - 1)
    slow = not torch.ops.mkldnn._is_mkldnn_bf16_supported()
    apart = torch.zeros(64, 1400, dtype=torch.bfloat16)[:, ::2]  # a kernel copies it first
    for args, fewer in (
        (factors(torch.bfloat16, "rr"), slow),
        (factors(torch.bfloat16, "rr", m=63), False),
        (factors(torch.float32, "rr"), False),
        ((apart, factors(torch.bfloat16, "rr")[1]), False),
    ):
        call = call_of(aten.mm.default, args, {})
        probed = LiveCall(call, 0, 0, (0,) * 11)
        assert kernel_scratch._choose_probe(probed, "cpu", PROBED_BYTES) == (
            call.with_fewer_terms(64) if fewer else call
        )
        assert kernel_scratch._choose_probe(probed, "cuda", PROBED_BYTES) == call
