"""Assignments: one work for one client or the server, with its input tensors.

Assignments and updates can be encoded as bytes and sent to other processes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import safetensors.torch
import torch
from torch import Tensor

from edgefl.plain_data import from_data, to_data
from edgefl.runs.kept import StoredTensors
from edgefl.training.attack import Attack
from edgefl.work import Form, Update, Work
from edgefl.work.description import Scalar
from edgefl.work.sums import SharedSum


class Kept(Protocol):
    """What a client kept for itself, on disk: tensors by item name."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the items."""
        ...

    def tensors(self) -> Mapping[str, Tensor]:
        """The tensors, read now.  Raises RunError if they can't be read."""
        ...


@dataclass(frozen=True)
class Assignment:
    """A work, as its form and its scalars, with its input tensors.

    ``client`` is None for the server.  ``inputs`` maps item names (or names that a payload's codec makes) to tensors.
    With ``kept``, what the client kept for itself, they hold the complete model of the stage.
    ``seed`` is specific to this client and round.  ``attack`` is what an attacker does, None for an honest client.
    ``others`` are assignments of other clients with this work and these inputs.  They are trained one after the other,
    and the report has the sum of what they change, as ``sum`` says. ``peak`` are the predicted bytes at its peak, None
    if it isn't known; they aren't sent.
    """

    form: Form
    scalars: Mapping[str, Scalar]
    inputs: Mapping[str, Tensor]
    client: int | None
    seed: int
    metered: bool = False
    attack: Attack | None = None
    kept: Kept | None = None
    others: tuple[Assignment, ...] = ()
    sum: SharedSum | None = None
    peak: int | None = None

    @cached_property
    def work(self) -> Work:
        """The work that is run: the form bound to the scalars."""
        return self.form.bind(self.scalars)

    @property
    def node(self) -> str:
        """Who runs it, as messages say it: ``the server``, ``client 3`` or ``clients 3, 4``."""
        if self.client is None:
            return "the server"
        clients = ", ".join(str(each.client) for each in (self, *self.others))
        return f"{'clients' if self.others else 'client'} {clients}"

    @property
    def title(self) -> str:
        """What messages call it: ``the work of kind 'image' of client 3``."""
        return f"the work of kind {self.form.kind!r} of {self.node}"

    def tensors(self) -> Mapping[str, Tensor]:
        """The inputs with what the client kept.  Raises RunError if its file can't be read."""
        return {**self.inputs, **self.kept.tensors()} if self.kept else self.inputs

    def encode(self) -> tuple[str, bytes]:
        """The assignment as JSON text and safetensors bytes, to be sent to another process."""
        head = {"form": self.form.encode(), **self.to_data()}
        return json.dumps(head), serialise(self.inputs if isinstance(self.kept, StoredTensors) else self.tensors())

    @classmethod
    def decode(cls, head: str, body: bytes) -> Assignment:
        """Restore an assignment from the output of ``encode``."""
        raw = json.loads(head)
        return cls.from_data(raw, Form.decode(raw.pop("form")), deserialise(body))

    def to_data(self) -> dict[str, Any]:
        """All but the form and the inputs, as plain data."""
        names = ("scalars", "client", "seed", "metered", "attack", "others", "sum")
        kept = to_data(self.kept) if isinstance(self.kept, StoredTensors) else None
        return {**{name: to_data(getattr(self, name)) for name in names}, "kept": kept}

    @classmethod
    def from_data(cls, raw: Mapping[str, Any], form: Form, inputs: Mapping[str, Tensor]) -> Assignment:
        """The assignment of which ``to_data`` made this; it may have been JSON."""
        types = {"attack": Attack, "kept": StoredTensors, "sum": SharedSum}
        made = {name: raw[name] and from_data(hint, raw[name]) for name, hint in types.items()}
        others = tuple(cls.from_data(each, form, inputs) for each in raw["others"])
        return cls(form, inputs=inputs, **{**raw, **made, "others": others})


def encode(update: Update) -> tuple[str, bytes]:
    """An update as JSON text and safetensors bytes, to be sent to another process."""
    return json.dumps(update.to_data()), serialise(update.tensors())


def serialise(tensors: Mapping[str, Tensor]) -> bytes:
    """Tensors as safetensors bytes."""
    # safetensors refuses tensors that share storage: those of a packed payload get a storage each on the same memory
    seen: set[int] = set()
    separate = {}
    for name, tensor in tensors.items():
        whole = tensor.contiguous()
        shares = whole.untyped_storage().nbytes() > whole.nbytes
        if whole.data_ptr() in seen:
            whole = whole.clone()
        elif shares and whole.numel() and whole.device.type == "cpu":
            bytes_ = whole.detach().reshape(-1).view(torch.uint8)
            memory = memoryview(bytes_.numpy())  # type: ignore[arg-type]
            whole = torch.frombuffer(memory, dtype=whole.dtype).view(whole.shape)
        seen.add(whole.data_ptr())
        separate[name] = whole
    return safetensors.torch.save(separate)


def deserialise(body: bytes) -> dict[str, Tensor]:
    """The tensors of safetensors bytes."""
    # the tensors may share read-only buffers with ``body``; works copy tensors before they change them
    return dict(safetensors.torch.load(body))
