"""A tower of a plug-in, built and run on tensors without data before a scenario is composed."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from edgefl import registry, seeds
from edgefl.errors import EdgeflError, MethodError, text_of
from edgefl.modalities import MODALITIES
from edgefl.models.model import DTYPES, TowerDescription
from edgefl.models.tower import running_as_written, without_compiler

_ADVICE = re.compile(r" (You may have run into this|This could be because|NotImplementedError:) .*")
"""What torch adds to the names of an operator and of tensors without data, for those who write operators."""

Build = Callable[[TowerDescription, bool], nn.Module]


@seeds.seeding_globals(0)
def check_tower(name: str, modality: str, build: Build, description: TowerDescription) -> None:
    """Raise MethodError unless the tower has the depth that is asked for, and gives what its ``width`` says.

    It is built at full depth and with one block, and run on a batch of two.
    """
    full = description["depth"]
    for depth in sorted({1, full}):
        wanted = cast(TowerDescription, {k: v for k, v in description.items() if k != "checkpointing"})
        with torch.device("meta"):
            module = build({**wanted, "depth": depth}, True)
            module = without_compiler(name, module) if isinstance(module, nn.Module) else module
            _check_parts(name, module, depth)
            check_tensors(f"tower {name}", module)
            module.to("meta")  # from numpy's arrays come tensors that no context makes elsewhere
            if depth == full:
                _check_forward(name, modality, module, description)


def one_line(error: BaseException) -> str:
    """What an exception of a module's code says, in a line."""
    return _ADVICE.sub("", " ".join(text_of(error).split())) or type(error).__name__


def check_tensors(whose: str, module: nn.Module) -> None:
    """Raise MethodError for a parameter or buffer that can't travel: lazy, sparse, complex, or of an unknown dtype.

    Complex values are refused, because averages, codecs and robust rules take the values of a tensor for real numbers.
    """
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        dtype = str(tensor.dtype).removeprefix("torch.")
        if is_lazy(tensor):
            fault = "is made in forward; make all parameters in __init__"
        elif tensor.layout is not torch.strided:
            fault = "is sparse; hold it as a dense tensor"
        elif any(step == 0 and size > 1 for step, size in zip(tensor.stride(), tensor.shape, strict=True)):
            fault = "has elements that share memory; clone() it"
        elif tensor.is_complex():
            fault = f"is {dtype}; hold it as torch.view_as_real of it, and take torch.view_as_complex in forward"
        elif dtype not in DTYPES:
            fault = f"is {dtype}, in which nothing is sent; allowed: {', '.join(DTYPES)}"
        else:
            continue
        raise MethodError(f"{whose}: {name} {fault}")


def _check_parts(name: str, module: object, depth: int) -> None:
    if not isinstance(module, nn.Module):
        raise MethodError(f"tower {name}: build gives {type(module).__name__}, not a torch module")
    if not isinstance(getattr(module, "width", None), int):
        raise MethodError(f"tower {name}: set self.width in its constructor, the width of what is read of it")
    blocks = getattr(module, "blocks", None)
    if blocks is not None and not isinstance(blocks, nn.ModuleList | nn.Sequential):
        raise MethodError(f"tower {name}: its blocks are {type(blocks).__name__}, not an nn.ModuleList")
    if blocks is not None and len(blocks) != depth:
        raise MethodError(f"tower {name}: it has {len(blocks)} blocks where description['depth'] is {depth}")


def _check_forward(name: str, modality: str, module: nn.Module, description: TowerDescription) -> None:
    shape = (2, *(cast(int, description.get(name, 0)) for name in MODALITIES[modality].shape))
    dtype: torch.dtype = getattr(torch, MODALITIES[modality].dtype)
    names, width = {parameter for parameter, _ in module.named_parameters()}, module.width
    try:
        with running_as_written():
            out = module(torch.zeros(shape, dtype=dtype))
        read = module.pool_tokens(out) if hasattr(module, "pool_tokens") else out[:, 0]  # type: ignore[operator]
    except EdgeflError:
        raise
    except Exception as error:  # whatever the module does
        found = registry.plug_ins().locate_fault(error)
        place = f" ({found[0].file}:{found[0].line})" if found is not None else ""
        raise MethodError(
            f"tower {name}: forward fails on {modality} {list(shape)}{place}: {one_line(error)}"
        ) from error
    if not isinstance(read, Tensor) or read.shape != (2, width):
        given = list(out.shape) if isinstance(out, Tensor) else type(out).__name__
        taken = list(read.shape) if isinstance(read, Tensor) else type(read).__name__
        raise MethodError(
            f"tower {name}: forward gives {given} of {modality} {list(shape)}, and {taken} is read of it; expected "
            f"[2, {width}], as self.width says"
        )
    if read.dtype != torch.float32:
        raise MethodError(f"tower {name}: forward gives {str(read.dtype).removeprefix('torch.')}; expected float32")
    if made := sorted({parameter for parameter, _ in module.named_parameters()} - names):
        raise MethodError(f"tower {name}: {made[0]} is made in forward; make all parameters in __init__")
