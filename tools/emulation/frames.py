"""Payloads on a stream socket: each is a header of 16 bytes and its safetensors bytes."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import IO

from tools.emulation.kernel import EmulationError

HEADER = struct.Struct(">4sIQ")
"""A mark, the payload's number among those that travel together, and its bytes."""
MARK = b"EFL1"
HEADER_BYTES = HEADER.size
PIECE = 1 << 16
"""Bytes for which a receiver wakes.  Receivers that woke for each frame, and frames that the kernel
handled on the clients' cores, made works take a tenth longer."""
LONGEST = 3600.0
"""Seconds that a receiver waits at a time, since a socket takes no infinite time-out; then it waits on."""
BUFFER = 64 << 20
"""Bytes that the kernel holds for a sender, which a client's quota would slow down.

A choice, not measured: larger payloads leave at the pace of the sender beyond it.  It is memory of the host, for each
connection that sends.
"""
_SO_SNDBUFFORCE = 32  # Linux's; the module socket doesn't have it


def tune(stream: socket.socket) -> None:
    """Send what is written at once, and let the kernel hold it: a sender under a quota would fill a buffer slowly.

    What it holds is lost when the process ends, as on a device that is switched off.
    """
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, BUFFER)


def send(stream: socket.socket, payloads: Sequence[bytes]) -> None:
    """Send payloads one after the other."""
    for number, payload in enumerate(payloads):
        stream.sendall(HEADER.pack(MARK, number, len(payload)))
        stream.sendall(payload)


class StreamBroken(Exception):
    """A stream that ended, or said nothing in time, in the middle of payloads; ``received`` of their bytes came."""

    def __init__(self, message: str, received: int):
        super().__init__(message)
        self.received = received


@dataclass
class Receiver:
    """Receives payloads, and notes when the first of their bytes came (None: none yet)."""

    stream: socket.socket
    received: int = 0
    first: float | None = None

    def payloads(self, count: int, until: float = inf) -> list[bytearray]:
        """Receive ``count`` payloads until a time of the monotonic clock.

        Raises Broken if the stream ends before or the time is over, EmulationError if it holds something else.
        """
        return [self._exactly(self._size(number, until), until) for number in range(count)]

    def into(self, file: IO[bytes], number: int) -> None:
        """Receive the payload of this number into a file, a piece at a time.  Raises as ``payloads`` does."""
        left = self._size(number, inf)
        while left:
            piece = self._exactly(min(left, PIECE), inf)
            file.write(piece)
            left -= len(piece)

    def _size(self, number: int, until: float) -> int:
        mark, told, size = HEADER.unpack(self._exactly(HEADER_BYTES, until))
        self.received -= HEADER_BYTES
        if mark != MARK or told != number:
            raise EmulationError(f"no payload {number} on the stream, but {bytes(mark)!r} {told}")
        return int(size)

    def _exactly(self, size: int, until: float) -> bytearray:
        buffer = bytearray(size)
        view, have = memoryview(buffer), 0
        while have < size:
            try:
                # woken once for a piece, not by each frame: on this core another client may be at work
                self.stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, min(size - have, PIECE))
                # with a time, as without one the kernel may wait for more than is left of the piece
                self.stream.settimeout(min(max(until - time.monotonic(), 1e-3), LONGEST))
                got = self.stream.recv_into(view[have : have + PIECE])
            except TimeoutError:
                if time.monotonic() < until:
                    continue
                self.stream.settimeout(0.0)
                with suppress(BlockingIOError):
                    self.received += self.stream.recv_into(view[have : have + PIECE])
                raise StreamBroken(f"{have} of {size} bytes came in time", self.received) from None
            except OSError as error:
                raise StreamBroken(
                    f"the stream broke after {have} of {size} bytes: {error.strerror}", self.received
                ) from None
            if not got:
                raise StreamBroken(f"the stream ended after {have} of {size} bytes", self.received)
            self.first = self.first or time.monotonic()
            have += got
            self.received += got
        return buffer


def receive(stream: socket.socket, count: int) -> list[bytearray]:
    """Receive ``count`` payloads.  Raises Broken if the stream ends before, EmulationError if it
    holds something else."""
    return Receiver(stream).payloads(count)
