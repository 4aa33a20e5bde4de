"""The edit ``scale``: rescales a narrow model's activations to those of the full model in training (HeteroFL)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import Tensor, nn

from edgefl.work.description import Edit


def _scaled(share: float, layer: nn.Module, args: tuple[Any, ...], out: Tensor) -> Tensor | None:
    return out / share if layer.training else None


class Scale:
    """HeteroFL's scaler; ``args.layers`` has for each linear layer the share of its width that remains.

    In training a layer's output is divided by that share; at inference it isn't.
    """

    @staticmethod
    def names(edit: Edit) -> set[str]:
        """The empty set: the edit adds no parameter."""
        return set()

    @staticmethod
    def restrict(edit: Edit, active: Callable[[str], bool], received: set[str]) -> Edit | None:
        """The edit itself, which doesn't depend on what trains."""
        return edit

    @staticmethod
    def apply(edit: Edit, module: nn.Module, received: Mapping[str, Tensor]) -> None:
        """Register the hooks that scale the layers' outputs."""
        for name, share in edit.args["layers"].items():
            layer: Any = module.get_submodule(name)
            layer.scaled = layer.register_forward_hook(partial(_scaled, share))

    @staticmethod
    def fold(edit: Edit, module: nn.Module) -> None:
        """Remove the hooks from the layers."""
        for name in edit.args["layers"]:
            layer: Any = module.get_submodule(name)
            layer.scaled.remove()
            del layer.scaled
