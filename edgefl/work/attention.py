"""Choice of the attention kernel: torch's own, a named back-end, or a GPU's kernel without a GPU.

Every tower calls ``torch.nn.functional.scaled_dot_product_attention``; memory, FLOPs and speed depend on the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from edgefl.errors import MethodError
from edgefl.models.tower import RECOMPUTING

BACKENDS = {
    "math": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}
_FLASH_HEAD, _FLASH_STEP = 256, 8
_HALF = (torch.float16, torch.bfloat16)

_FLOAT32_ON_GPU = frozenset({F.layer_norm, F.group_norm, F.softmax, F.log_softmax, torch.softmax, torch.log_softmax})
"""Functions that autocast computes in float32 on a GPU, but in half precision on a CPU."""


@contextmanager
def attention(choice: str, device: torch.device, kernels: str) -> Iterator[None]:
    """Compute attention by ``choice`` ("device" or a key of BACKENDS) within the context.

    ``kernels`` "cuda" on a CPU simulates a GPU: its attention and dropout kernels are called by name, which fake
    tensors allow.  Raises MethodError for a back-end that a CPU lacks, and within the context for inputs that a GPU's
    kernel rejects.
    """
    if kernels == "cuda" and device.type == "cpu":
        with _CudaKernels(choice) as mode:
            # torch runs backward() outside of the mode in which it is called
            token = RECOMPUTING.set(mode)
            try:
                yield
            finally:
                RECOMPUTING.reset(token)
    elif choice == "device":
        yield
    elif device.type == "cpu" and choice not in ("math", "flash"):
        raise MethodError(
            f"training.attention is {choice!r}, which needs a CUDA device; a CPU has math and flash "
            "(to predict a GPU without having one, profile with --set executor.device=cuda)"
        )
    else:
        with sdpa_kernel(BACKENDS[choice]):
            yield


class _CudaKernels(TorchFunctionMode):
    """Mode that calls the kernels of a CUDA device on CPU tensors without data."""

    def __init__(self, choice: str):
        super().__init__()
        self.choice = choice

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            return self._attend(*args, **kwargs)
        if func in (F.dropout, torch.dropout):
            return _dropout(*args, **kwargs)
        if func in _FLOAT32_ON_GPU and torch.is_autocast_enabled("cpu"):
            with torch.autocast("cpu", enabled=False):
                return func(*map(_to_float32, args), **{name: _to_float32(value) for name, value in kwargs.items()})
        return func(*args, **kwargs)

    def _attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        if torch.is_autocast_enabled("cpu"):
            dtype = torch.get_autocast_dtype("cpu")
            query, key, value = (t.to(dtype) for t in (query, key, value))
        choice = self._choice(query, attn_mask)
        if choice == "math" or enable_gqa:
            with sdpa_kernel(SDPBackend.MATH):
                return F.scaled_dot_product_attention(
                    query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
                )
        if choice in ("flash", "cudnn") and query.dtype not in _HALF:
            raise MethodError(
                f"training.attention is {choice!r}, which on a GPU supports half precision only: set "
                "training.precision to bfloat16 or float16, or training.attention to efficient"
            )
        if choice == "flash" and attn_mask is not None:
            raise MethodError("training.attention is 'flash', which supports no mask: set it to device or efficient")
        grads = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
        if choice == "flash":
            width = query.shape[-1]
            scale = width**-0.5 if scale is None else scale
            if width % _FLASH_STEP:  # the kernel takes heads in steps of 8; torch pads them
                query, key, value = (F.pad(t, (0, -width % _FLASH_STEP)) for t in (query, key, value))
            out = torch.ops.aten._scaled_dot_product_flash_attention(
                query, key, value, dropout_p, is_causal, scale=scale
            )[0]
            return out[..., :width]  # type: ignore[no-any-return]
        kernel = {
            "efficient": torch.ops.aten._scaled_dot_product_efficient_attention,
            "cudnn": torch.ops.aten._scaled_dot_product_cudnn_attention,
        }[choice]
        return kernel(query, key, value, attn_mask, grads, dropout_p, is_causal, scale=scale)[0]  # type: ignore[no-any-return]

    def _choice(self, query: Tensor, mask: Tensor | None) -> str:
        """Torch's order on a GPU: flash for half precision without a mask, else the memory-efficient kernel."""
        if self.choice != "device":
            return self.choice
        return "flash" if query.dtype in _HALF and mask is None and query.shape[-1] <= _FLASH_HEAD else "efficient"


def _to_float32(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.is_floating_point() else value


def _dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Dropout as on a GPU, which saves a mask of 1 byte per element; a CPU saves the scaled noise."""
    if not training or p == 0:
        return input
    return torch.native_dropout(input, p, training)[0]
