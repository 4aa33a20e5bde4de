"""What the clients of a round under way have done, so that an interrupted run goes on in the middle of a round.

The round is played again on the virtual clock, which is quick, and the clients that are listed here don't train again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NotRequired, TypedDict

from torch import Tensor

from edgefl.methods.aggregation.fold import StoredFold
from edgefl.runs.kept import FACTS, ROWS, Index, KeptFacts, Stored
from edgefl.simulation.kept import KeptValues, Left
from edgefl.simulation.learning.arrived import Arrived, Shard
from edgefl.work import Update, Work

TABLE = "of:"
"""Prefix of the names of clients' own tensors."""


@dataclass
class Landed:
    """A client whose training is known: its report as plain data, why its update was refused, and what it left.

    Its changes aren't in the round's sums before all of its ``shard`` have landed.
    """

    facts: Mapping[str, Any]
    arrived: bool
    reason: str | None = None
    left: Left | None = None
    shard: Shard | None = None


LandedRow = tuple[int, Mapping[str, Any], bool, str | None]
"""A client that landed: its number, its report, whether its update arrived, and why it was refused."""


class PartState(TypedDict):
    """A part of a round as plain data beside its tensors."""

    number: int
    landed: list[LandedRow]
    fold: StoredFold
    kept: NotRequired[KeptFacts]


@dataclass
class Part:
    """The clients of one dispatch that have landed, in their order, and where what they left is written."""

    number: int
    index: Index
    landed: dict[int, Landed] = field(default_factory=dict)

    def note(
        self, client: int, report: Update, arrived: bool, left: Left | None = None, shard: Shard | None = None
    ) -> None:
        """Note a client that landed with this report."""
        self.landed[client] = Landed(replace(report, means=None).to_data(), arrived, None, left, shard)

    def written(self, arrived: Arrived, kept: KeptValues, round: int) -> tuple[dict[str, Tensor], PartState]:
        """Tensors and JSON data from which ``KnownPart`` is read; what clients left is written to a file at once.

        Raises RunError if that can't be written.
        """
        assert arrived.fold is not None
        tensors, fold = arrived.fold.written()
        rows: list[LandedRow] = []
        whole = {c: landed for c, landed in self.landed.items() if landed.shard is None or not landed.shard.left}
        for client, landed in whole.items():
            rows.append((client, landed.facts, landed.arrived, landed.reason))
            if landed.arrived and landed.reason is None:
                for name, named in arrived.tables(client, self.number).items():
                    tensors |= {f"{TABLE}{client}:{name}/{item}": tensor for item, tensor in named.items()}
        lefts = {client: landed.left for client, landed in whole.items() if landed.left is not None}
        kept.add_to(self.index, {c: left for c, left in lefts.items() if c not in self.index.clients}, round)
        state: PartState = {"number": self.number, "landed": rows, "fold": fold}
        if self.index.clients:
            tensors[ROWS], state[FACTS] = self.index.written()
        return tensors, state


class KnownPart:
    """A part of a round that an interrupted run wrote."""

    def __init__(self, tensors: Mapping[str, Tensor], state: PartState, kept: KeptValues):
        self.number = state["number"]
        self.landed = {client: Landed(facts, arrived, reason) for client, facts, arrived, reason in state["landed"]}
        self.fold = state["fold"]
        self.tensors = tensors
        self._kept: Mapping[int, Stored] = {}
        if FACTS in state:
            self._kept = Index.read(kept.index().folder, tensors[ROWS], state[FACTS]).clients
        self._tables: dict[int, dict[str, dict[str, Tensor]]] = {}
        for name, tensor in tensors.items():
            if name.startswith(TABLE):
                client, rest = name.removeprefix(TABLE).split(":", 1)
                payload, item = rest.split("/", 1)
                self._tables.setdefault(int(client), {}).setdefault(payload, {})[item] = tensor

    def has(self, client: int, number: int) -> bool:
        """Whether the client trained in this dispatch."""
        return number == self.number and client in self.landed

    def update(self, client: int, work: Work) -> Update:
        """The update of a client, without tensors."""
        return Update.from_data(self.landed[client].facts, work, client, {})

    def kept(self, client: int) -> Mapping[str, Tensor]:
        """What the client left.  Raises RunError if it can't be read."""
        return self._kept[client].tensors() if client in self._kept else {}

    def tables(self, client: int) -> Mapping[str, Mapping[str, Tensor]]:
        """The tensors of a client's update that aren't added up, by payload and item."""
        return self._tables.get(client, {})
