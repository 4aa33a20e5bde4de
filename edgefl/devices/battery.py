"""Batteries: what is left of each client's at a time, what a work takes of it, and when it may take part again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import BaseModel, ConfigDict, Field, field_validator

from edgefl import seeds, units
from edgefl.devices.profile import Device

Floats = NDArray[np.float64]


class BatteryOptions(BaseModel):
    """What the clients' batteries hold, how they are charged, and when their owners keep the rest for themselves."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    capacity: units.JoulesRange | None = Field(
        default=None,
        description="Energy of a full battery, one value or a range from which every client draws (10..20 Wh); left "
        "out: that of the device's profile, and a device without one runs on mains.",
    )
    initial: units.ShareRange = Field(
        default=(1.0, 1.0),
        description="How full they are at the start, one share or a range from which every client draws (20..100%).",
    )
    reserve: units.Share = Field(
        default=0.0, description="Charge below which a client takes no part; one with an empty battery never does."
    )
    charge_watts: units.Watts = Field(
        default=0.0, description="Power that charges them, at every moment at which they don't work for a round."
    )
    idle: bool = Field(
        default=False, description="Whether the device's idle power drains them while they don't work for a round."
    )

    @field_validator("capacity")
    @classmethod
    def _some(cls, value: tuple[float, float] | None) -> tuple[float, float] | None:
        if value is not None and value[0] <= 0:
            raise ValueError("a battery must hold more than 0 J; one that is empty at first is written initial: 0%")
        return value


@dataclass(frozen=True)
class _Drawn:
    """What some clients' batteries are: capacity and what they held at time 0 in joules, change in watts."""

    capacity: Floats
    initial: Floats
    watts: Floats


class Batteries:
    """The batteries of a fleet: levels in joules, between 0 and the capacity; inf for a device on mains.

    Between two works a level rises by ``charge_watts``, and falls by the device's idle power if ``idle``; a work takes
    its joules in one sum when it ends. What nobody has drawn from is computed from its client's number, so a million
    batteries that rest cost nothing. ``spend`` changes the object: every simulation begins with its own ``fresh()``.
    """

    def __init__(
        self,
        options: BatteryOptions,
        devices: tuple[Device, ...],
        device_index: NDArray[np.unsignedinteger],
        seed: int,
    ):
        self.options, self.devices, self.device_index, self.seed = options, devices, device_index, seed
        own = [device.battery_joules for device in devices]
        self._own = np.array([inf if joules is None else joules for joules in own])
        self._idle = np.array([device.idle_watts for device in devices])
        self._nothing_spent()

    def fresh(self) -> Batteries:
        """The same batteries as they were at time 0."""
        return Batteries(self.options, self.devices, self.device_index, self.seed)

    def capacity(self, clients: ArrayLike) -> Floats:
        """Joules of a full battery, inf on mains: `[clients]`."""
        return self._draw(np.asarray(clients, dtype=np.int64)).capacity

    def level(self, clients: ArrayLike, at: ArrayLike) -> Floats:
        """Joules that are left at ``at`` seconds, one time or one each: `[clients]`.

        Of a time before a client's last work ended: what was left then.
        """
        rows = np.asarray(clients, dtype=np.int64)
        return self._level(rows, self._draw(rows), at)

    def spend(self, clients: ArrayLike, joules: ArrayLike, at: ArrayLike, seconds: ArrayLike = 0.0) -> None:
        """Take ``joules`` from each of these (distinct) clients for a work that ended ``at`` and took ``seconds``.

        While it worked a battery was neither charged nor drained otherwise. Nothing falls below 0.
        """
        rows = np.asarray(clients, dtype=np.int64)
        before = self._level(rows, self._draw(rows), np.asarray(at, dtype=float) - np.asarray(seconds, dtype=float))
        self._joules[rows] = np.maximum(before - np.asarray(joules, dtype=float), 0.0)
        self._since[rows] = at
        self._changed[rows] = True

    def ready(self, clients: ArrayLike, at: ArrayLike) -> NDArray[np.bool_]:
        """Whether the battery isn't empty and holds its reserve: `[clients]`."""
        rows = np.asarray(clients, dtype=np.int64)
        drawn = self._draw(rows)
        level = self._level(rows, drawn, at)
        return (level > 0) & (level >= self._reserve(drawn))

    def rows(self) -> dict[str, list[float]]:
        """{client: [joules, since when]} of those that have worked, for a checkpoint."""
        changed = np.flatnonzero(self._changed)
        return {str(c): [float(self._joules[c]), float(self._since[c])] for c in changed}

    def restore(self, rows: Mapping[str, list[float]]) -> None:
        """Set everything back to what ``rows`` gave."""
        self._nothing_spent()
        for client, (joules, since) in rows.items():
            row = int(client)
            self._changed[row], self._joules[row], self._since[row] = True, joules, since

    def _nothing_spent(self) -> None:
        # zeros that nobody has written to take no memory
        self._changed = np.zeros(len(self.device_index), dtype=bool)
        self._joules = np.zeros(len(self.device_index))
        self._since = np.zeros(len(self.device_index))

    def _draw(self, rows: NDArray[np.int64]) -> _Drawn:
        options, kinds = self.options, self.device_index[rows]
        drawn = None
        capacity = self._own[kinds]
        if options.capacity is not None:
            drawn = seeds.uniforms(self.seed, "battery", of=rows)
            capacity = options.capacity[0] + drawn[:, 0] * (options.capacity[1] - options.capacity[0])
        low, high = options.initial
        share: Floats | float = low
        if low < high:
            drawn = seeds.uniforms(self.seed, "battery", of=rows) if drawn is None else drawn
            share = low + drawn[:, 1] * (high - low)
        # mains is full at any share of it, and 0 x inf isn't a number
        initial = np.where(np.isinf(capacity), inf, np.where(np.isinf(capacity), 0.0, capacity) * share)
        watts = options.charge_watts - (self._idle[kinds] if options.idle else np.zeros(len(rows)))
        return _Drawn(capacity, initial, watts)

    def _level(self, rows: NDArray[np.int64], drawn: _Drawn, at: ArrayLike) -> Floats:
        held = np.where(self._changed[rows], self._joules[rows], drawn.initial)
        rested = np.maximum(np.asarray(at, dtype=float) - self._since[rows], 0.0)
        return np.clip(held + drawn.watts * rested, 0.0, drawn.capacity)

    def _reserve(self, drawn: _Drawn) -> Floats:
        return np.where(np.isinf(drawn.capacity), 0.0, drawn.capacity) * self.options.reserve
