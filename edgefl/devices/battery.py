"""Batteries of the clients: their level over time, the energy that a round takes, and the reserve to take part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import ArrayLike
from pydantic import Field, field_validator

from edgefl import seeds, units
from edgefl.arrays import Booleans, Floats, Integers
from edgefl.devices.profile import Device
from edgefl.registry.part_fields import Fields


class BatteryOptions(Fields):
    """Capacity, initial level, charging and reserve of the clients' batteries."""

    capacity: units.JoulesRange | None = Field(
        default=None,
        description="Energy of a full battery: one value, or a range from which every client draws (10..20 Wh). If "
        "left out, that of the device's profile; a device without a battery is on mains power.",
    )
    initial: units.ShareRange = Field(
        default=(1.0, 1.0),
        description="Level at the start: one share of the capacity, or a range from which every client draws "
        "(20..100%).",
    )
    reserve: units.Share = Field(
        default=0.0, description="Charge below which a client takes no part; one with an empty battery never does."
    )
    charge_watts: units.Watts = Field(
        default=0.0, description="Power that charges a battery whenever its client doesn't work for a round."
    )
    idle: bool = Field(
        default=False,
        description="Whether the device's idle power drains a battery while its client doesn't work for a round.",
    )

    @field_validator("capacity")
    @classmethod
    def _positive(cls, value: tuple[float, float] | None) -> tuple[float, float] | None:
        if value is not None and value[0] <= 0:
            raise ValueError("a battery must hold more than 0 J; for one that is empty at the start write initial: 0%")
        return value


@dataclass(frozen=True)
class _BatteryDraw:
    """Batteries of some clients, each `[clients]`: capacity and level at time 0 in joules.

    ``watts`` is the charging power minus the idle power, if the idle power counts.
    """

    capacity: Floats
    initial: Floats
    watts: Floats


class Batteries:
    """The batteries of a fleet. Levels are in joules, between 0 and the capacity; they are inf on mains power.

    Between works, ``charge_watts`` raises a level and, with ``idle``, the device's idle power lowers it. The joules of
    a work are subtracted at once when it ends. The battery of a client that hasn't worked is computed from the
    client's number when it is asked for, so it takes no memory. ``spend`` changes the object, so every simulation
    uses its own ``fresh()`` copy.
    """

    def __init__(self, options: BatteryOptions, devices: tuple[Device, ...], device_index: Integers, seed: int):
        self.options, self.devices, self.device_index, self.seed = options, devices, device_index, seed
        profile_joules = [device.battery_joules for device in devices]
        self._profile_capacity = np.array([inf if joules is None else joules for joules in profile_joules])
        self._idle = np.array([device.idle_watts for device in devices])
        self._reset()

    def fresh(self) -> Batteries:
        """A copy of these batteries as they are at time 0."""
        return Batteries(self.options, self.devices, self.device_index, self.seed)

    def capacity(self, clients: ArrayLike) -> Floats:
        """Joules of a full battery, inf on mains power: `[clients]`."""
        return self._draw(np.asarray(clients, dtype=np.int64)).capacity

    def level(self, clients: ArrayLike, at: ArrayLike) -> Floats:
        """Joules that are left at ``at`` seconds, one time for all or one for each client: `[clients]`.

        For a time before the end of a client's last work, the level at that end.
        """
        rows = np.asarray(clients, dtype=np.int64)
        return self._level(rows, self._draw(rows), at)

    def charge(self, clients: ArrayLike, at: ArrayLike) -> Floats:
        """The share of the capacity that is left at ``at`` seconds, 1 on mains power: `[clients]`."""
        rows = np.asarray(clients, dtype=np.int64)
        drawn = self._draw(rows)
        full = np.isinf(drawn.capacity)
        return np.where(full, 1.0, self._level(rows, drawn, at) / np.where(full, 1.0, drawn.capacity))

    def spend(self, clients: ArrayLike, joules: ArrayLike, at: ArrayLike, seconds: ArrayLike = 0.0) -> None:
        """Subtract the ``joules`` of a work that ended ``at`` and took ``seconds``; the clients must be distinct.

        During the work, a battery isn't charged and the idle power doesn't drain it. Levels don't fall below 0.
        """
        rows = np.asarray(clients, dtype=np.int64)
        before = self._level(rows, self._draw(rows), np.asarray(at, dtype=float) - np.asarray(seconds, dtype=float))
        # a battery that ran empty has spent inf, and rounding may leave -1e-12 J: it charges from 0 on
        self._joules[rows] = np.maximum(before - np.asarray(joules, dtype=float), 0.0)
        self._since[rows] = at
        self._changed[rows] = True

    def ready(self, clients: ArrayLike, at: ArrayLike) -> Booleans:
        """Whether a battery isn't empty and has at least its reserve at ``at`` seconds: `[clients]`."""
        rows = np.asarray(clients, dtype=np.int64)
        drawn = self._draw(rows)
        level = self._level(rows, drawn, at)
        return (level > 0) & (level >= self._reserve(drawn))

    def to_data(self) -> dict[str, list[float]]:
        """State for a checkpoint: {client: [joules, seconds]}, the level at the end of the last work and its time.

        It has only clients that have worked.
        """
        changed = np.flatnonzero(self._changed)
        return {str(c): [float(self._joules[c]), float(self._since[c])] for c in changed}

    def load_data(self, raw: Mapping[str, list[float]]) -> None:
        """Go on from what ``to_data`` returned."""
        self._reset()
        for client, (joules, since) in raw.items():
            row = int(client)
            self._changed[row], self._joules[row], self._since[row] = True, joules, since

    def _reset(self) -> None:
        # The system allocates pages of zeros only when they are written to, so clients that rest take no memory.
        self._changed = np.zeros(len(self.device_index), dtype=bool)
        self._joules = np.zeros(len(self.device_index))
        self._since = np.zeros(len(self.device_index))

    def _draw(self, rows: Integers) -> _BatteryDraw:
        options, kinds = self.options, self.device_index[rows]
        drawn = None
        capacity = self._profile_capacity[kinds]
        if options.capacity is not None:
            drawn = seeds.uniforms(self.seed, "battery", of=rows)
            capacity = options.capacity[0] + drawn[:, 0] * (options.capacity[1] - options.capacity[0])
        low, high = options.initial
        share: Floats | float = low
        if low < high:
            drawn = seeds.uniforms(self.seed, "battery", of=rows) if drawn is None else drawn
            share = low + drawn[:, 1] * (high - low)
        # A capacity of inf (mains power) is multiplied as 0, because 0 * inf is NaN.
        initial = np.where(np.isinf(capacity), inf, np.where(np.isinf(capacity), 0.0, capacity) * share)
        watts = options.charge_watts - (self._idle[kinds] if options.idle else np.zeros(len(rows)))
        return _BatteryDraw(capacity, initial, watts)

    def _level(self, rows: Integers, drawn: _BatteryDraw, at: ArrayLike) -> Floats:
        last_level = np.where(self._changed[rows], self._joules[rows], drawn.initial)
        idle_seconds = np.maximum(np.asarray(at, dtype=float) - self._since[rows], 0.0)
        return np.clip(last_level + drawn.watts * idle_seconds, 0.0, drawn.capacity)

    def _reserve(self, drawn: _BatteryDraw) -> Floats:
        return np.where(np.isinf(drawn.capacity), 0.0, drawn.capacity) * self.options.reserve
