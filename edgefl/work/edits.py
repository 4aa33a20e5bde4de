"""Edits: changes of a model that last for one work."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from torch import Tensor, nn

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
