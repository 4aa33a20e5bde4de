"""Edits: changes of a model that last for one work."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from torch import Tensor, nn

from edgefl import registry
from edgefl.errors import MethodError
from edgefl.work.description import Edit, Work


class RegisteredEdit(Protocol):
    """Interface of a registered edit.

    Its life in a work: ``restrict`` where a schedule cuts the work, before anything runs; ``apply`` after the model has
    its values and before the copies of ``reference`` are made, in the order of the edits; training; ``upload``, if it
    has that function (``UploadingEdit``), after the last pass; ``fold`` in reverse order, also if a work fails.  Then
    the module must have the classes, hooks, parameters and buffers that it had before, or the work fails, because
    modules are used again.  Values may differ: they are what ``up`` sends of the model's own parameters.
    """

    @staticmethod
    def names(edit: Edit) -> set[str]:
        """Names of the parameters that it adds to the model; list them in ``Work.trainable`` if they train."""
        ...

    @staticmethod
    def restrict(edit: Edit, active: Callable[[str], bool], received: set[str]) -> Edit | None:
        """The edit at a stage: ``active(name)`` says what trains, ``received`` are the item names left in ``down``.

        None if nothing is left.  Raises MethodError for what it can't do.
        """
        ...

    @staticmethod
    def apply(edit: Edit, module: nn.Module, received: Mapping[str, Tensor]) -> None:
        """Change the module; ``received`` are tensors by item name that are no parameters of the model."""
        ...

    @staticmethod
    def fold(edit: Edit, module: nn.Module) -> None:
        """Merge what was learnt into the module's own parameters, and restore its structure."""
        ...


class UploadingEdit(RegisteredEdit, Protocol):
    """An edit that owns part of what goes up: tensors that are gone after ``fold``, such as an adapter's.

    They have items of their own in ``down`` and ``up``, with a first value in ``Method.initial``.  Under the address
    ``lora-KIND/PARAMETER.lora_a``, item name ``PARAMETER.lora_a``, stages cut them as parameters, and
    ``Method.aggregate`` averages them as it is.  To have the adapters of frozen blocks too, ``restrict`` keeps the
    layers whose items are in ``received``.  Widths can't cut them: ``heterofl`` is refused.  ``evaluate`` needs the
    same edit and payload as ``work``, and ``export`` merges them.
    """

    @staticmethod
    def upload(edit: Edit, module: nn.Module) -> Mapping[str, Tensor]:
        """Tensors by the names of the items of ``up`` or ``keep`` that are theirs; called after the last pass."""
        ...


@contextmanager
def applying_edits(work: Work, module: nn.Module, received: Mapping[str, Tensor]) -> Iterator[None]:
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
        edits = ", ".join(registry.describe_part("edit", name) for name in dict.fromkeys(e.name for e in applied))
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


def edit_uploads(work: Work, module: nn.Module) -> dict[str, Tensor]:
    """Copies of what the edits own of the upload, by item name."""
    found: dict[str, Tensor] = {}
    for edit in work.edits:
        if upload := getattr(registry.get("edit", edit.name), "upload", None):
            found |= {name: tensor.detach().clone() for name, tensor in upload(edit, module).items()}
    return found
