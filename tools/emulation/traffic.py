"""Traffic of others on the server's line of an emulation."""

from __future__ import annotations

import socket
import threading
from contextlib import ExitStack, suppress
from typing import Self

from tools.emulation.links import PORT, SERVER, EmulatedNetwork, Rates, listening, within

PIECE = 1 << 16
"""Bytes that are sent or received at a time; four times as many wait at the sender.  A choice, not measured: with fewer
the threads of these streams wake more often, and take processor time from clients."""


class CrossTraffic:
    """Transfers of others that run until they are closed: TCP streams whose senders always have bytes to send.

    Each direction of the line that has a rate has as many as the network has addresses for.  A context manager.  Raises
    EmulationError if a stream can't be opened.
    """

    def __init__(self, network: EmulatedNetwork, line: Rates):
        self._streams = ExitStack()
        self._threads: list[tuple[threading.Thread, socket.socket]] = []
        self.received = [0, 0]
        """Bytes that have arrived, down from the server and up to it."""
        try:
            for up, rate in enumerate((line.down, line.up)):
                for own in network.addresses_of_others[up] if rate is not None else ():
                    ours, theirs = self._open_stream(network, own)
                    self._begin(theirs if up else ours, ours if up else theirs, up)
        except BaseException:
            self.close()
            raise

    def _open_stream(self, network: EmulatedNetwork, own: str) -> tuple[socket.socket, socket.socket]:
        """A stream of the server with this address of others, both its ends."""
        with within(network.server, lambda: listening(PORT + 1, 1)) as waiting:
            waiting.settimeout(10.0)
            theirs = within(network.others, lambda: socket.create_connection((SERVER, PORT + 1), 10.0, (own, 0)))
            self._streams.enter_context(theirs)
            ours, _ = waiting.accept()
        self._streams.enter_context(ours)
        for stream in (ours, theirs):
            stream.settimeout(None)
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * PIECE)
        return ours, theirs

    def _begin(self, sender: socket.socket, receiver: socket.socket, up: int) -> None:
        def send() -> None:
            piece = bytes(PIECE)
            with suppress(OSError):
                while True:
                    sender.sendall(piece)

        def receive() -> None:
            buffer = bytearray(PIECE)
            with suppress(OSError):
                while got := receiver.recv_into(buffer):
                    self.received[up] += got

        for act, stream in ((send, sender), (receive, receiver)):
            thread = threading.Thread(target=act, daemon=True)
            thread.start()
            self._threads.append((thread, stream))

    def close(self) -> None:
        """End the transfers."""
        for _, stream in self._threads:
            with suppress(OSError):
                stream.shutdown(socket.SHUT_RDWR)
        for thread, _ in self._threads:
            thread.join()
        self._threads = []
        self._streams.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
