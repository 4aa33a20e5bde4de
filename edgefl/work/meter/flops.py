"""FLOPs of operators, by torch's formulas and those that torch lacks or has wrong, and the class of each operator."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

from edgefl.operator_classes import OperatorClass

aten = torch.ops.aten


def _attention(query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> int:
    # of scores and of what they weigh, for each head of the queries: several may share a head of keys and values
    samples, heads, queries, width = query.shape
    return 2 * samples * heads * queries * key.shape[2] * (width + value.shape[3])


def _attention_backward(grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> int:
    # the scores again, and the gradients of queries, keys, scores and values
    samples, heads, queries, width = query.shape
    return 2 * samples * heads * queries * key.shape[2] * (3 * width + 2 * value.shape[3])


def _convolution_flops(positions: Tensor, weight: Tensor) -> int:
    # the whole kernel is applied once at every position, whatever the number of groups
    return int(2 * (positions.numel() // max(positions.shape[1], 1)) * weight.numel())


def _convolution(x: Tensor, weight: Tensor, *args: Any, out_val: Tensor, **kwargs: Any) -> int:
    transposed = kwargs.get("transposed", args[4] if len(args) > 4 else False)
    return _convolution_flops(x if transposed else out_val, weight)


def _convolution_backward(gradient: Tensor, x: Tensor, weight: Tensor, *args: Any, **_: Any) -> int:
    # gradients of the input and of the weight, as the output mask requires
    transposed, output_mask = args[4], args[7]
    return int(sum(output_mask[:2])) * _convolution_flops(x if transposed else gradient, weight)


def _cudnn_rnn(input: Tensor, weight: list[Tensor], *_: Any, **__: Any) -> int:
    # one product of every matrix with every token
    return 2 * input.shape[0] * input.shape[1] * sum(w.numel() for w in weight if w.dim() == 2)


def _whole_attention(query: Tensor, key: Tensor, _: Any, width: int, heads: int, *weights: Any, **__: Any) -> int:
    # projections of queries, keys and values, of outputs, and attention: torch's kernel of layers that don't train
    samples, queries = query.shape[:2]
    return int(2 * samples * queries * (weights[0].numel() + weights[2].numel() + 2 * key.shape[1] * width))


def _encoder_layer(x: Tensor, width: int, heads: int, *weights: Any, **_: Any) -> int:
    # the same with the two layers after it
    tokens = x.shape[0] * x.shape[1]
    after = 2 * tokens * sum(weights[i].numel() for i in (11, 13))
    return int(_whole_attention(x, x, x, width, heads, *weights) + after)


def _product(first: Tensor, second: Tensor, *_: Any, **__: Any) -> int:
    return 2 * first.numel() * second.shape[-1]


def _trilinear(
    a: Tensor, b: Tensor, c: Tensor, in_a: Any, in_b: Any, in_c: Any, sums: Any, loop: int = 1, **_: Any
) -> int:
    # for each index of dimension ``loop`` a product of a and b, summed over what c lacks, and its product with c; one
    # without a sum is pointwise; ``in_`` lists the dimensions that an operand lacks (torch's ``Linear.cpp``)
    sizes = [1] * (a.dim() + len(in_a))
    for operand, lacks in ((a, in_a), (b, in_b), (c, in_c)):
        for dim, size in zip((d for d in range(len(sizes)) if d not in lacks), operand.shape, strict=True):
            sizes[dim] = size
    before, after = ({d for d in sums if d != loop and (d in in_c) is early} for early in (True, False))
    first = prod(n for d, n in enumerate(sizes) if d == loop or d not in in_a or d not in in_b)
    second = prod(n for d, n in enumerate(sizes) if d not in before)
    return 2 * (first * bool(before) + second * bool(after))


_FUSED = ("flash_attention_for_cpu", "flash_attention", "efficient_attention", "cudnn_attention")
"""Kernels of attention.  torch's counter has no formula for a CPU's, and up to 2.11 none for grouped queries."""


FORMULAS: dict[Any, Callable[..., int]] = {
    **{packet: (lambda *a, _f=formula, **k: int(_f(*a, **k))) for packet, formula in flop_registry.items()},
    **{getattr(aten, f"_scaled_dot_product_{name}"): _attention for name in _FUSED},
    **{getattr(aten, f"_scaled_dot_product_{name}_backward"): _attention_backward for name in _FUSED},
    # torch's formulas of products give the same numbers in ten times the time
    **dict.fromkeys((aten.mm, aten.bmm), _product),
    **dict.fromkeys(
        (aten.addmm, aten.addmm_, aten._addmm_activation, aten.addbmm, aten.addbmm_, aten.baddbmm, aten.baddbmm_),
        lambda bias, *a, **k: _product(*a),
    ),
    **dict.fromkeys((aten.mv, aten.dot, aten.vdot), lambda matrix, *a, **k: 2 * matrix.numel()),
    **dict.fromkeys((aten.addmv, aten.addmv_), lambda bias, matrix, *a, **k: 2 * matrix.numel()),
    **dict.fromkeys((aten.addr, aten.addr_), lambda bias, column, row, **k: 2 * column.numel() * row.numel()),
    aten._trilinear: _trilinear,
    # torch's own formula for the gradient of a weight ignores groups
    aten.convolution: _convolution,
    aten.convolution_backward: _convolution_backward,
    aten._cudnn_rnn: _cudnn_rnn,
    aten._cudnn_rnn_backward: lambda *a, **k: 2 * _cudnn_rnn(*a, **k),
    aten._native_multi_head_attention: _whole_attention,
    aten._transformer_encoder_layer_fwd: _encoder_layer,
    # pointwise, despite their names: a cell's matrix products are separate operators
    **dict.fromkeys(
        (
            aten._thnn_fused_gru_cell,
            aten._thnn_fused_gru_cell_backward,
            aten._thnn_fused_lstm_cell,
            aten._thnn_fused_lstm_cell_backward_impl,
        ),
        lambda *a, **k: 0,
    ),
}
_MATMUL_WORDS = frozenset(
    "mm addmm bmm baddbmm addbmm mv addmv dot vdot ger addr matmul linear einsum lstm gru rnn cdist bilinear "
    "trilinear tensordot attention".split()
)


_BIAS_FIRST = frozenset({aten.addmm, aten._addmm_activation, aten.baddbmm, aten.addbmm, aten.addmv, aten.addr})


def gradient_macs(packet: Any, args: Any, macs: int) -> int:
    """MACs of the gradients of an operator's two operands, ``macs`` for each that a gradient reaches.

    The operands are a layer's input and its weights, or the two matrices of a product; a bias doesn't count.
    Attention is two products of half its MACs each: of queries and keys, and of their scores and the values.
    """
    if "attention" in packet.__name__:
        query, key, value = (needs_gradient(arg) for arg in args[:3])
        return macs * (query + key + (query or key) + value) // 2
    if packet is aten.native_layer_norm:
        return macs * (needs_gradient(args[0]) + needs_gradient(args[2:4]))
    operands = args[1:3] if packet in _BIAS_FIRST else args[: 3 if packet is aten._trilinear else 2]
    return macs * sum(map(needs_gradient, operands))


def needs_gradient(value: Any) -> bool:
    """Whether a gradient reaches this tensor, or any in this list."""
    if isinstance(value, list | tuple):
        return any(needs_gradient(each) for each in value)
    return isinstance(value, Tensor) and value.requires_grad


@cache
def is_matmul(packet: Any) -> bool:
    """Whether an operator, by its name, multiplies matrices."""
    words = packet.__name__.split("_")
    return any(word in _MATMUL_WORDS or word.startswith("conv") for word in words)


_BATCHED = frozenset({aten.bmm, aten.baddbmm})
_NORMS = ("batch_norm", "layer_norm", "group_norm", "rms_norm")
GATHERS = frozenset({aten.embedding, aten.index_select, aten.gather, aten.index})
_EMBEDDINGS = GATHERS | {aten.embedding_dense_backward, aten.index_put, aten.index_put_, aten._index_put_impl_}


def class_of(packet: Any, args: Any) -> OperatorClass:
    """The class of an operator that updates no weights, from its name, and of a convolution from its arguments."""
    if packet is aten.convolution:
        return _class_of_convolution(args[0], args[1], args[8], args[6])
    if packet is aten.convolution_backward:
        return _class_of_convolution(args[1], args[2], args[9], args[7])
    return _class_by_name(packet)


@cache
def _class_by_name(packet: Any) -> OperatorClass:
    if packet in _BATCHED or "attention" in packet.__name__:
        return OperatorClass.ATTENTION
    if packet in FORMULAS and is_matmul(packet):
        return OperatorClass.PRODUCT
    if any(norm in packet.__name__ for norm in _NORMS):
        return OperatorClass.NORMALISATION
    return OperatorClass.EMBEDDING if packet in _EMBEDDINGS else OperatorClass.POINTWISE


def _class_of_convolution(x: Tensor, weight: Tensor, groups: int, transposed: bool) -> OperatorClass:
    if groups > 1:
        each = (weight.shape[0] if transposed else x.shape[1]) // groups
        return OperatorClass.DEPTHWISE_CONVOLUTION if each == 1 else OperatorClass.GROUPED_CONVOLUTION
    if all(size == 1 for size in weight.shape[2:]):
        return OperatorClass.CONVOLUTION_1X1
    return OperatorClass.CONVOLUTION
