"""Links between emulated clients and their server: a network of namespaces, shaped in both directions.

The server, each client and the traffic of others have a network namespace; a bridge in one more joins them.  The
host's own interfaces have no part in it.  What leaves an interface passes a token bucket filter: towards a client at
its port of the bridge, from a client at its own interface, and likewise for the server's line that all share.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import TypeVar

from tools.emulation.journal import MachineJournal
from tools.emulation.kernel import QUEUE, EmulationError, batch, bucket, enter, run, share

MTU = 1500
ETHERNET, IP_AND_TCP = 14, 52
"""Bytes of the headers of a full frame: Ethernet; IPv4 (20) and TCP (20) with its time stamps (12)."""
PAYLOAD_SHARE = (MTU - IP_AND_TCP) / (MTU + ETHERNET)
"""Bytes of payload in the bytes of a full frame."""
PREFIX = "10.213"
SERVER, PORT = f"{PREFIX}.0.1", 5201
MOST_OTHERS = 100
"""Transfers of others that a network has addresses for, in each direction: both follow the server's in one block
of 254, which the clients' numbers don't reach."""
_IN_CLIENT = _IN_SERVER = "eth0"
_LINE, _OTHERS = "line", "others"

# a kernel without this file handles a frame on the core that sent it
_STEER = """for file in /sys/class/net/*/queues/rx-*/rps_cpus; do
  if [ -e "$file" ]; then echo {mask} > "$file"; fi
done"""

T = TypeVar("T")


@dataclass(frozen=True)
class Rates:
    """Payload bits per second towards a node and from it; None: not limited."""

    down: float | None
    up: float | None


UNLIMITED = Rates(None, None)


@dataclass(frozen=True)
class LinkCounters:
    """What an interface has sent: bytes of whole frames, and frames."""

    bytes: int
    frames: int


class EmulatedNetwork:
    """The namespaces of a server and of clients 0, 1, ..., with a link each.  ``line`` are the rates of the server's
    own line: ``down`` what it sends to all clients, ``up`` what it receives from them.

    ``background`` is how many transfers of others are on the line in each direction, and the most bits per second that
    each takes (``traffic.Traffic`` sends them).  Each has an address of its own, in ``addresses_of_others``: those of
    downloads, then those of uploads.  Their acknowledgements pass beside the line, whose rates are those of payload.

    ``cores`` are those on which the kernel handles frames; where there are none, it chooses.
    """

    def __init__(
        self,
        journal: MachineJournal,
        links: list[Rates],
        line: Rates = UNLIMITED,
        background: tuple[int, float] = (0, inf),
        cores: Iterable[int] = (),
    ):
        self.name = journal.name
        self.switch, self.server = f"{self.name}-switch", f"{self.name}-server"
        self.others = f"{self.name}-others"
        clients = range(len(links))
        flows, most = background
        self.addresses_of_others = [
            [f"{PREFIX}.0.{2 + MOST_OTHERS * up + number}" for number in range(flows)] for up in (False, True)
        ]
        others = [own for each in self.addresses_of_others for own in each]
        names = [self.switch, self.server, *([self.others] if flows else []), *map(self.client, clients)]
        journal.note("namespaces", *names)
        batch("ip", [("netns", "add", name) for name in names])
        pairs = [
            (_LINE, self.server, _IN_SERVER, [SERVER]),
            *((_port(i), self.client(i), _IN_CLIENT, [address(i)]) for i in clients),
            *([(_OTHERS, self.others, _IN_CLIENT, others)] if flows else []),
        ]
        for port, namespace, inside, _ in pairs:
            run(
                "ip", "link", "add", "name", port, "netns", self.switch, "type", "veth",
                "peer", "name", inside, "netns", namespace,
            )  # fmt: skip
        ports = [port for port, *_ in pairs]
        batch(
            "ip",
            [
                ("link", "add", "name", "joint", "type", "bridge"), ("link", "set", "joint", "up"),
                *(("link", "set", port, "master", "joint") for port in ports),
                *(("link", "set", port, "up") for port in ports),
            ],
            self.switch,
        )  # fmt: skip
        for _, namespace, inside, addresses in pairs:
            lines = [
                *(("addr", "add", f"{own}/16", "dev", inside) for own in addresses),
                # one segment a frame, as on a cable: counters and filters see every header
                ("link", "set", inside, "gso_max_segs", "1"),
                ("link", "set", inside, "up"),
                ("link", "set", "lo", "up"),
            ]
            batch("ip", lines, namespace)
        if mask := mask_of(cores):
            for namespace in names:
                run("ip", "netns", "exec", namespace, "sh", "-c", _STEER.format(mask=mask))
        # what the server sends leaves at its own interface, what it receives at the bridge's port
        limit = most if isfinite(most) else None
        others_down, others_up = ([(own, limit) for own in each] for each in self.addresses_of_others)
        down = [(address(client), each.down) for client, each in enumerate(links)]
        up = [(address(client), each.up) for client, each in enumerate(links)]
        self._share(self.server, _IN_SERVER, line.down, "dst", down + others_down)
        self._share(self.switch, _LINE, line.up, "src", up + others_up)
        for client, rates in enumerate(links):
            self.shape(client, rates)

    def client(self, client: int) -> str:
        """The name of a client's namespace."""
        return f"{self.name}-{client}"

    def shape(self, client: int, rates: Rates) -> None:
        """Give a client's link these rates."""
        self._shape(self.switch, _port(client), rates.down)
        self._shape(self.client(client), _IN_CLIENT, rates.up)

    def _shape(self, namespace: str, interface: str, rate: float | None) -> None:
        if rate is not None:
            # rates are those of payload, a filter counts whole frames
            run("tc", "-n", namespace, "qdisc", "replace", "dev", interface, "root", *bucket(rate / PAYLOAD_SHARE))

    def _share(
        self, namespace: str, interface: str, rate: float | None, end: str, sharers: Sequence[tuple[str, float | None]]
    ) -> None:
        """Divide a line: the frames of each of these addresses at this ``end`` get an equal part of the rate, or the
        address's own rate if that is less, and what one leaves goes to the others.

        In one queue for all, whoever has most in it would be served most.
        """
        if rate is None:
            return
        frames_rate = rate / PAYLOAD_SHARE
        lines = [
            ("qdisc", "replace", "dev", interface, "root", "handle", "1:", "htb"),
            ("class", "add", "dev", interface, "parent", "1:", "classid", "1:1", *share(frames_rate, frames_rate)),
        ]
        for number, (own, link) in enumerate(sharers):
            classid = f"1:{number + 2:x}"
            most = frames_rate if link is None else min(frames_rate, link / PAYLOAD_SHARE)
            lines += [
                ("class", "add", "dev", interface, "parent", "1:1", "classid", classid,
                 *share(min(frames_rate / len(sharers), most), most)),
                ("qdisc", "add", "dev", interface, "parent", classid, "bfifo", "limit", f"{QUEUE}b"),
                ("filter", "add", "dev", interface, "parent", "1:", "protocol", "ip", "u32", "match", "ip", end,
                 f"{own}/32", "flowid", classid),
            ]  # fmt: skip
        batch("tc", lines, namespace)

    def up(self, client: int, up: bool = True) -> None:
        """Take a client's link up or down."""
        run("ip", "-n", self.switch, "link", "set", _port(client), "up" if up else "down")

    def link_counters(self, client: int) -> tuple[LinkCounters, LinkCounters]:
        """What was sent to a client and what it sent, by the kernel's counters of its link."""
        return (_read_counters(self.switch, _port(client)), _read_counters(self.client(client), _IN_CLIENT))

    def listen(self, backlog: int) -> socket.socket:
        """A socket in the server's namespace that waits for clients."""
        return within(self.server, lambda: listening(PORT, backlog))


def within(namespace: str, make: Callable[[], T]) -> T:
    """What ``make`` returns in a namespace, for sockets.  Raises EmulationError if they can't be opened."""
    made: list[T | EmulationError] = []

    def enter_and_make() -> None:
        # a thread of its own, as a namespace is a thread's
        try:
            enter(namespace)
            made.append(make())
        except (OSError, EmulationError) as error:
            made.append(EmulationError(f"no socket in {namespace}: {error}"))

    thread = threading.Thread(target=enter_and_make)
    thread.start()
    thread.join()
    if isinstance(made[0], EmulationError):
        raise made[0]
    return made[0]


def listening(port: int, backlog: int) -> socket.socket:
    """A socket of the server that waits for streams."""
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind((SERVER, port))
    made.listen(backlog)
    return made


def mask_of(cores: Iterable[int]) -> str:
    """A set of cores as the kernel's files have it: hexadecimal, in groups of 32 bits."""
    bits, groups = sum(1 << core for core in set(cores)), []
    while bits:
        groups.append(f"{bits & 0xFFFFFFFF:08x}")
        bits >>= 32
    return ",".join(reversed(groups))


def address(client: int) -> str:
    """The IP address of a client."""
    return f"{PREFIX}.{1 + client // 250}.{1 + client % 250}"


def client_of(address: str) -> int:
    """The client with this address."""
    high, low = map(int, address.split(".")[2:])
    return 250 * (high - 1) + low - 1


def _port(client: int) -> str:
    return f"c{client}"


def _read_counters(namespace: str, interface: str) -> LinkCounters:
    told = json.loads(run("ip", "-n", namespace, "-s", "-j", "link", "show", "dev", interface))
    sent = told[0]["stats64"]["tx"]
    return LinkCounters(sent["bytes"], sent["packets"])
