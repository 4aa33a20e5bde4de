"""Nodes in this process as a transport: each plays its orders with the code of a real node, on the wall clock."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path

from edgefl import __version__
from edgefl.deployment.node_round import play_order
from edgefl.deployment.transport import Message, NoReply
from edgefl.training import Node

Reply = Callable[[Message], Message | NoReply | None]


class InProcess:
    """A transport to nodes of one data set.  ``clients`` are by node; ``replies`` has other answers of some nodes."""

    def __init__(self, node: Node, folder: Path, clients: dict[int, int], version: str = __version__):
        self.clients, self.gone, self.version = clients, set[int](), version
        self.replies: dict[int, Callable[[Message, Reply], Message | NoReply | None]] = {}
        self.down, self.up = 0, 0
        self._node, self._folder = node, folder

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
            if reply is not None:
                yield node, reply, time.monotonic() - began
            del order, reply

    def _honest(self, node: int, order: Message) -> Message | NoReply:
        if order.facts["do"] == "greet":
            return Message({"version": self.version, "client": self.clients[node]})
        return play_order(lambda: self._node, self._folder / str(node), order, time.time())


def travelled(message: Message) -> Message:
    """The message as it is after a journey: its facts as JSON."""
    return Message(json.loads(json.dumps(message.facts)), tuple(bytes(body) for body in message.payloads))
