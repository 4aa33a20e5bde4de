"""Payloads on a stream socket: each is a header of 16 bytes and its safetensors bytes."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence

from edgefl.errors import EmulationError

HEADER = struct.Struct(">4sIQ")
"""A mark, the payload's number among those that travel together, and its bytes."""
MARK = b"EFL1"
HEADER_BYTES = HEADER.size
PIECE = 1 << 18
BUFFER = 64 << 20
"""Bytes that the kernel holds for a sender."""
_SO_SNDBUFFORCE = 32  # Linux's; the module socket doesn't have it


def tune(stream: socket.socket) -> None:
    """Send what is written at once, and let the kernel hold it: a sender under a quota would fill a buffer slowly."""
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    stream.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, BUFFER)


def send(stream: socket.socket, payloads: Sequence[bytes]) -> None:
    """Send payloads one after the other."""
    for number, payload in enumerate(payloads):
        stream.sendall(HEADER.pack(MARK, number, len(payload)))
        stream.sendall(payload)


def receive(stream: socket.socket, count: int) -> list[bytearray]:
    """Receive ``count`` payloads.  Raises EmulationError if the stream ends before, or holds something else."""
    payloads = []
    for number in range(count):
        mark, told, size = HEADER.unpack(_exactly(stream, HEADER_BYTES))
        if mark != MARK or told != number:
            raise EmulationError(f"no payload {number} on the stream, but {bytes(mark)!r} {told}")
        payloads.append(_exactly(stream, size))
    return payloads


def _exactly(stream: socket.socket, size: int) -> bytearray:
    buffer = bytearray(size)
    view, have = memoryview(buffer), 0
    while have < size:
        got = stream.recv_into(view[have : have + PIECE])
        if not got:
            raise EmulationError(f"the stream ended after {have} of {size} bytes")
        have += got
    return buffer
