"""``low-rank``: a linear layer's weight stays frozen under a trained product of two thin matrices."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edgefl.work import Edit


class LowRankLinear(nn.Linear):
    """``y = (W + U V) x + b``."""

    thin: nn.Parameter
    wide: nn.Parameter

    def forward(self, x: Tensor) -> Tensor:
        """``[..., in] -> [..., out]``."""
        return F.linear(x, self.weight + self.wide @ self.thin, self.bias)


class LowRank:
    """Args ``layers`` and ``rank``.  Adds ``<layer>.thin`` [rank, in] and ``<layer>.wide`` [out, rank], from zero."""

    @staticmethod
    def names(edit: Edit) -> set[str]:
        """The two factors of every layer."""
        return {f"{layer}.{name}" for layer in edit.args["layers"] for name in ("thin", "wide")}

    @staticmethod
    def restrict(edit: Edit, active: Callable[[str], bool], received: set[str]) -> Edit | None:
        """The layers that train."""
        layers = [layer for layer in edit.args["layers"] if active(f"{layer}.weight")]
        return Edit(edit.name, {**edit.args, "layers": layers}) if layers else None

    @staticmethod
    def apply(edit: Edit, module: nn.Module, received: Mapping[str, Tensor]) -> None:
        """Nothing is received: one factor begins at random, the other at zero."""
        for name in edit.args["layers"]:
            layer = module.get_submodule(name)
            like, rank = layer.weight, edit.args["rank"]
            thin = torch.randn(rank, layer.in_features, dtype=like.dtype, device=like.device) * 0.02
            layer.thin = nn.Parameter(thin)
            layer.wide = nn.Parameter(torch.zeros(layer.out_features, rank, dtype=like.dtype, device=like.device))
            layer.__class__ = LowRankLinear

    @staticmethod
    def fold(edit: Edit, module: nn.Module) -> None:
        """Add the product to the weight."""
        with torch.no_grad():
            for name in edit.args["layers"]:
                layer = module.get_submodule(name)
                layer.weight.add_(layer.wide @ layer.thin)
                del layer.thin, layer.wide
                layer.__class__ = nn.Linear
