"""A GPU's recurrence without a GPU: cuDNN computes all tokens of a GRU in one call, and its gradients in another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten

KEPT = 5
"""Numbers that are assumed to be kept for each token, layer, direction and hidden unit: those of torch's own fused cell
(``GRU_workspace_multiplier`` in ``native/cuda/RNN.cu``), because NVIDIA doesn't say what cuDNN's reserve holds."""
_MODE_GRU = 3  # CUDNN_GRU
_SHAPE = {aten._cudnn_rnn: (9, 10), aten._cudnn_rnn_backward: (13, 14)}
"""Where the operators' arguments have the number of layers, and whether the batch comes first."""


def fused_gru(x: Tensor, hx: Tensor, weights: Sequence[Tensor], biases: bool, *how: Any) -> tuple[Tensor, Tensor]:
    """What ``torch.gru`` gives of a batch that isn't packed, by the operator that torch calls on a GPU.

    ``[batch, tokens, width] -> [batch, tokens, directions x hidden]`` and the last states; under autocast in half.
    """
    layers, *dropout_train_directions, batch_first = how
    if torch.is_autocast_enabled("cpu"):
        dtype = torch.get_autocast_dtype("cpu")
        x, hx, weights = x.to(dtype), hx.to(dtype), [weight.to(dtype) for weight in weights]
    out, last, *_ = aten._cudnn_rnn(
        x, weights, 4 if biases else 2, x.new_empty(0), hx, None, _MODE_GRU, hx.shape[-1], 0, layers, batch_first,
        *dropout_train_directions, [], None,
    )  # fmt: skip
    return out, last


def kernels_in(packet: Any, args: Sequence[Any]) -> int:
    """How many kernels an operator launches one after the other, as far as seconds tell: 1 but for a recurrence.

    cuDNN's standard algorithm executes a layer as a sequence of operations, a token waiting for the one before.  For
    up to 192 hidden units torch asks for one persistent kernel, whose seconds aren't known; it counts alike.
    """
    if packet not in _SHAPE:
        return 1
    layers, batch_first = (args[place] for place in _SHAPE[packet])
    return int(layers * args[0].shape[1 if batch_first else 0])


def reserve_bytes(output: Tensor, layers: int, train: bool) -> int:
    """Bytes that are kept for the backward pass, of a layer's output ``[batch, tokens, directions x hidden]``."""
    return KEPT * output.numel() * layers * output.element_size() if train else 0


def gradients(x: Tensor, weights: Sequence[Tensor], *rest: Any) -> tuple[Any, ...]:
    """New tensors in place of what ``aten._cudnn_rnn_backward`` gives, for which torch has no fake kernel."""
    hx, mask = rest[2], rest[-1]
    of_weights = [torch.empty_like(weight) for weight in weights] if mask[3] else []
    return torch.empty_like(x) if mask[0] else None, torch.empty_like(hx) if mask[1] else None, None, of_weights
