"""Flower (1.42) as the transport: the ServerApp and the ClientApp of an app that ``edgefl export --to flower`` wrote.

Orders and replies are facts as JSON in a ConfigRecord, and payloads as bytes in an ArrayRecord.  Flower brings the
connection, TLS, authentication, signs of life and the delivery of the app.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice
from math import inf
from pathlib import Path
from typing import Any, TypeVar

import psutil

from edgefl import terminal
from edgefl.deployment.node_round import NodeSetup
from edgefl.deployment.real_run import play_on_nodes
from edgefl.deployment.transport import Message, NoReply
from edgefl.scenario import load

T = TypeVar("T")
TOGETHER = 8
"""Messages that are sent or asked for at once, which are in the server's memory together.  A choice: more of them save
calls, and a round of a hundred nodes shouldn't need memory for a hundred models."""
PAUSE_SECONDS = 0.05
"""Time between two looks for replies.  A choice: less than the overhead that a round trip may have."""


class FlowerNodes:
    """The SuperNodes of a ServerApp's grid."""

    def __init__(self, grid: Any):
        self._grid = grid

    def nodes(self) -> Collection[int]:
        """The ids of the SuperNodes whose signs of life the SuperLink sees; one that restarts has a new id."""
        return set(self._grid.get_node_ids())

    def ask(
        self, orders: Iterable[tuple[int, Message]], seconds: float
    ) -> Iterator[tuple[int, Message | NoReply, float]]:
        """Send orders, and yield what comes within ``seconds``: replies, and errors of a node or of the SuperLink.

        An error of the SuperLink comes from it, not from the node: what counts is the message that it answers.
        """
        until, open_orders = time.monotonic() + seconds, dict[str, tuple[int, float]]()
        for some in _groups(orders):
            messages = [_order(node, order, max(until - time.monotonic(), PAUSE_SECONDS)) for node, order in some]
            for id_, (node, _) in zip(self._grid.push_messages(messages), some, strict=True):
                if id_:
                    open_orders[id_] = node, time.monotonic()
                else:
                    yield node, NoReply("the SuperLink didn't take its order"), 0.0
            del messages
        while open_orders and time.monotonic() < until:
            for ids in _groups([*open_orders]):
                for reply in self._grid.pull_messages(ids):
                    node, began = open_orders.pop(reply.metadata.reply_to_message_id)
                    yield node, wire_reply(reply), time.monotonic() - began
            time.sleep(PAUSE_SECONDS)


def _groups(each: Iterable[T]) -> Iterator[list[T]]:
    rest = iter(each)
    while some := list(islice(rest, TOGETHER)):
        yield some


def _order(node: int, order: Message, seconds: float) -> Any:
    from flwr.app import Message as FlowerMessage
    from flwr.app import MessageType

    kind = MessageType.QUERY if order.facts["do"] == "greet" else MessageType.TRAIN
    return FlowerMessage(pack(order), node, kind, ttl=None if seconds == inf else seconds)


def wire_reply(reply: Any) -> Message | NoReply:
    """What has come from Flower: a node's reply, or why there is none."""
    if reply.has_error():
        last = (reply.error.reason or "").strip().splitlines()[-1:]
        return NoReply(f"Flower's error {reply.error.code}{': ' if last else ''}{''.join(last)}")
    try:
        return unpack(reply.content)
    except (KeyError, ValueError, TypeError) as error:
        return NoReply(f"its reply isn't one of edgefl's: {type(error).__name__}: {error}")


def pack(message: Message) -> Any:
    """A message as Flower's records."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    arrays = {
        f"{index:03}": Array(dtype="uint8", shape=(len(body),), stype="safetensors", data=body)
        for index, body in enumerate(message.payloads)
    }
    facts = ConfigRecord({"json": json.dumps(message.facts)})
    return RecordDict({"facts": facts, "payloads": ArrayRecord(arrays)})


def unpack(content: Any) -> Message:
    """The message of which ``pack`` made this.  Raises KeyError, ValueError or TypeError for other records."""
    facts = json.loads(content.config_records["facts"]["json"])
    if not isinstance(facts, dict):
        raise TypeError(f"{facts!r:.40} where facts are to be")
    arrays = content.array_records["payloads"]
    return Message(facts, tuple(bytes(arrays[name].data) for name in sorted(arrays)))


def serve(grid: Any, context: Any, scenario: Path) -> None:
    """The ServerApp: play the scenario's rounds on the SuperNodes, and write a run's folder."""
    config = context.run_config
    run = play_on_nodes(
        load(scenario), FlowerNodes(grid), Path(str(config["output"])), _tell,
        wait=float(config["wait"]), patience=float(config["patience"]),
    )  # fmt: skip
    terminal.say(f"the run is in {run.path.resolve()}")


def _tell(event: str, facts: Mapping[str, Any]) -> None:
    """Say what happens as lines of Flower's log."""
    if event == "prepare":
        terminal.say(facts["what"])
    elif event == "record":
        terminal.say(f"round {facts['round']}: {facts['finished']} of {facts['selected']} updates have arrived")


def reply(message: Any, context: Any, scenario: Path) -> Any:
    """The ClientApp: greet, or play a round's order.

    ``--node-config`` has the ``client`` and the ``folder``, and may have a ``device``, ``data`` and their ``kind``.
    """
    from flwr.app import Message as FlowerMessage

    config = {name: str(each) for name, each in context.node_config.items()}
    order, began = unpack(message.content), time.time() if _used else psutil.Process().create_time()
    _used.append(True)
    node = NodeSetup(
        load(scenario), Path(config.get("folder", "")) / str(context.run_id), context.node_config.get("client"),
        config.get("device", "cpu"), config.get("data"), config.get("kind"),
    )  # fmt: skip
    return FlowerMessage(pack(node.answer(order, began)), reply_to=message)


_used: list[bool] = []
"""Whether this process has answered before: the first answer has the time in which it began."""
