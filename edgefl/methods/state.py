"""State of the server."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass

from torch import Tensor

from edgefl.errors import MethodError
from edgefl.work import Address, Description, Item
from edgefl.work.slices import take


@dataclass(frozen=True)
class ServerState:
    """All values that the server has.  Tensors are never changed in place, so states share unchanged tensors."""

    tensors: Mapping[Address, Tensor]
    """Tensors by address, on the CPU."""
    versions: Mapping[Address, int]
    """How often each tensor has changed; clients have version 0 preinstalled."""

    @classmethod
    def from_tensors(cls, tensors: Mapping[Address, Tensor]) -> ServerState:
        """A state with all tensors at version 0, which clients have preinstalled."""
        return cls(dict(tensors), dict.fromkeys(tensors, 0))

    def with_tensors(self, tensors: Mapping[Address, Tensor]) -> ServerState:
        """This state with these tensors at their next version."""
        versions = {**self.versions, **{a: self.versions.get(a, -1) + 1 for a in tensors}}
        return ServerState({**self.tensors, **tensors}, versions)

    def items(self, work: Description) -> dict[str, Tensor]:
        """The server's tensors for a work's ``down`` items, by item name; slices for a narrower model.

        A tensor like a parameter is zeros while the server has none at its address.
        """
        return {i.name: self._item(i) for p in work.down for i in p.items}

    def _item(self, item: Item) -> Tensor:
        if item.like is not None and item.source not in self.tensors:
            return item.spec.empty().zero_()
        if item.source not in self.tensors:
            raise MethodError(
                f"{item.name!r} travels down as {item.source!r}, which the server doesn't have: put it into "
                "Method.initial"
            )
        value = take(self.tensors[item.source], item.cut)
        # a node holds it as received: a slice must not keep the whole tensor in memory
        return value.clone() if item.like is not None and item.cut is not None else value

    def wire(self, work: Description, held: Container[str] = ()) -> dict[str, Tensor]:
        """Wire tensors of a work's ``down`` payloads; items in ``held`` aren't encoded, as the node has them."""
        tensors = self.items(work)
        return {name: value for p in work.down for name, value in p.encode_tensors(tensors, {}, held).items()}

    def inputs(self, work: Description, held: Container[str] = ()) -> dict[str, Tensor]:
        """Tensors that a work starts from, by item name, as the node decodes them."""
        return dict(work.starting_tensors(self.wire(work, held)))

    def base(self, work: Description, inputs: Mapping[str, Tensor] | None = None) -> dict[Address, Tensor]:
        """The inputs by address, in the server's precision; updates are differences to these."""
        inputs = self.inputs(work) if inputs is None else inputs
        sent = ((i.source, inputs[i.name]) for p in work.down for i in p.items if i.like is None)
        dtypes = {address: tensor.dtype for address, tensor in self.tensors.items()}
        return {a: value if value.dtype is dtypes[a] else value.to(dtypes[a]) for a, value in sent}
