"""A tower of a plug-in, built and run on tensors without data before a scenario is composed."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from edgefl import registry
from edgefl.errors import EdgeflError, MethodError, text_of
from edgefl.models.model import TowerDescription

Build = Callable[[TowerDescription, bool], nn.Module]


def check_tower(name: str, modality: str, build: Build, description: TowerDescription) -> None:
    """Raise MethodError unless the tower has the depth that is asked for, and gives what its ``width`` says.

    It is built at full depth and with one block, and run on a batch of two.
    """
    full = description["depth"]
    for depth in sorted({1, full}):
        wanted = cast(TowerDescription, {k: v for k, v in description.items() if k != "checkpointing"})
        with torch.device("meta"):
            module = build({**wanted, "depth": depth}, True)
            _check_parts(name, module, depth)
            if depth == full:
                _check_forward(name, modality, module, description)


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
    channels, size, tokens, frames, bins = (
        cast(int, description.get(field, 0)) for field in ("channels", "size", "tokens", "frames", "bins")
    )
    shapes = {"image": (2, channels, size, size), "text": (2, tokens), "audio": (2, frames, bins)}
    shape, dtype = shapes[modality], torch.int64 if modality == "text" else torch.float32
    names, width = {parameter for parameter, _ in module.named_parameters()}, module.width
    try:
        out = module(torch.zeros(shape, dtype=dtype))
        read = module.pool_tokens(out) if hasattr(module, "pool_tokens") else out[:, 0]  # type: ignore[operator]
    except EdgeflError:
        raise
    except Exception as error:  # whatever the module does
        found = registry.plug_ins().locate_fault(error)
        place = f" ({found[0].file}:{found[0].line})" if found is not None else ""
        said = " ".join(text_of(error).split())
        raise MethodError(f"tower {name}: forward fails on {modality} {list(shape)}{place}: {said}") from error
    if not isinstance(read, Tensor) or read.shape != (2, width):
        given = list(out.shape) if isinstance(out, Tensor) else type(out).__name__
        taken = list(read.shape) if isinstance(read, Tensor) else type(read).__name__
        raise MethodError(
            f"tower {name}: forward gives {given} of {modality} {list(shape)}, and {taken} is read of it; expected "
            f"[2, {width}], as self.width says"
        )
    if made := sorted({parameter for parameter, _ in module.named_parameters()} - names):
        raise MethodError(f"tower {name}: {made[0]} is made in forward; make all parameters in __init__")
