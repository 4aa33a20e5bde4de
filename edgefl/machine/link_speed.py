"""A link measured over plain TCP: ``edgefl calibrate --serve PORT`` on one machine, ``--address`` on the other.

A connection begins with one line, ``edgefl-link 1 WHAT SECONDS``.  ``echo`` sends every byte back, ``down`` sends
noise for so long, ``up`` takes what comes and answers with the bit rates that it saw, a JSON list.  Nothing that
arrives is run, kept or looked at.
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
from edgefl.devices.writing import Entry, lent_watts, profile_text
from edgefl.errors import DeviceError

GREETING = "edgefl-link 1"
SECONDS, QUICK_SECONDS = 8.0, 2.0
LONGEST = 60.0
ECHOES = 21
PIECE = 0.25
"""Seconds of a transfer over which a rate is taken; the first quarter of them is TCP's start and doesn't count."""
BLOCK = 2**16
PATIENCE = 15.0
LIKE = "ethernet-gigabit"

OnMessage = Callable[[str], object]


def serve(
    port: int, on_message: OnMessage, *, ready: Callable[[int], object] = lambda port: None, turns: float = math.inf
) -> None:
    """Answer link tests on this port, one after another, until stopped (or for so many connections).

    ``ready`` hears the port once it listens, which tells what port 0 became.  Raises DeviceError for a port that
    can't be had.
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
                # whoever breaks off or says something else has had its turn
                with contextlib.suppress(OSError, ValueError):
                    _answer(connection)


def measure_link(address: str, *, quick: bool, like: str | None, on_message: OnMessage) -> str:
    """The YAML of a link to a machine that serves at HOST:PORT; the radio's watts are those of the link ``like``.

    Raises DeviceError for an address that can't be read or reached.
    """
    known = library_link(like or LIKE)
    where = _parsed(address)
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
            f"--address: {address} doesn't answer a link test ({reason}); run `edgefl calibrate --serve PORT` there"
        ) from None
    sigmas = [stdev(map(math.log, rates)) for rates in (down, up)]
    title, today = "edgefl calibrate, a TCP test", datetime.date.today()

    def entry(values: list[float], show: Callable[[float], str], quote: str) -> Entry:
        low, middle, high = min(values), median(values), max(values)
        text = f"{show(middle)} ({show(low)} to {show(high)}): {quote}"
        return Entry(show(middle), show(low), show(high), "measured", title, today, text)

    bits = units.show_bits_per_second
    pieces = f"pieces of {PIECE:g} s of one TCP stream, what arrived, its start left out."
    entries = {
        "download_bits_per_second": entry(down, bits, f"median of {len(down)} {pieces}"),
        "upload_bits_per_second": entry(up, bits, f"median of {len(up)} {pieces}"),
        "latency_seconds": entry(trips, units.show_seconds, f"median of {len(trips)} round trips of one byte."),
        "loss": Entry("0", "0", "0", "measured", title, today,
                      "The rates are of payload that arrived: headers and retransmission are out of them already."),
    }  # fmt: skip
    entries |= lent_watts(known, "Not measured")
    entries["jitter"] = entry(sigmas, lambda s: f"{s:.3g}", "sigma of the log of the pieces' rates, of each direction.")
    return profile_text({"title": "Measured link"}, entries)


def _parsed(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise DeviceError(f"--address: {address!r} is not HOST:PORT, as in 192.0.2.7:5201")
    return host.strip("[]"), int(port)


def _asked(where: tuple[str, int], what: str, seconds: float = 0.0) -> socket.socket:
    connection = socket.create_connection(where, timeout=PATIENCE)
    connection.sendall(f"{GREETING} {what} {seconds:g}\n".encode())
    return connection


def _round_trips(where: tuple[str, int]) -> list[float]:
    found = []
    with _asked(where, "echo") as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(ECHOES):
            began = time.perf_counter()
            connection.sendall(b".")
            if connection.recv(1) != b".":
                raise ValueError("it doesn't echo")
            found.append(time.perf_counter() - began)
    return found[1:]


def _download(where: tuple[str, int], seconds: float) -> list[float]:
    with _asked(where, "down", seconds) as connection:
        return _checked(_received(connection, seconds))


def _upload(where: tuple[str, int], seconds: float) -> list[float]:
    with _asked(where, "up", seconds) as connection:
        _sent(connection, seconds)
        connection.shutdown(socket.SHUT_WR)
        answer = bytearray()
        while piece := connection.recv(BLOCK):
            answer += piece
            if len(answer) > 2**20:
                raise ValueError("its answer is too long")
    rates = json.loads(answer)
    if not isinstance(rates, list) or not all(isinstance(rate, int | float) for rate in rates):
        raise ValueError("its answer is no list of rates")
    return _checked([float(rate) for rate in rates])


def _checked(rates: list[float]) -> list[float]:
    rates = [rate for rate in rates if 0 < rate < math.inf]
    if len(rates) < 2:
        raise ValueError("too little arrived to tell a rate")
    return rates


def _answer(connection: socket.socket) -> None:
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = connection.recv(1)
        if not byte or len(line) > 100:
            return
        line += byte
    greeting, what, number = line.decode("ascii").strip().rsplit(" ", 2)
    seconds = min(LONGEST, float(number))
    if greeting != GREETING:
        return
    if what == "echo":
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(10 * ECHOES):
            if not (byte := connection.recv(1)):
                return
            connection.sendall(byte)
    elif what == "down":
        _sent(connection, seconds)
    elif what == "up":
        rates = _received(connection, seconds)
        connection.sendall(json.dumps(rates).encode())


def _sent(connection: socket.socket, seconds: float) -> None:
    noise = os.urandom(BLOCK)  # which nothing on the way compresses
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        connection.sendall(noise)


def _received(connection: socket.socket, seconds: float) -> list[float]:
    """Bits per second in every piece of what comes until its end (or twice as long), but for the first quarter."""
    found: list[float] = []
    buffer = bytearray(BLOCK)
    began = last = time.perf_counter()
    held = 0
    while (read := connection.recv_into(buffer)) and last - began < 2 * seconds + PIECE:
        held += read
        now = time.perf_counter()
        if now - last >= PIECE:
            found.append(8 * held / (now - last))
            held, last = 0, now
    return found[len(found) // 4 :]
