"""Measures a link over TCP: ``edgefl devices calibrate --serve PORT`` on one machine, ``--address`` on the other.

The client sends one line, ``edgefl-link 1 TEST SECONDS``.  For ``echo`` the server sends every byte back.  For ``down``
it sends random bytes for that time.  For ``up`` it receives bytes and answers with the measured bit rates as a JSON
list.  The server neither executes nor stores received bytes.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import math
import os
import socket
import time
from collections.abc import Callable
from statistics import median, stdev

from edgefl import units
from edgefl.devices import load_link as library_link
from edgefl.devices.writing import ProfileNumber, lent_watts, profile_text
from edgefl.errors import DeviceError

GREETING = "edgefl-link 1"
SECONDS, QUICK_SECONDS = 8.0, 2.0
"""Of a stream in each direction: 24 rates, or 6."""
LONGEST = 60.0
"""Seconds that a client may ask of a server, which serves one at a time."""
ECHOES = 21
"""Round trips, of which the first isn't counted: the median is that of 20."""
PIECE = 0.25
"""Seconds of an interval over which one rate is measured.  The first quarter of the rates (slow start) is dropped."""
BLOCK = 2**16
"""Bytes that are sent or received at a time: at 1 Gbit/s 2,000 calls a second."""
PATIENCE = 15.0
"""Seconds without a byte after which the other side is taken as gone.

A choice, not measured: a link that is silent for longer can't be measured.
"""
LIKE = "ethernet-gigabit"

OnMessage = Callable[[str], object]


def serve(
    port: int, on_message: OnMessage, *, ready: Callable[[int], object] = lambda port: None, turns: float = math.inf
) -> None:
    """Answer link tests on this port, one after another, until interrupted or after ``turns`` connections.

    ``ready`` is called with the port when the server listens; port 0 lets the system choose one.  Raises DeviceError if
    the port can't be opened.
    """
    try:
        listening = socket.create_server(("", port))
    except (OSError, OverflowError) as error:
        raise DeviceError(
            f"--serve: can't listen on port {port}: {getattr(error, 'strerror', None) or error}"
        ) from None
    with listening:
        on_message(f"answering link tests on port {listening.getsockname()[1]}; Ctrl-C ends it")
        ready(listening.getsockname()[1])
        while turns > 0:
            connection, _ = listening.accept()
            turns -= 1
            with connection:
                connection.settimeout(PATIENCE)
                # a client that disconnects or sends something else is ignored; the next one is served
                with contextlib.suppress(OSError, ValueError):
                    _answer(connection)


def measure_link(address: str, *, quick: bool, like: str | None, on_message: OnMessage) -> str:
    """Measure the link to the server at HOST:PORT and return its profile as YAML.

    Watts of the radio are copied from the library's link ``like``.  Raises DeviceError if the address isn't valid or
    doesn't answer, UnknownName for an unknown link.
    """
    lender = library_link(like or LIKE)
    where = _parse_address(address)
    seconds = QUICK_SECONDS if quick else SECONDS
    try:
        on_message("link: round trips")
        trips = _round_trips(where)
        on_message("link: download")
        down = _download(where, seconds)
        on_message("link: upload")
        up = _upload(where, seconds)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error) or "no answer"
        raise DeviceError(
            f"--address: {address} doesn't answer a link test ({reason}); run `edgefl devices calibrate --serve PORT` "
            "there"
        ) from None
    sigmas = [stdev(map(math.log, rates)) for rates in (down, up)]
    title, today = "edgefl devices calibrate, a TCP test", datetime.date.today()

    def entry(values: list[float], show: Callable[[float], str], quote: str) -> ProfileNumber:
        low, middle, high = min(values), median(values), max(values)
        text = f"{show(middle)} ({show(low)} to {show(high)}): {quote}"
        return ProfileNumber(show(middle), show(low), show(high), "measured", title, today, text)

    bits = units.show_bits_per_second
    intervals = f"intervals of {PIECE:g} s of one TCP stream, received payload without the stream's start."
    entries = {
        "download_bits_per_second": entry(down, bits, f"median of {len(down)} {intervals}"),
        "upload_bits_per_second": entry(up, bits, f"median of {len(up)} {intervals}"),
        "latency_seconds": entry(trips, units.show_seconds, f"median of {len(trips)} round trips of one byte."),
        "loss": ProfileNumber("0", "0", "0", "measured", title, today,
                      "Included in the rates, which count received payload without headers and retransmissions."),
    }  # fmt: skip
    entries |= lent_watts(lender, "Not measured")
    entries["jitter"] = entry(sigmas, lambda s: f"{s:.3g}", "sigma of the log of the intervals' rates, by direction.")
    return profile_text({"title": "Measured link"}, entries)


def _parse_address(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise DeviceError(f"--address: {address!r} is not HOST:PORT, as in 192.0.2.7:5201")
    return host.strip("[]"), int(port)


def _connect(where: tuple[str, int], test: str, seconds: float = 0.0) -> socket.socket:
    """Connect to the server and start a test."""
    connection = socket.create_connection(where, timeout=PATIENCE)
    connection.sendall(f"{GREETING} {test} {seconds:g}\n".encode())
    return connection


def _round_trips(where: tuple[str, int]) -> list[float]:
    """Seconds of each round trip of one byte; the first, which may wait for the server, is dropped."""
    trips = []
    with _connect(where, "echo") as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(ECHOES):
            began = time.perf_counter()
            connection.sendall(b".")
            if connection.recv(1) != b".":
                raise ValueError("it doesn't echo")
            trips.append(time.perf_counter() - began)
    return trips[1:]


def _download(where: tuple[str, int], seconds: float) -> list[float]:
    """Bits per second of each interval of a download."""
    with _connect(where, "down", seconds) as connection:
        return _check_rates(_receive(connection, seconds))


def _upload(where: tuple[str, int], seconds: float) -> list[float]:
    """Bits per second of each interval of an upload, as the server measured them."""
    with _connect(where, "up", seconds) as connection:
        _send(connection, seconds)
        connection.shutdown(socket.SHUT_WR)
        answer = bytearray()
        while chunk := connection.recv(BLOCK):
            answer += chunk
            if len(answer) > 2**20:
                raise ValueError("its answer is too long")
    rates = json.loads(answer)
    if not isinstance(rates, list) or not all(isinstance(rate, int | float) for rate in rates):
        raise ValueError("its answer is not a list of rates")
    return _check_rates([float(rate) for rate in rates])


def _check_rates(rates: list[float]) -> list[float]:
    """The positive, finite rates.  Raises ValueError if there are fewer than two."""
    rates = [rate for rate in rates if 0 < rate < math.inf]
    if len(rates) < 2:
        raise ValueError("too few bytes arrived to measure a rate")
    return rates


def _answer(connection: socket.socket) -> None:
    """Serve one connection.  Raises OSError and ValueError for clients that disconnect or send something else."""
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = connection.recv(1)
        if not byte or len(line) > 100:
            return
        line += byte
    greeting, test, number = line.decode("ascii").strip().rsplit(" ", 2)
    seconds = min(LONGEST, float(number))
    if greeting != GREETING:
        return
    if test == "echo":
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(10 * ECHOES):
            if not (byte := connection.recv(1)):
                return
            connection.sendall(byte)
    elif test == "down":
        _send(connection, seconds)
    elif test == "up":
        rates = _receive(connection, seconds)
        connection.sendall(json.dumps(rates).encode())


def _send(connection: socket.socket, seconds: float) -> None:
    noise = os.urandom(BLOCK)  # random, so that no device on the route can compress it
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        connection.sendall(noise)


def _receive(connection: socket.socket, seconds: float) -> list[float]:
    """Receive until the stream ends or twice ``seconds`` have passed.

    Returns the bits per second of each interval of ``PIECE`` seconds, without the first quarter of them.
    """
    rates: list[float] = []
    buffer = bytearray(BLOCK)
    began = last = time.perf_counter()
    received = 0
    while (read := connection.recv_into(buffer)) and last - began < 2 * seconds + PIECE:
        received += read
        now = time.perf_counter()
        if now - last >= PIECE:
            rates.append(8 * received / (now - last))
            received, last = 0, now
    return rates[len(rates) // 4 :]
