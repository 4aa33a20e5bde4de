"""State of the server, and updates of clients."""

from __future__ import annotations

import math
from collections.abc import Container, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from edgefl.errors import MethodError
from edgefl.work import Address, Description, Item, Work
from edgefl.work.slices import Cut, take
from edgefl.work.sums import changing, exact


@dataclass(frozen=True)
class ServerState:
    """All values that the server has.  Tensors are never changed in place, so states share unchanged tensors."""

    tensors: Mapping[Address, Tensor]
    """Tensors by address, on the CPU."""
    versions: Mapping[Address, int]
    """How often each tensor has changed; clients have version 0 preinstalled."""

    @classmethod
    def first(cls, tensors: Mapping[Address, Tensor]) -> ServerState:
        """A state with all tensors at version 0, which clients have preinstalled."""
        return cls(dict(tensors), dict.fromkeys(tensors, 0))

    def changed(self, tensors: Mapping[Address, Tensor]) -> ServerState:
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
        return {name: value for p in work.down for name, value in p.encoded(tensors, {}, held).items()}

    def inputs(self, work: Description, held: Container[str] = ()) -> dict[str, Tensor]:
        """Tensors that a work starts from, by item name, as the node decodes them."""
        return dict(work.received(self.wire(work, held)))

    def base(self, work: Description, inputs: Mapping[str, Tensor] | None = None) -> dict[Address, Tensor]:
        """The inputs by address, in the server's precision; updates are differences to these."""
        inputs = self.inputs(work) if inputs is None else inputs
        sent = ((i.source, inputs[i.name]) for p in work.down for i in p.items if i.like is None)
        dtypes = {address: tensor.dtype for address, tensor in self.tensors.items()}
        return {a: value if value.dtype is dtypes[a] else value.to(dtypes[a]) for a, value in sent}


@dataclass(frozen=True)
class Update:
    """What a client sent up, as ``Method.aggregate`` receives it."""

    client: int
    """Number of the client."""
    kind: str
    """Its kind."""
    samples: Mapping[str, int]
    """Its private samples by pattern."""
    work: Work
    """The work that it did, as the stage has cut it."""
    payloads: Mapping[str, Mapping[str, Tensor]]
    """``{payload: {item: tensor}}``, decoded."""
    base: Mapping[Address, Tensor]
    """What it started from, by address; the server's current values under ``asynchronous``."""
    base_round: int = 0
    """The round in which it was sent off."""
    staleness: int = 0
    """How often the model has changed since."""
    weight_factor: float = 1.0
    """The round policy's factor on its weight, applied after weights are normalised: the discount s(t) of its
    staleness, times ``round.mixing`` under ``asynchronous``."""
    equal: bool = False
    """Whether it weighs as much as every other update in the mean of the parameters (``round.weighting``), then
    ``weight`` is 1."""
    loss: float | None = None
    """The mean loss of its training steps; None without training."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """What its steps have put into ``Context.metrics``; empty under ``training.mode: none``."""
    updates: int = 1
    """Updates of its optimizer; 1 under ``training.mode: none``."""
    variant: Hashable = None
    """The client's variant."""

    @property
    def total(self) -> int:
        """Number of samples over all patterns."""
        return sum(self.samples.values())

    @property
    def weight(self) -> float:
        """Weight before normalising in a mean of parameters: the number of samples, or 1 if ``equal``."""
        return 1.0 if self.equal else self.total

    def sent(self) -> Iterable[tuple[Address, Tensor]]:
        """Address and value of every tensor sent up; slices for a narrower model (``cuts``)."""
        for payload in self.work.up:
            for item in payload.items:
                yield item.source, self.payloads[payload.name][item.name]

    def changing(self) -> Iterator[tuple[Address, Tensor, Tensor]]:
        """Address, value and starting value of every tensor sent up that is averaged: floating, and no table."""
        for address, _, value, base in changing(self.work.up, self.payloads, self.base):
            yield address, value, base

    def norm(self, without: Container[Address] = ()) -> float:
        """L2 norm of the change of all floating tensors sent but tables and those ``without``; 0 for meta tensors."""
        changes = (
            exact(value.to(base.dtype)) - exact(base)
            for address, value, base in self.changing()
            if address not in without and not value.is_meta
        )
        return math.sqrt(sum(float(change.double().square().sum()) for change in changes))

    def clipping(self, largest: float | None) -> float:
        """The factor that brings the norm down to ``largest`` (Sun et al. 2019), 1 if it is small enough or None.

        The norm is over everything that is averaged: all floating tensors sent but tables, buffers included.
        """
        if largest is None:
            return 1.0
        norm = self.norm()
        return min(1.0, largest / norm) if norm and norm < math.inf else 1.0

    def cuts(self) -> dict[Address, Cut]:
        """The part of the server's tensor that was sent, for addresses of which not all was sent."""
        return {i.source: i.cut for p in self.work.up for i in p.items if i.cut is not None}
