"""The edit ``scale``: a narrow model's activations at the scale of the whole one's while it trains (HeteroFL)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import Tensor, nn

from edgefl.work.description import Edit


def _scaled(share: float, layer: nn.Module, args: tuple[Any, ...], out: Tensor) -> Tensor | None:
    return out / share if layer.training else None


class Scale:
    """HeteroFL's scaler: args ``layers``, the share of its width that each linear layer has left.

    While training a layer's output is divided by that share; at inference it isn't.
    """

    @staticmethod
    def names(edit: Edit) -> set[str]:
        """It adds no parameter."""
        return set()

    @staticmethod
    def restrict(edit: Edit, active: Callable[[str], bool], received: set[str]) -> Edit | None:
        """It doesn't depend on what trains."""
        return edit

    @staticmethod
    def apply(edit: Edit, module: nn.Module, received: Mapping[str, Tensor]) -> None:
        """Hook the layers."""
        for name, share in edit.args["layers"].items():
            layer: Any = module.get_submodule(name)
            layer.scaled = layer.register_forward_hook(partial(_scaled, share))

    @staticmethod
    def fold(edit: Edit, module: nn.Module) -> None:
        """Take the hooks off."""
        for name in edit.args["layers"]:
            layer: Any = module.get_submodule(name)
            layer.scaled.remove()
            del layer.scaled
