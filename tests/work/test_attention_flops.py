"""FLOPs of every kernel of attention against closed forms, on tensors that hold no data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from edgefl.errors import UncountedOperator
from edgefl.work import Meter
from edgefl.work.meter.flops import FORMULAS

aten = torch.ops.aten
B, H, N, M, D = 2, 3, 24, 40, 16
PRODUCT = 2 * B * H * N * M * D
"""FLOPs of one product of [N, D] and [D, M] matrices, for every sample and head."""

KERNELS: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
    "flash on a cpu": lambda q, k, v: aten._scaled_dot_product_flash_attention_for_cpu(q, k, v),
    "efficient": lambda q, k, v: aten._scaled_dot_product_efficient_attention(q, k, v, None, True),
    "flash": lambda q, k, v: aten._scaled_dot_product_flash_attention(q, k, v),
    "cudnn": lambda q, k, v: aten._scaled_dot_product_cudnn_attention(q, k, v, None, True),
    "math": lambda q, k, v: aten._scaled_dot_product_attention_math(q, k, v),
}


def counted(kernel: Callable[[Tensor, Tensor, Tensor], Any], groups: int = 1) -> tuple[int, int]:
    """Forward and backward FLOPs of queries ``[B, H, N, D]`` over keys ``[B, H / groups, M, D]``."""
    with FakeTensorMode():
        q = torch.empty(B, H, N, D, requires_grad=True)
        k, v = (torch.empty(B, H // groups, M, D, requires_grad=True) for _ in range(2))
        meter = Meter()
        with meter.step(0, "x"):
            out = kernel(q, k, v)
            out = out if isinstance(out, Tensor) else out[0]
            meter.enter("backward")
            out.backward(torch.empty(out.shape))
    step = meter.trace().steps[0, "x"]
    assert all(t.grad is not None and t.grad.shape == t.shape for t in (q, k, v))
    return step.forward_flops, step.backward_flops


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_has_two_products_forward(name: str) -> None:
    """Scores Q K^T and their product with V: 4 B H N M D."""
    assert counted(KERNELS[name])[0] == 2 * PRODUCT


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_that_keeps_no_scores_computes_them_again(name: str) -> None:
    """dV, dP, dQ and dK are four products; all but ``math`` recompute Q K^T first, a fifth: 2.5 times the forward."""
    assert counted(KERNELS[name])[1] == (4 if name == "math" else 5) * PRODUCT


@pytest.mark.parametrize("name", ["flash on a cpu", "flash", "cudnn"])
def test_fewer_heads_of_keys_are_as_many_products(name: str) -> None:
    """A group of queries shares its keys in memory; the kernel multiplies each query with them all the same."""
    assert counted(KERNELS[name], groups=3) == (2 * PRODUCT, 5 * PRODUCT)


@pytest.mark.parametrize("backend", [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION])
def test_what_a_cpu_chooses_for_the_usual_call_is_counted_alike(backend: SDPBackend) -> None:
    with sdpa_kernel(backend):
        forward, backward = counted(scaled_dot_product_attention)
    assert forward == 2 * PRODUCT
    assert backward == (4 if backend is SDPBackend.MATH else 5) * PRODUCT


def test_every_named_kernel_that_torch_has_is_counted_or_an_error() -> None:
    """A kernel that a later torch adds must not be counted as nothing."""
    names = [n for n in dir(aten) if n.startswith("_scaled_dot_product_") and "math" not in n]
    known = {packet.__name__ for packet in FORMULAS if hasattr(packet, "__name__")}
    for name in set(names) - known:
        meter = Meter()
        with meter.step(0, "x"), pytest.raises(UncountedOperator, match=name):
            meter._charge(getattr(aten, name), (), {}, None, [])
