"""Links of emulated clients: what crosses them takes as long as their rates say, and the kernel counts it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from math import inf

import pytest

from tools.emulation import frames
from tools.emulation.journal import MachineJournal
from tools.emulation.kernel import enter, run
from tools.emulation.links import (
    ETHERNET,
    IP_AND_TCP,
    MTU,
    PORT,
    SERVER,
    EmulatedNetwork,
    Rates,
    address,
    client_of,
    mask_of,
)
from tools.emulation.traffic import CrossTraffic

MOST_OFF = 0.05


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    """Closes the sockets of a test."""
    with ExitStack() as stack:
        yield stack


def joined(network: EmulatedNetwork, clients: int, opened: ExitStack) -> list[tuple[socket.socket, socket.socket]]:
    """Streams of the server and of each client."""
    theirs: dict[int, socket.socket] = {}

    def connect(client: int) -> None:
        enter(network.client(client))
        theirs[client] = socket.create_connection((SERVER, PORT))

    streams = {}
    with network.listen(clients) as listening:
        for client in range(clients):
            thread = threading.Thread(target=connect, args=(client,))
            thread.start()
            thread.join()
            stream, (told, _) = listening.accept()
            streams[client_of(told)] = stream
    for stream in (*streams.values(), *theirs.values()):
        opened.enter_context(stream)
        frames.tune(stream)
    return [(streams[client], theirs[client]) for client in range(clients)]


def seconds(sender: socket.socket, receiver: socket.socket, size: int) -> float:
    """Seconds until a payload of this size has arrived."""
    sent = bytes(size)
    thread = threading.Thread(target=frames.send, args=(sender, [sent]))
    began = time.monotonic()
    thread.start()
    (arrived,) = frames.receive(receiver, 1)
    took = time.monotonic() - began
    thread.join()
    assert arrived == sent
    return took


@pytest.mark.slow(smaller="test_the_kernel_counts_the_payload_and_its_headers")
def test_both_directions_have_their_own_rate(journal: MachineJournal, opened: ExitStack) -> None:
    network = EmulatedNetwork(journal, [Rates(20e6, 5e6), Rates(80e6, 40e6)])
    streams = joined(network, 2, opened)
    for client, down, up in ((0, 20e6, 5e6), (1, 80e6, 40e6)):
        server, own = streams[client]
        seconds(server, own, 1000)  # addresses are resolved
        for sender, receiver, rate in ((server, own, down), (own, server, up)):
            size = int(0.4 * rate / 8)
            # a busy machine makes a transfer longer, and nothing makes it shorter
            assert min(seconds(sender, receiver, size) for _ in range(3)) == pytest.approx(0.4, rel=MOST_OFF)


@pytest.mark.slow(smaller="test_two_clients_halve_the_servers_uplink")
def test_a_line_that_all_share_is_divided(journal: MachineJournal, opened: ExitStack) -> None:
    network = EmulatedNetwork(journal, [Rates(80e6, 80e6), Rates(80e6, 80e6)], Rates(None, 20e6))
    streams = joined(network, 2, opened)
    size, took = 500_000, {}

    def upload(client: int) -> None:
        took[client] = seconds(streams[client][1], streams[client][0], size)

    threads = [threading.Thread(target=upload, args=(client,)) for client in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # both together move at the line's rate, and neither before the other
    assert max(took.values()) == pytest.approx(2 * 8 * size / 20e6, rel=0.1)
    assert min(took.values()) == pytest.approx(max(took.values()), rel=0.15)


@pytest.mark.slow(smaller="test_a_slow_client_leaves_the_rest_to_the_fast_one")
@pytest.mark.parametrize("direction", ["down", "up"])
def test_what_a_slow_link_leaves_of_a_line_goes_to_the_others(
    journal: MachineJournal, opened: ExitStack, direction: str
) -> None:
    line = Rates(20e6, None) if direction == "down" else Rates(None, 20e6)
    network = EmulatedNetwork(journal, [Rates(4e6, 4e6), Rates(80e6, 80e6)], line)
    streams = joined(network, 2, opened)
    for server, own in streams:
        seconds(server, own, 1000)
    took = {}

    def move(client: int, size: int) -> None:
        ends = streams[client] if direction == "down" else streams[client][::-1]
        took[client] = seconds(*ends, size)

    # max-min: 4 and 16 Mbit/s, so that both take a second
    threads = [threading.Thread(target=move, args=(0, 500_000)), threading.Thread(target=move, args=(1, 2_000_000))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert took[0] == pytest.approx(1.0, rel=0.1)
    assert took[1] == pytest.approx(1.0, rel=0.1)


@pytest.mark.slow(smaller="test_the_traffic_of_others_takes_its_share_of_each_direction")
@pytest.mark.parametrize("direction", ["down", "up"])
@pytest.mark.parametrize(("flows", "most", "left"), [(1, inf, 10e6), (3, inf, 5e6), (2, 3e6, 14e6)])
def test_others_on_a_line_take_their_shares(
    journal: MachineJournal, opened: ExitStack, direction: str, flows: int, most: float, left: float
) -> None:
    line = Rates(20e6, 20e6)
    network = EmulatedNetwork(journal, [Rates(80e6, 80e6)], line, (flows, most))
    ((server, own),) = joined(network, 1, opened)
    traffic = opened.enter_context(CrossTraffic(network, line))
    time.sleep(0.5)
    size = int(left / 8)
    before = list(traffic.received)
    took = seconds(*((server, own) if direction == "down" else (own, server)), size)
    others = [(now - then) / size for now, then in zip(traffic.received, before, strict=True)]
    assert took == pytest.approx(1.0, rel=0.07)
    # where the client doesn't send, they have the line to themselves
    alone = min(20e6, flows * most) / left
    expected = [alone, min(20e6 - left, flows * most) / left]
    assert others == pytest.approx(expected[::-1] if direction == "down" else expected, rel=0.1)


def test_the_kernel_counts_the_payload_and_its_headers(journal: MachineJournal, opened: ExitStack) -> None:
    network = EmulatedNetwork(journal, [Rates(40e6, 40e6)])
    ((server, own),) = joined(network, 1, opened)
    size = 1_000_000
    before = network.link_counters(0)
    seconds(server, own, size)
    time.sleep(0.1)
    down, up = network.link_counters(0)
    sent, frames_sent = down.bytes - before[0].bytes, down.frames - before[0].frames
    payload = size + frames.HEADER_BYTES
    assert frames_sent == pytest.approx(payload / (MTU - IP_AND_TCP), abs=15)
    # a few frames of address resolution have no TCP, and a busy machine may send one or two again
    assert sent == pytest.approx(payload + (ETHERNET + IP_AND_TCP) * frames_sent, abs=2 * MTU + 1000)
    assert up.bytes - before[1].bytes < 0.05 * size  # acknowledgements only


def test_a_stream_that_ends_early_is_told(journal: MachineJournal, opened: ExitStack) -> None:
    network = EmulatedNetwork(journal, [Rates(40e6, 40e6)])
    ((server, own),) = joined(network, 1, opened)
    server.sendall(frames.HEADER.pack(frames.MARK, 0, 100) + bytes(40))
    server.shutdown(socket.SHUT_WR)
    with pytest.raises(frames.StreamBroken, match="ended after 40 of 100 bytes"):
        frames.receive(own, 1)


def test_frames_are_handled_on_the_cores_that_are_named(journal: MachineJournal) -> None:
    network = EmulatedNetwork(journal, [Rates(1e6, 1e6)], cores=[0])
    read = "cat /sys/class/net/eth0/queues/rx-0/rps_cpus"
    assert int(run("ip", "netns", "exec", network.server, "sh", "-c", read).replace(",", ""), 16) == 1
    assert mask_of([]) == ""
    assert [mask_of(cores) for cores in ([0, 3], [1, 33])] == ["00000009", "00000002,00000002"]


def test_addresses_name_their_clients() -> None:
    assert [client_of(address(client)) for client in (0, 249, 250, 999)] == [0, 249, 250, 999]


def test_nothing_of_the_host_is_touched(journal: MachineJournal) -> None:
    before = run("ip", "-br", "link")
    EmulatedNetwork(journal, [Rates(1e6, 1e6)])
    assert run("ip", "-br", "link") == before
