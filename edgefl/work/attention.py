"""Choice of the attention kernel: torch's own, a named back-end, or a GPU's kernel without a GPU, and its others.

Every tower calls ``torch.nn.functional.scaled_dot_product_attention``; memory, FLOPs and speed depend on the kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from edgefl.errors import MethodError
from edgefl.models.tower import RECOMPUTING
from edgefl.work.recurrence import fused_gru

BACKENDS = {
    "math": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}
_FLASH_HEAD, _CUDNN_HEAD, _STEP = 256, 128, 8
"""The widest heads that torch's kernels take, and the step of cuDNN's widths (``sdp_utils.cpp`` of torch)."""
_MASK_STEP = 8
"""torch pads a mask's rows to multiples of so many elements for the memory-efficient kernel."""
_HALF = (torch.float16, torch.bfloat16)
_GROUPED_EFFICIENT = torch.torch_version.TorchVersion(torch.__version__) >= "2.14"
"""Whether this torch's memory-efficient kernel takes fewer heads of keys and values (pull request 191085 of torch)."""

_FLOAT32_ON_GPU = frozenset(
    getattr(place, name)
    for place in (torch, torch.Tensor, F)
    for name in "exp group_norm layer_norm log log_softmax logsumexp pow __pow__ rsqrt softmax softplus".split()
    if hasattr(place, name)
)
"""What autocast computes in float32 on a GPU only (torch's ``autocast_mode.h``), but for what layers hardly call."""
_ATTEND, _DROPOUTS = F.scaled_dot_product_attention, (F.dropout, torch.dropout)


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
        if func is F.multi_head_attention_forward:
            return self._multi_head(*args, **kwargs)
        if func is _ATTEND:
            return self._attend(*args, **kwargs)
        if func in _DROPOUTS:
            return _dropout(*args, **kwargs)
        if func is torch.gru and isinstance(args[2], list):  # of a packed batch these are the sizes' states
            return fused_gru(*args)
        if func in _FLOAT32_ON_GPU and torch.is_autocast_enabled("cpu"):
            with torch.autocast("cpu", enabled=False):
                return func(*map(_to_float32, args), **{name: _to_float32(value) for name, value in kwargs.items()})
        return func(*args, **kwargs)

    def _multi_head(self, *args: Any, **kwargs: Any) -> Any:
        """torch's multi-head attention, which it runs outside of the mode; its inner calls are answered as others."""
        before = {name: getattr(F, name) for name in ("scaled_dot_product_attention", "dropout", "softmax")}
        try:
            for name, func in before.items():
                vars(F)[name] = lambda *a, func=func, **k: self.__torch_function__(func, (), a, k)
            return F.multi_head_attention_forward(*args, **kwargs)
        finally:
            vars(F).update(before)

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
            if attn_mask is not None and attn_mask.is_floating_point():
                attn_mask = attn_mask.to(dtype)
        asked = AttentionCall(query, key, value, attn_mask, is_causal, enable_gqa)
        kernel = kernel_of(self.choice, asked)
        if kernel == "math" and dropout_p and not enable_gqa:
            with torch.autocast("cpu", enabled=False):
                return _products(asked, dropout_p, scale)
        if kernel == "math":
            with sdpa_kernel(SDPBackend.MATH):
                return _ATTEND(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        if kernel == "flash":
            width = query.shape[-1]
            scale = width**-0.5 if scale is None else scale
            if width % _STEP:  # the kernel takes heads in steps of 8; torch pads them
                query, key, value = (F.pad(t, (0, -width % _STEP)) for t in (query, key, value))
            out = torch.ops.aten._scaled_dot_product_flash_attention(
                query, key, value, dropout_p, is_causal, scale=scale
            )[0]
            return out[..., :width]  # type: ignore[no-any-return]
        grads = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
        if kernel == "efficient":
            call, mask = torch.ops.aten._scaled_dot_product_efficient_attention, _align_mask(asked)
        else:
            call, mask = torch.ops.aten._scaled_dot_product_cudnn_attention, attn_mask
        return call(query, key, value, mask, grads, dropout_p, is_causal, scale=scale)[0]  # type: ignore[no-any-return]


@dataclass(frozen=True)
class AttentionCall:
    """A call of attention: queries ``[B, H, N, D]``, keys and values ``[B, K, M, D]``; ``grouped``: K may divide H."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    causal: bool
    grouped: bool

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Samples, heads, queries, keys."""
        samples, heads, queries, _ = self.query.shape
        return samples, heads, queries, self.key.shape[-2]

    def heads_fit(self, groups: bool) -> bool:
        """Whether a kernel takes these heads, one that takes groups of queries or one that doesn't."""
        inputs = self.query, self.key, self.value
        if any(t.dim() != 4 for t in inputs) or len({t.shape[0] for t in inputs}) > 1:
            return False
        queries, keys, values = (t.shape[1] for t in inputs)
        if keys != values:
            return False
        if self.grouped:
            return queries % keys == 0 if groups else queries == keys
        return queries == keys or (_GROUPED_EFFICIENT and keys == 1)


_ORDER = ("flash", "efficient", "math")
"""torch's order on a GPU of compute capability 8; one of 9 or 10 with a new cuDNN begins with cuDNN's kernel."""


def kernel_of(choice: str, asked: AttentionCall) -> str:
    """The kernel with which a GPU answers a call: "flash", "efficient", "cudnn" or "math".

    Raises MethodError if ``choice`` names one that doesn't take the call.
    """
    if choice == "device":
        return next(name for name in _ORDER if not _refusal(name, asked))
    if refused := _refusal(choice, asked):
        raise MethodError(f"training.attention is {choice!r}, {refused}")
    return choice


def _refusal(kernel: str, asked: AttentionCall) -> str:
    """Why a GPU's kernel doesn't take a call, empty if it does.

    The conditions of torch 2.11 to 2.15, ``aten/src/ATen/native/transformers/cuda/sdp_utils.cpp``.
    """
    if kernel == "math":
        return ""
    half = asked.query.dtype in _HALF
    if kernel in ("flash", "cudnn") and not half:
        return (
            "which on a GPU supports half precision only: set training.precision to bfloat16 or float16, or "
            "training.attention to efficient"
        )
    if not half and asked.query.dtype != torch.float32:
        return "which supports float32 and half precision only: set it to device or math"
    if kernel == "flash" and asked.mask is not None:
        return "which supports no mask: set it to device or efficient"
    if not asked.heads_fit(groups=kernel != "efficient" or _GROUPED_EFFICIENT):
        return (
            f"which in torch {torch.__version__} doesn't take queries {tuple(asked.query.shape)} over keys "
            f"{tuple(asked.key.shape)} and values {tuple(asked.value.shape)}: set it to device or math"
        )
    width, keys, values = (t.shape[-1] for t in (asked.query, asked.key, asked.value))
    _, _, count, length = asked.shape
    step = _STEP if half else 4
    fits, takes = {
        "flash": (width == keys == values and width <= _FLASH_HEAD, f"one width of {_FLASH_HEAD} at most"),
        "cudnn": (
            width == keys and not width % _STEP and not values % _STEP and max(width, values) <= _CUDNN_HEAD,
            f"widths in steps of {_STEP}, {_CUDNN_HEAD} at most",
        ),
        "efficient": (width == keys and not width % step and not values % step, f"widths in steps of {step}"),
    }[kernel]
    if not fits:
        return f"which takes heads of {takes}; here {width} of queries and {values} of values: set it to device or math"
    if kernel == "flash" and asked.causal and count != length:
        return f"which takes causal attention of as many keys as queries; here {count} and {length}: set it to device"
    if kernel == "cudnn" and length == 1:
        return "which takes 2 keys or more: set it to device or math"
    return ""


def _align_mask(asked: AttentionCall) -> Tensor | None:
    """The mask as torch gives it to the memory-efficient kernel: added to the scores, its rows in steps of 8."""
    mask = asked.mask
    if mask is None:
        return None
    if mask.dtype == torch.bool:
        mask = torch.where(mask, 0.0, torch.scalar_tensor(-math.inf, dtype=asked.query.dtype, device=mask.device))
    if mask.stride(-1) != 1 or any(stride % _MASK_STEP for stride in mask.stride()[:-1]):
        length = mask.shape[-1]
        mask = F.pad(mask, (0, _MASK_STEP - length % _MASK_STEP))[..., :length]
    return mask.expand(asked.shape)


def _products(asked: AttentionCall, dropout: float, scale: float | None) -> Tensor:
    """As torch's math kernel, whose dropout on a CPU would save noise of the scores' dtype in place of a byte."""
    query, key, value = (t.float() if t.dtype in _HALF else t for t in (asked.query, asked.key, asked.value))
    factor = (query.shape[-1] ** -0.5 if scale is None else scale) ** 0.5
    scores = (query * factor) @ (key.mT * factor)
    if asked.causal:
        scores += torch.empty(scores.shape[-2:], dtype=scores.dtype)
    if (mask := _align_mask(asked)) is not None:
        scores += mask
    return (_dropout(torch._safe_softmax(scores, -1), dropout) @ value).to(asked.query.dtype)


def _to_float32(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.is_floating_point() else value


def _dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Dropout as on a GPU, which saves a mask of 1 byte per element; a CPU saves the scaled noise."""
    if not training or p == 0:
        return input
    return torch.native_dropout(input, p, training)[0]
