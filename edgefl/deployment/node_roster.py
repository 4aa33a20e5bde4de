"""Which node is which client: nodes are asked when they come, and one that restarts takes its client's place again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping

from edgefl import __version__
from edgefl.deployment.transport import Message, NodeGreeting, NoReply, OwnSamples, Transport
from edgefl.errors import RunError
from edgefl.records.reading import from_data

GREETING_SECONDS = 600.0
"""Time in which a node says who it is.  A choice: a small board imports torch in half a minute, and then reads a folder
of pictures for the first time."""
LOOK_SECONDS = 0.5
"""Time between two looks for new nodes, while the server waits for them.  A choice."""


class NodeRoster:
    """The nodes of ``clients`` clients.  ``on_message`` is told what is wrong with a node, with its number.

    New nodes are told ``scales``, of the server's set.  ``check(client, own)`` raises RunError for samples that a node
    of this client can't have; ``own`` has those of nodes that have some, by client.
    """

    def __init__(
        self,
        transport: Transport,
        clients: int,
        on_message: Callable[[str], None],
        scales: Mapping[str, object] | None = None,
        check: Callable[[int, OwnSamples | None], None] = lambda client, own: None,
    ):
        self._transport, self._clients, self._on_message = transport, clients, on_message
        self._scales, self._check = scales or {}, check
        self.own: dict[int, OwnSamples] = {}
        self._greeted: set[int] = set()
        self._claims: dict[int, list[int]] = {}
        """By client the nodes that say that they are it, in the order in which they came."""

    @property
    def clients_with_node(self) -> list[int]:
        """The clients that have had a node, ascending."""
        return sorted(self._claims)

    def nodes_of(self, clients: Iterable[int]) -> dict[int, int]:
        """The clients by node: of each the first that said so and is still there, if one is."""
        there = self._transport.nodes()
        found = ((next((n for n in self._claims.get(client, ()) if n in there), None), client) for client in clients)
        return {node: client for node, client in found if node is not None}

    def wait(self, wanted: int, seconds: float) -> None:
        """Wait until so many clients have a node, or for so long.  Raises RunError if none has one then."""
        until = time.monotonic() + seconds
        while True:
            self.greet()
            if len(self._claims) >= wanted or time.monotonic() >= until:
                break
            time.sleep(LOOK_SECONDS)
        if not self._claims:
            raise RunError(f"no node has come within {seconds:g} s: start some, or let the server wait longer")
        if len(self._claims) < wanted:
            there = self.clients_with_node
            self._on_message(f"{len(there)} of {wanted} clients have a node after {seconds:g} s: {there}")

    def greet(self) -> None:
        """Ask the nodes that are new which client they are."""
        new = [node for node in self._transport.nodes() if node not in self._greeted]
        hello = Message({"do": "greet", "version": __version__, "scales": self._scales})
        for node, reply, _ in self._transport.ask(((node, hello) for node in new), GREETING_SECONDS) if new else ():
            self._greeted.add(node)
            try:
                if isinstance(reply, NoReply):
                    raise RunError(f"it doesn't say which client it is: {reply.why}")
                if "error" in reply.facts:
                    raise RunError(f"{reply.facts['error']}")
                self._admit(node, from_data(NodeGreeting, reply.facts, "its greeting"))
            except RunError as error:
                self._on_message(f"node {node} isn't used: {error}")

    def _admit(self, node: int, said: NodeGreeting) -> None:
        """Note whose node this is.  Raises RunError for another version and an unknown client."""
        if said.version != __version__:
            raise RunError(f"it runs edgefl {said.version}, the server {__version__}: install the same on both")
        if not 0 <= said.client < self._clients:
            raise RunError(f"it says that it is client {said.client}; there are clients 0 to {self._clients - 1}")
        self._check(said.client, said.own)
        if said.own is not None:
            self.own[said.client] = said.own
        other = next(iter(self.nodes_of([said.client])), None)
        self._claims.setdefault(said.client, []).append(node)
        if other is not None:
            self._on_message(
                f"node {node} says that it is client {said.client}, as node {other} does: it waits until that is gone"
            )

    def ask(
        self, orders: Mapping[int, Callable[[], Message]], seconds: float
    ) -> Iterator[tuple[int, int | None, Message | NoReply, float]]:
        """Send each client's order to its node; yield client, node, reply and the seconds of the round trip.

        Replies are yielded as they come, so that few are in memory; those that don't come are told at the end.  Where
        none of the clients has a node, one is waited for.
        """
        until = time.monotonic() + seconds
        while True:
            self.greet()
            nodes = self.nodes_of(orders)
            if nodes or time.monotonic() >= until:
                break
            time.sleep(LOOK_SECONDS)
        yield from ((c, None, NoReply("its node isn't there"), 0.0) for c in orders.keys() - nodes.values())
        began = time.monotonic()
        messages = ((node, orders[client]()) for node, client in [*nodes.items()])
        for node, reply, spent in self._transport.ask(messages, max(until - began, 0.0)):
            if (client := nodes.pop(node, None)) is not None:
                yield client, node, reply, spent
        late = NoReply(f"no reply within {seconds:.3g} s", late=True)
        yield from ((client, node, late, time.monotonic() - began) for node, client in nodes.items())
