"""The edit ``gate``: FedCola's complementary training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NotRequired, TypedDict, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edgefl.errors import MethodError
from edgefl.work.description import Edit


class GatedLinear(nn.Linear):
    """``y = (W + g A) x + b``: a linear layer plus another modality's weight A times a scalar gate g."""

    partner: nn.Parameter
    gate: nn.Parameter

    def forward(self, x: Tensor) -> Tensor:
        """``[..., in] -> [..., out]``; the bias is the layer's own."""
        return F.linear(x, self.weight + self.gate * self.partner, self.bias)


class GateArgs(TypedDict):
    """Arguments of ``Gate``."""

    layers: Sequence[str]
    pieces: NotRequired[Mapping[str, Sequence[str]]]


class Gate:
    """FedCola's complementary local training by gated layers; ``args.layers`` names linear layers.

    Each layer gets ``<layer>.partner``, as received, and ``<layer>.gate``, shape [1], which starts at 0.  Folding
    sets ``W <- W + g A``, which is exact because the layer is linear.  ``args.pieces``, if given, names for some layers
    the tensors received that its partner consists of, one below the other: query, key and value for one layer.
    """

    @staticmethod
    def names(edit: Edit) -> set[str]:
        """``<layer>.partner`` and ``<layer>.gate`` of every layer."""
        return {f"{layer}.{name}" for layer in cast(GateArgs, edit.args)["layers"] for name in ("partner", "gate")}

    @staticmethod
    def restrict(edit: Edit, active: Callable[[str], bool], received: set[str]) -> Edit | None:
        """Keep the layers that are active and whose partner is received."""
        args = cast(GateArgs, edit.args)
        layers = [n for n in args["layers"] if active(f"{n}.weight") and received.issuperset(_pieces(edit, n))]
        kept: GateArgs = {**args, "layers": layers}
        if "pieces" in args:
            kept["pieces"] = {name: pieces for name, pieces in args["pieces"].items() if name in layers}
        return Edit(edit.name, kept) if layers else None

    @staticmethod
    def apply(edit: Edit, module: nn.Module, received: Mapping[str, Tensor]) -> None:
        """Turn the layers into gated ones.  Raises MethodError, and changes none, if one isn't linear or lacks A."""
        layers = {}
        for name in cast(GateArgs, edit.args)["layers"]:
            layer, pieces = module.get_submodule(name), _pieces(edit, name)
            if not isinstance(layer, nn.Linear):
                raise MethodError(f"only a linear layer can have a gate; {name} is a {type(layer).__name__}")
            if missing := [piece for piece in pieces if piece not in received]:
                raise MethodError(f"the gate of {name} needs {missing[0]}, which was not received")
            layers[layer] = [received[piece] for piece in pieces]
        for layer, parts in layers.items():
            partner = torch.cat(parts) if len(parts) > 1 else parts[0].clone()
            layer.partner = nn.Parameter(partner.to(layer.weight.dtype))
            layer.gate = nn.Parameter(torch.zeros(1, dtype=layer.partner.dtype, device=layer.partner.device))
            # in place, since others refer to the layer and its weight; tried with torch 2.13, and test_gate.py sees it
            layer.__class__ = GatedLinear

    @staticmethod
    def fold(edit: Edit, module: nn.Module) -> None:
        """Merge the partners into the weights, and restore plain linear layers."""
        with torch.no_grad():
            for name in cast(GateArgs, edit.args)["layers"]:
                layer = cast(GatedLinear, module.get_submodule(name))
                layer.weight.add_(layer.gate * layer.partner)
                del layer.partner, layer.gate
                layer.__class__ = nn.Linear  # type: ignore[assignment]


def _pieces(edit: Edit, layer: str) -> list[str]:
    """Names of the tensors received that a gated layer's partner consists of."""
    return list(cast(GateArgs, edit.args).get("pieces", {}).get(layer, [f"{layer}.partner"]))
