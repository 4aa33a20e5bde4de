"""Nodes in this process as a transport: each plays its orders with the code of a real node, on the wall clock."""

from __future__ import annotations

import json
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path

from edgefl.deployment.node_round import NodeSetup
from edgefl.deployment.transport import Message, NoReply
from edgefl.scenario import Scenario

Reply = Callable[[Message], Message | NoReply | None]


class InProcess:
    """A transport to nodes.  ``clients`` are by node, and so are ``data``, the tables of nodes with samples of their
    own, and ``replies``, other answers of some nodes."""

    def __init__(self, scenario: Scenario, folder: Path, clients: dict[int, int]):
        self.clients, self.gone, self.data = clients, set[int](), dict[int, Path]()
        self.replies: dict[int, Callable[[Message, Reply], Message | NoReply | None]] = {}
        self.down, self.up = 0, 0
        self.most_alive, self._alive = 0, 0
        self._scenario, self._folder = scenario, folder

    def nodes(self) -> Collection[int]:
        return self.clients.keys() - self.gone

    def ask(
        self, orders: Iterable[tuple[int, Message]], seconds: float
    ) -> Iterator[tuple[int, Message | NoReply, float]]:
        for node, order in orders:
            began = time.monotonic()
            order = travelled(order)
            self.down += sum(map(len, order.payloads))

            def honest(order: Message, node: int = node) -> Message | NoReply:
                return self._honest(node, order)

            reply = self.replies[node](order, honest) if node in self.replies else honest(order)
            if isinstance(reply, Message):
                reply = travelled(reply)
                self.up += sum(map(len, reply.payloads))
                self._alive += 1
                self.most_alive = max(self.most_alive, self._alive)
                weakref.finalize(reply, self._forget)
            if reply is not None:
                yield node, reply, time.monotonic() - began
            del order, reply

    def _forget(self) -> None:
        self._alive -= 1

    def _honest(self, node: int, order: Message) -> Message:
        data = str(self.data[node]) if node in self.data else None
        setup = NodeSetup(self._scenario, self._folder / str(node), self.clients[node], data=data)
        return setup.answer(order, time.time())


def travelled(message: Message) -> Message:
    """The message as it is after a journey: its facts as JSON."""
    return Message(json.loads(json.dumps(message.facts)), tuple(bytes(body) for body in message.payloads))
