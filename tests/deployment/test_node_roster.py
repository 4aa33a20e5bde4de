"""Which node is which client: claims, versions, and words about nodes that aren't used."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import pytest

from edgefl import __version__
from edgefl.deployment.node_roster import NodeRoster
from edgefl.deployment.transport import Message, NoReply


class Greeters:
    """A transport to nodes that only greet, ``{node: what it says}``."""

    def __init__(self, said: dict[int, Message | NoReply | None]):
        self.said = said

    def nodes(self) -> Collection[int]:
        return self.said.keys()

    def ask(
        self, orders: Iterable[tuple[int, Message]], seconds: float
    ) -> Iterator[tuple[int, Message | NoReply, float]]:
        for node, _ in orders:
            if (reply := self.said[node]) is not None:
                yield node, reply, 0.0


def client(number: object, version: str = __version__) -> Message:
    return Message({"version": version, "client": number})


@pytest.mark.parametrize(("reply", "said"), [
    (client(3), "it says that it is client 3; there are clients 0 to 2"),
    (client(-1), "it says that it is client -1; there are clients 0 to 2"),
    (client(1, "0.0.1"), f"it runs edgefl 0.0.1, the server {__version__}: install the same on both"),
    (client("one"), "its greeting: field 'client': expected `int`, got `str`"),
    (Message({}), "its greeting: field 'version' is missing"),
    (NoReply("no such app"), "it doesn't say which client it is: no such app"),
])  # fmt: skip
def test_a_node_that_is_not_used_is_named_with_the_reason(reply: Message | NoReply, said: str) -> None:
    told: list[str] = []
    roster = NodeRoster(Greeters({7: client(0), 8: reply}), 3, told.append)
    roster.greet()
    assert told == [f"node 8 isn't used: {said}"] and roster.clients_with_node == [0]


def test_of_two_nodes_that_claim_one_client_the_second_waits_until_the_first_is_gone() -> None:
    told: list[str] = []
    there = Greeters({7: client(1), 8: client(1)})
    roster = NodeRoster(there, 3, told.append)
    roster.greet()
    assert roster.nodes_of([0, 1]) == {7: 1}
    assert told == ["node 8 says that it is client 1, as node 7 does: it waits until that is gone"]
    del there.said[7]
    assert roster.nodes_of([0, 1]) == {8: 1}


def test_a_node_that_did_not_answer_is_greeted_again() -> None:
    there = Greeters({7: None})
    roster = NodeRoster(there, 3, lambda _: None)
    roster.greet()
    there.said[7] = client(2)
    roster.greet()
    assert roster.clients_with_node == [2]


def test_the_first_round_does_not_wait_for_all_clients_for_ever() -> None:
    told: list[str] = []
    roster = NodeRoster(Greeters({7: client(2)}), 3, told.append)
    roster.wait(3, 0.0)
    assert told == ["1 of 3 clients have a node after 0 s: [2]"]


def test_a_round_waits_for_a_node_where_no_client_has_one() -> None:
    """The node comes while the server waits, which asks for it again."""

    class Later(Greeters):
        looks = 0

        def nodes(self) -> Collection[int]:
            self.looks += 1
            if self.looks == 4:
                self.said[9] = client(1)
            return self.said.keys()

    later = Later({})
    roster = NodeRoster(later, 3, lambda _: None)
    [(found, node, reply, _)] = roster.ask({1: lambda: Message({"do": "train"})}, 60.0)
    assert (found, node) == (1, 9) and isinstance(reply, Message)
