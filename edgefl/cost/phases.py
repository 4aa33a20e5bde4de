"""The one formula of time and energy: the three phases of rounds, as prices say them and the virtual clock plays them.

A round downloads, loads its model and computes, and uploads.  While half of a split model computes, it sends, waits for
the server and receives for each batch.  A transfer takes one latency plus bits / rate, and no
time if there are no bits: connections are taken as open.  While its processor is busy, a device draws its compute
power, and while a GPU waits for its next kernel its idle power; while it receives or sends, its idle power plus that of
its radio.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from edgefl.arrays import Floats, Integers
from edgefl.cost.client_cost import ExchangeCost
from edgefl.devices import Device, Link
from edgefl.devices.profile import throttled_seconds

Two = tuple[Any, Any]
Three = tuple[Any, Any, Any]

NUMBERS = (
    "down_bits", "up_bits", "latency", "down_goodput", "up_goodput", "cool_seconds", "throttle_after",
    "throttled_share", "idle_watts", "download_watts", "upload_watts", "compute_watts", "busy_share",
    "exchange_down_bits", "exchange_up_bits", "exchange_down_seconds", "exchange_up_seconds", "server_seconds",
)  # fmt: skip
"""Numbers of a round; ``cool_seconds`` is the time of loading and computing without throttling, and ``busy_share`` the
share of it in which the processor is busy.  The last five are those of exchanges: bits, seconds of receiving and of
sending on the client's link, latencies included, and of waiting for the server."""
_LATENCY, _COOL, _AFTER, _SHARE, _IDLE, _RECEIVING, _SENDING, _COMPUTING, _BUSY = (2, *range(5, 13))
_BITS, _EXCHANGED_DOWN, _EXCHANGED_UP, _SERVED = (slice(13, 15), *range(15, 18))


def numbers_of(
    down_bytes: int | Integers,
    up_bytes: int | Integers,
    cool_seconds: float | Floats,
    device: Device,
    link: Link | None,
    busy_share: float | Floats = 1.0,
    exchanges: Sequence[ExchangeCost | None] = (),
) -> tuple[Any, ...]:
    """The NUMBERS of a round that moves these serialised bytes, or of several that are given as arrays `[rounds]`.

    ``exchanges`` are those of each round, whose bytes are among them; none for none at all.  Without a link a transfer
    takes no time.
    """
    latency, down, up, receiving, sending = (0.0, np.inf, np.inf, 0.0, 0.0) if link is None else (
        link.latency_seconds, link.download_goodput, link.upload_goodput, link.download_watts, link.upload_watts
    )  # fmt: skip
    exchanged: tuple[Any, ...] = (0, 0, 0.0, 0.0, 0.0)
    if any(exchanges):
        rows = [exchanged if each is None else _exchange_numbers(each, latency, down, up) for each in exchanges]
        exchanged = tuple(np.array(rows).T) if isinstance(cool_seconds, np.ndarray) else rows[0]
    return (
        8 * down_bytes - exchanged[0], 8 * up_bytes - exchanged[1], latency, down, up, cool_seconds,
        device.throttle_after_seconds, device.throttled_share, device.idle_watts, receiving, sending,
        device.compute_watts, busy_share, *exchanged,
    )  # fmt: skip


def _exchange_numbers(exchange: ExchangeCost, latency: float, down: float, up: float) -> tuple[Any, ...]:
    bits = 8 * exchange.serialised_download_bytes, 8 * exchange.serialised_upload_bytes
    waits = exchange.trips * latency
    return (*bits, waits + bits[0] / down, waits + bits[1] / up, exchange.server_seconds)


@dataclass(frozen=True)
class Phases:
    """The phases of rounds, from their ``numbers``, the NUMBERS in their order: an array `[rounds]` for each, or a
    number for each, which makes the phases of one round in a tenth of the time.

    Three ``factors`` (jitter) multiply the seconds of download, compute and upload, and ``slow`` those of compute
    again; all are 1 for a price.  ``waits`` are seconds of waiting for the server's device under ``split``, 0 for a
    price.  Results of all functions are `[rounds]`, or a number.
    """

    numbers: Floats | Sequence[Any]
    throttling: bool = False
    factors: Floats | Sequence[Any] = (1.0, 1.0, 1.0)
    slow: Any = 1.0
    waits: Any = 0.0

    @property
    def bits(self) -> Two:
        """Bits of the downloads and of the uploads."""
        return self.numbers[0], self.numbers[1]

    @property
    def exchanged_bits(self) -> Two:
        """Bits that are exchanged down and up while the client computes."""
        down, up = self.numbers[_BITS]
        return down, up

    @cached_property
    def latency(self) -> Two:
        """Seconds before the first bit of download and upload; 0 if there are no bits."""
        down, up = self.bits
        first = self.numbers[_LATENCY]
        return first * self.factors[0] * (down > 0), first * self.factors[2] * (up > 0)

    @cached_property
    def rates(self) -> Two:
        """Bits per second of each client's own link: down and up."""
        return self.numbers[_LATENCY + 1] / self.factors[0], self.numbers[_LATENCY + 2] / self.factors[2]

    @cached_property
    def own_seconds(self) -> Any:
        """Seconds in which the client itself loads and computes, with slow-down and throttling."""
        busy = self.numbers[_COOL] * self.factors[1] * self.slow
        return throttled_seconds(busy, self.numbers[_AFTER], self.numbers[_SHARE]) if self.throttling else busy

    @cached_property
    def exchange_seconds(self) -> Three:
        """Seconds in which it receives, sends and waits for the server between two halves of a step."""
        down, up = self.numbers[_EXCHANGED_DOWN] * self.factors[0], self.numbers[_EXCHANGED_UP] * self.factors[2]
        return down, up, self.numbers[_SERVED]

    @cached_property
    def compute_seconds(self) -> Any:
        """Seconds of loading and computing, exchanges with the server's half of the model included."""
        down, up, served = self.exchange_seconds
        return self.own_seconds + (down + up + served) + self.waits

    @cached_property
    def watts(self) -> Three:
        """Mean power while it receives, computes and sends."""
        idle, most, busy = self.numbers[_IDLE], self.numbers[_COMPUTING], self.numbers[_BUSY]
        receiving, sending = self.numbers[_RECEIVING], self.numbers[_SENDING]
        computing = idle + (most - idle) * busy
        down, up, served = self.exchange_seconds
        exchanged = down + up + served
        if exchanged.any() if isinstance(exchanged, np.ndarray) else exchanged:
            own, whole = self.own_seconds, np.maximum(self.compute_seconds, np.finfo(float).tiny)
            computing = idle + ((computing - idle) * own + receiving * down + sending * up) / whole
        return idle + receiving, computing, idle + sending

    @cached_property
    def seconds(self) -> Three:
        """Seconds of download, compute and upload."""
        down, up = (first + bits / rate for first, bits, rate in zip(self.latency, self.bits, self.rates, strict=True))
        return down, self.compute_seconds, up

    @cached_property
    def energy_joules(self) -> Any:
        """Joules of all phases."""
        down, busy, up = joules_of(self.seconds, self.watts)
        return down + busy + up

    @property
    def peak_watts(self) -> Floats:
        """The highest power that a round draws in the phases that take time, `[rounds]`."""
        most = self.watts[0], self.numbers[_COMPUTING], self.watts[2]
        received, _, sent = self.seconds
        received, sent = received + self.exchange_seconds[0], sent + self.exchange_seconds[1]
        spent = received, self.own_seconds, sent
        down, busy, up = (np.where(each > 0, power, 0.0) for each, power in zip(spent, most, strict=True))
        return np.asarray(np.maximum(np.maximum(down, busy), up))


def joules_of(seconds: Iterable[Floats], watts: Iterable[Floats]) -> Three:
    """Joules of download, compute and upload, from their seconds and ``Phases.watts``."""
    down, busy, up = (spent * power for spent, power in zip(seconds, watts, strict=True))
    return down, busy, up


def exchanged_bytes(bits: Floats | float, spent: Floats, whole: Floats) -> Integers:
    """Bytes of exchanges after ``spent`` of the ``whole`` seconds of computing, over which these bits are spread."""
    moved = bits * (spent / np.maximum(whole, np.finfo(float).tiny)) // 8
    return np.asarray(moved).astype(np.int64)


def carried_bits(
    spent: Floats | float, latency: Floats | float, rates: Floats | float, bits: Floats | Integers | float
) -> Floats:
    """Bits that transfers have moved ``spent`` seconds after they began, of ``bits`` in all."""
    return np.asarray(np.minimum(np.maximum((spent - latency) * rates, 0.0), bits))
