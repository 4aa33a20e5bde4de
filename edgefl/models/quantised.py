"""Frozen linear layers in 4 or 8 bits, as QLoRA has them (Dettmers et al. 2023, arXiv 2305.14314), by bitsandbytes.

``nf4``: 4 bits for each weight, one of 16 quantiles of the normal distribution times the largest magnitude of its block
of 64.  ``nf4-double``: these magnitudes in 8 bits, in blocks of 256 (double quantisation).  ``int8``: 8 bits for each
weight, times the largest magnitude of its row (LLM.int8's weights, Dettmers et al. 2022).

A layer dequantises its weight for each product, and again in the backward pass, which keeps what is packed alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F
from torch.utils._python_dispatch import _disable_current_modes

from edgefl.errors import MethodError, install_hint
from edgefl.models import adapters
from edgefl.models.model import Model, ModelDescription, QuantisedDescription, Quantiser

BLOCK, SCALES = 64, 256
"""Weights that share a magnitude, and magnitudes that share one of theirs: QLoRA's sizes."""
LARGEST = 127
"""The largest of int8's values, on either side of zero."""
PARTS = ("weight_packed", "weight_absmax", "weight_absmax_scale", "weight_absmax_mean")
"""Parameters of a quantised layer in place of its weight: none trains."""


def without(description: ModelDescription) -> ModelDescription:
    """The description of the same model whose weights are all in their towers' dtypes."""
    return cast(ModelDescription, {name: value for name, value in description.items() if name != "quantize"})


def is_part(name: str) -> bool:
    """Whether a parameter is what a quantised layer has in place of its weight."""
    return name.rpartition(".")[2] in PARTS


def describe(
    description: ModelDescription, module: nn.Module, asked: Mapping[str, Quantiser], trains: Callable[[str], bool]
) -> ModelDescription:
    """The description of a model with the towers that are ``asked`` for quantised, in the blocks that never train.

    ``module`` is the model that isn't quantised; ``trains`` says whether a parameter trains at any time.  Raises
    MethodError, which begins with the field, if bitsandbytes isn't installed, for a tower without linear layers in its
    blocks, and for weights that should train: all of a tower's, or those that an adapter names beside it.
    """
    found: dict[str, QuantisedDescription] = {}
    for tower, to in asked.items():
        field = f"model.{tower}.quantize"
        check_installed(f"{field}: {to}")
        if tower not in description["towers"]:
            continue
        if description.get("adapter", {}).get("name") == "dora":
            raise MethodError(f"{field}: dora reads the lengths of whole weights: leave quantize out, or take lora")
        layers = [name for name, _ in _layers(module, tower)]
        if not layers:
            made = description["towers"][tower].get("tower", description["name"])
            raise MethodError(f"{field}: a {made} has no linear layers in its blocks, which {to} would hold")
        blocks = list(dict.fromkeys(map(_block, layers)))
        trained = list(dict.fromkeys(_block(name) for name in layers if trains(f"{name}.weight")))
        if trained and ("adapter" in description or trained == blocks):
            named = ", ".join(f"{tower}.blocks.{i}" for i in trained[:3])
            more = f" and {len(trained) - 3} more" if len(trained) > 3 else ""
            remedy = (
                "leave them out of adapter.also"
                if "adapter" in description
                else "add an adapter (adapter: lora), or freeze blocks (schedule: frozen-prefix)"
            )
            raise MethodError(f"{field}: {to} has quantised weights that should train, of {named}{more}: {remedy}")
        found[tower] = {"to": to, "blocks": [block for block in blocks if block not in trained]}
    return {**description, "quantize": found} if found else description


def quantise(module: nn.Module, description: ModelDescription) -> None:
    """Quantise the layers of a model that was just built, as its description says.

    On the meta device they get the shapes.
    """
    for tower, described in description.get("quantize", {}).items():
        for name, layer in list(_layers(module, tower)):
            if _block(name) in described["blocks"]:
                _quantise(layer, described["to"])


def restore(module: nn.Module) -> None:
    """Put the quantised layers of a model back into the dtypes of their towers: each is again what it was."""
    for layer in module.modules():
        if isinstance(layer, Quantised):
            weight = layer.weight
            for name in PARTS:
                layer._parameters.pop(name, None)
            layer.__class__ = type(layer).__mro__[2]  # the class that ``_quantised_class`` put behind Quantised
            layer.register_parameter("weight", nn.Parameter(weight))
    if isinstance(module, Model):
        module.description = without(module.description)


def restored_model(module: Any) -> Any:
    """A model whose layers are in the dtypes of their towers: itself, or a copy if some are quantised."""
    if not any(isinstance(layer, Quantised) for layer in module.modules()):
        return module
    copied = deepcopy(module)
    restore(copied)
    return copied


def _layers(module: nn.Module, tower: str) -> Iterator[tuple[str, nn.Module]]:
    """The linear layers of a tower's blocks by name, without those of exits."""
    for name, layer in adapters.linear_layers(module):
        if name.startswith(f"{tower}.blocks.") and ".exit." not in name:
            yield name, layer


def _block(name: str) -> int:
    return int(name.split(".")[2])


# --- a layer ---------------------------------------------------------------------------------------------------------


def check_installed(what: str) -> None:
    """Raise MethodError, which says ``what`` needs it, if bitsandbytes isn't installed."""
    if find_spec("bitsandbytes") is None:
        raise MethodError(
            f"{what} needs a package that isn't installed: pip install bitsandbytes (or, {install_hint('quant')})"
        )


@cache
def library() -> Any:
    """bitsandbytes' operators, which its import registers.

    It has torch compile its own fallbacks, for which an import of torch's compiler would take seconds in each process:
    they stay as they are written.
    """
    # it warns of a kernel for inference in bfloat16 that comes from a hub
    logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
    module: Any = torch
    compiler, module.compile = torch.compile, lambda model=None, **options: model or (lambda each: each)
    try:
        import bitsandbytes  # noqa: F401
    finally:
        module.compile = compiler
    return torch.ops.bitsandbytes


class Quantised(nn.Module):
    """A linear layer, or GPT-2's, whose weight is packed.  ``dtype`` is the dtype in which it computes.

    Autocast computes in its own dtype, which the weight is dequantised to.
    """

    to_kind: Quantiser
    dtype: torch.dtype
    shape: tuple[int, int]
    transposed: bool
    bias: Tensor | None
    weight_packed: Tensor
    weight_absmax: Tensor
    weight_absmax_scale: Tensor
    weight_absmax_mean: Tensor

    @property
    def weight(self) -> Tensor:
        """The dequantised weight, as the layer had it: ``[out, in]``, of GPT-2's layers ``[in, out]``."""
        weight = self.dequantise(self.dtype)
        return weight.T.contiguous() if self.transposed else weight

    def dequantise(self, dtype: torch.dtype) -> Tensor:
        """The weight ``[out, in]`` in a dtype."""
        rows, columns = self.shape
        if self.to_kind == "int8":  # as bitsandbytes trains on a CPU
            return self.weight_packed.to(dtype).mul_(self.weight_absmax[:, None] * (1 / LARGEST))
        absmax, size = self.weight_absmax, rows * columns
        if self.to_kind == "nf4-double":
            code = torch.tensor(_code(), device=absmax.device)
            absmax = library().dequantize_blockwise(absmax, self.weight_absmax_scale, code, SCALES, torch.float32)
            absmax.add_(self.weight_absmax_mean)
        # blocks go on over the ends of rows; an odd size has half a byte of padding
        flat = library().dequantize_4bit(self.weight_packed, absmax, BLOCK, "nf4", [1, size + size % 2], dtype)
        return cast(Tensor, flat[0, :size].view(rows, columns))

    def forward(self, x: Tensor) -> Tensor:
        """``[..., in] -> [..., out]``.  For the gradient of ``x`` not the weight is saved, but how to make it again."""
        device = x.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else self.dtype
        weight = self.dequantise(dtype)
        with saved_tensors_hooks(partial(self._pack_saved, weight.untyped_storage()._cdata, dtype), _unpack_saved):
            return F.linear(x, weight, self.bias)

    def _pack_saved(self, storage: int, dtype: torch.dtype, value: Tensor) -> Tensor | _Again:
        if value.untyped_storage()._cdata != storage:
            return value
        return _Again(self, dtype, value.shape, value.stride())


@cache
def _code() -> tuple[float, ...]:
    """The 256 values of 8 bits, more of them near zero (Dettmers 2016)."""
    from bitsandbytes import functional

    made: Any = functional
    with _disable_current_modes():  # it is no part of the work in which it is first asked for
        values: list[float] = made.create_dynamic_map().tolist()
    return tuple(values)


@dataclass(frozen=True, eq=False)
class _Again:
    """What the backward pass finds of a weight that it dequantises again."""

    layer: Quantised
    dtype: torch.dtype
    shape: torch.Size
    stride: tuple[int, ...]


def _unpack_saved(saved: Tensor | _Again) -> Tensor:
    if isinstance(saved, _Again):
        return saved.layer.dequantise(saved.dtype).as_strided(saved.shape, saved.stride)
    return saved


@cache
def _quantised_class(cls: Any) -> Any:
    return type(cls.__name__, (Quantised, cls), {})


def _quantise(layer: nn.Module, to: Quantiser) -> None:
    made: Any = layer
    weight = layer._parameters.pop("weight")
    assert weight is not None
    made.to_kind, made.dtype, made.transposed = to, weight.dtype, not isinstance(layer, nn.Linear)
    values = weight.detach().T.contiguous() if made.transposed else weight.detach()
    made.shape = tuple(values.shape)
    # A swap of the class keeps the layer itself, with its hooks and its place in the model.  Python allows it while
    # neither class has slots (tried with torch 2.13).  The tests of quantised gradients see it fail.
    layer.__class__ = _quantised_class(cast(Any, type(layer)))
    packed = _shapes(values, to) if values.is_meta else _pack_weight(values, to)
    for name, value in zip(PARTS, packed, strict=False):
        layer.register_parameter(name, nn.Parameter(value, requires_grad=False))


def _pack_weight(weight: Tensor, to: Quantiser) -> Sequence[Tensor]:
    """The values of ``PARTS``, as many as there are, of a weight ``[out, in]``."""
    if to == "int8":
        packed, absmax, _ = library().int8_vectorwise_quant(weight)
        return packed, absmax
    packed, absmax = library().quantize_4bit(weight, BLOCK, "nf4", torch.uint8)
    if to == "nf4":
        return packed, absmax
    mean = absmax.mean()
    absmax, scale = library().quantize_blockwise(absmax - mean, torch.tensor(_code()), SCALES)
    return packed, absmax, scale, mean


def _shapes(weight: Tensor, to: Quantiser) -> Sequence[Tensor]:
    """As ``_pack_weight``, of a weight without values: what the library isn't needed for."""
    empty = partial(torch.empty, device=weight.device)
    if to == "int8":
        return empty(weight.shape, dtype=torch.int8), empty(weight.shape[0])
    blocks = -(-weight.numel() // BLOCK)
    packed = empty((weight.numel() + 1) // 2, 1, dtype=torch.uint8)
    if to == "nf4":
        return packed, empty(blocks)
    return packed, empty(blocks, dtype=torch.uint8), empty(-(-blocks // SCALES)), empty(())
