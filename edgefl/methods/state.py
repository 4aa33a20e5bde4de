"""What the server holds, and what a client sends up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor

from edgefl.work import Address, Work
from edgefl.work.description import DTYPES


@dataclass(frozen=True)
class ServerState:
    """All that the server holds, by address, with a version that counts each tensor's changes.

    Tensors are never changed in place, so states share what is equal.
    """

    tensors: Mapping[Address, Tensor]
    versions: Mapping[Address, int]

    @classmethod
    def first(cls, tensors: Mapping[Address, Tensor]) -> ServerState:
        """Everything at version 0, which clients have preinstalled."""
        return cls(dict(tensors), dict.fromkeys(tensors, 0))

    def changed(self, tensors: Mapping[Address, Tensor]) -> ServerState:
        """This state with these tensors at their next version."""
        versions = {**self.versions, **{a: self.versions.get(a, -1) + 1 for a in tensors}}
        return ServerState({**self.tensors, **tensors}, versions)

    def inputs(self, work: Work) -> dict[str, Tensor]:
        """What a work starts from, by item name, in the precision that travels."""
        return {i.name: self.tensors[i.source].to(DTYPES[i.dtype]) for p in work.down for i in p.items}

    def base(self, work: Work) -> dict[Address, Tensor]:
        """The same by address and in the server's precision: what an update is the difference to."""
        sent = {i.source: DTYPES[i.dtype] for p in work.down for i in p.items}
        return {a: self.tensors[a].to(dtype).to(self.tensors[a].dtype) for a, dtype in sent.items()}


@dataclass(frozen=True)
class Update:
    """What a client sends up, with what it started from.

    ``samples`` counts its private samples by pattern; ``base`` are the values it was sent, by address; ``discount``
    is the round policy's factor on its weight, applied after normalising.
    """

    client: int
    kind: str
    samples: Mapping[str, int]
    work: Work
    payloads: Mapping[str, Mapping[str, Tensor]]
    base: Mapping[Address, Tensor]
    base_round: int = 0
    staleness: int = 0
    discount: float = 1.0

    @property
    def total(self) -> int:
        """Samples over all patterns."""
        return sum(self.samples.values())

    def sent(self) -> Iterable[tuple[Address, Tensor]]:
        """Every tensor sent up, by address."""
        for payload in self.work.up:
            for item in payload.items:
                yield item.source, self.payloads[payload.name][item.name]
