"""Edits: changes of a model that last for one work.  ``gate`` is FedCola's complementary training."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edgefl import registry
from edgefl.errors import MethodError
from edgefl.work.description import Edit, Work


class EditKind(Protocol):
    """Interface of a registered edit.

    Its life in a work: ``apply`` before the first pass; training; ``upload``, if it has that function; ``fold`` before
    anything is sent.  After ``fold`` the module must be as it was: it is used again for other works.
    """

    @staticmethod
    def names(edit: Edit) -> set[str]:
        """Names of the parameters that the edit adds to the model."""
        ...

    @staticmethod
    def restrict(edit: Edit, active: Callable[[str], bool], received: set[str]) -> Edit | None:
        """The edit for the parameters that are active, given the names received; None if nothing is left."""
        ...

    @staticmethod
    def apply(edit: Edit, module: nn.Module, received: Mapping[str, Tensor]) -> None:
        """Change the module in place, before any pass runs."""
        ...

    @staticmethod
    def fold(edit: Edit, module: nn.Module) -> None:
        """Merge what was learnt into the module's own parameters, and restore its structure."""
        ...


class UploadingEdit(EditKind, Protocol):
    """An edit that owns part of what goes up: tensors that are gone after ``fold``, such as an adapter's."""

    @staticmethod
    def upload(edit: Edit, module: nn.Module) -> Mapping[str, Tensor]:
        """Tensors by the names of the items of ``up`` that are sent from them; called after the last pass."""
        ...


class GatedLinear(nn.Linear):
    """``y = (W + g A) x + b``: a linear layer plus another modality's weight A times a scalar gate g."""

    partner: nn.Parameter
    gate: nn.Parameter

    def forward(self, x: Tensor) -> Tensor:
        """``[..., in] -> [..., out]``; the bias is the layer's own."""
        return F.linear(x, self.weight + self.gate * self.partner, self.bias)


class Gate:
    """FedCola's complementary local training (eq. of the gated layer); ``args.layers`` names linear layers.

    Each layer gets ``<layer>.partner``, as received, and ``<layer>.gate``, shape [1], which starts at 0.  Folding
    sets ``W <- W + g A``, which is exact because the layer is linear.  ``args.pieces``, if given, names for some layers
    the tensors received that its partner consists of, one below the other: query, key and value for one layer.
    """

    @staticmethod
    def names(edit: Edit) -> set[str]:
        """``<layer>.partner`` and ``<layer>.gate`` of every layer."""
        return {f"{layer}.{name}" for layer in edit.args["layers"] for name in ("partner", "gate")}

    @staticmethod
    def restrict(edit: Edit, active: Callable[[str], bool], received: set[str]) -> Edit | None:
        """Keep the layers that are active and whose partner is received."""
        layers = [n for n in edit.args["layers"] if active(f"{n}.weight") and received.issuperset(_pieces(edit, n))]
        kept = {**edit.args, "layers": layers}
        if "pieces" in edit.args:
            kept["pieces"] = {name: pieces for name, pieces in edit.args["pieces"].items() if name in layers}
        return Edit(edit.name, kept) if layers else None

    @staticmethod
    def apply(edit: Edit, module: nn.Module, received: Mapping[str, Tensor]) -> None:
        """Turn the layers into gated ones.  Raises MethodError, and changes none, if one isn't linear or lacks A."""
        layers = {}
        for name in edit.args["layers"]:
            layer, pieces = module.get_submodule(name), _pieces(edit, name)
            if not isinstance(layer, nn.Linear):
                raise MethodError(f"only a linear layer can have a gate; {name} is a {type(layer).__name__}")
            if missing := [piece for piece in pieces if piece not in received]:
                raise MethodError(f"the gate of {name} needs {missing[0]}, which was not received")
            layers[layer] = [received[piece] for piece in pieces]
        for layer, parts in layers.items():
            layer.partner = nn.Parameter(torch.cat(parts) if len(parts) > 1 else parts[0].clone())
            layer.gate = nn.Parameter(torch.zeros(1, dtype=layer.partner.dtype, device=layer.partner.device))
            layer.__class__ = GatedLinear

    @staticmethod
    def fold(edit: Edit, module: nn.Module) -> None:
        """Merge the partners into the weights, and restore plain linear layers."""
        with torch.no_grad():
            for name in edit.args["layers"]:
                layer = cast(GatedLinear, module.get_submodule(name))
                layer.weight.add_(layer.gate * layer.partner)
                del layer.partner, layer.gate
                layer.__class__ = nn.Linear  # type: ignore[assignment]


def _pieces(edit: Edit, layer: str) -> list[str]:
    """Names of the tensors received that a gated layer's partner consists of."""
    return list(edit.args.get("pieces", {}).get(layer, [f"{layer}.partner"]))


@contextmanager
def edited(work: Work, module: nn.Module, received: Mapping[str, Tensor]) -> Iterator[None]:
    """Apply the edits, and fold them in the end.  Raises MethodError if that leaves another module than before."""
    applied, before = [], structure(module) if work.edits else {}
    try:
        for edit in work.edits:
            registry.get("edit", edit.name).apply(edit, module, received)
            applied.append(edit)
        yield
    finally:
        for edit in reversed(applied):
            registry.get("edit", edit.name).fold(edit, module)
    if work.edits and (left := structure(module)) != before:
        name = min(name for name in before.keys() | left.keys() if before.get(name) != left.get(name))
        edits = ", ".join(registry.described("edit", name) for name in dict.fromkeys(e.name for e in applied))
        raise MethodError(
            f"after fold() of {edits}, module {name!r} isn't as it was: {left.get(name, 'gone')}, before "
            f"{before.get(name, 'not there')}; modules are used again for other works"
        )


def structure(module: nn.Module) -> dict[str, str]:
    """The class, hooks, parameters and buffers of every module, by name, as text."""
    return {
        name: f"{type(each).__name__} with {len(each._forward_hooks) + len(each._forward_pre_hooks)} hooks and "
        f"{', '.join(n for held in (each._parameters, each._buffers) for n, t in held.items() if t is not None)}"
        for name, each in module.named_modules()
    }


def uploaded(work: Work, module: nn.Module) -> dict[str, Tensor]:
    """Copies of what the edits own of the upload, by item name."""
    found: dict[str, Tensor] = {}
    for edit in work.edits:
        if upload := getattr(registry.get("edit", edit.name), "upload", None):
            found |= {name: tensor.detach().clone() for name, tensor in upload(edit, module).items()}
    return found
