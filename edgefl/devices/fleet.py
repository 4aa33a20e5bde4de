"""What the clients of a federation have: devices, links and budgets, as arrays with one entry per client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from edgefl import seeds
from edgefl.devices.availability import Always, Availability, availability_of
from edgefl.devices.battery import Batteries
from edgefl.devices.failures import FailureOptions
from edgefl.devices.options import BUDGET_FIELDS, BudgetOptions, FleetOptions, ServerLinkOptions, share_of_device
from edgefl.devices.profile import Device, Link, load_device, load_link
from edgefl.errors import DeviceError

Floats = NDArray[np.float64]
Indices = NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True)
class Fleet:
    """The clients' devices, links and budgets: arrays `[clients]`, no object per client.

    ``device_index`` and ``link_index`` point into ``devices`` and ``links``; ``budgets`` has the keys memory, flops,
    bytes, seconds and joules, inf where unlimited. Arrays in which all clients are alike may be read-only views that
    take no memory. ``server`` is the server's device. ``battery`` is as at time 0; a simulation, which draws from it,
    takes ``battery.fresh()``.
    """

    devices: tuple[Device, ...]
    links: tuple[Link, ...]
    device_index: Indices
    link_index: Indices
    budgets: Mapping[str, Floats]
    server: Device
    availability: Availability = field(default_factory=Always)
    failures: FailureOptions = field(default_factory=FailureOptions)
    battery: Batteries | None = None
    throttling: bool = False
    server_link: ServerLinkOptions | None = None

    @classmethod
    def draw(cls, options: FleetOptions, clients: int, seed: int) -> Fleet:
        """A fleet for this many clients, a function of (options, clients, seed).

        Shares are met exactly, as near as whole clients allow (largest remainder); who gets which is shuffled, the
        devices independently of the links. Raises DeviceError if counts don't add up to ``clients``.
        """
        if clients < 0:
            raise DeviceError(f"a fleet can't have {clients} clients")
        devices = tuple(load_device(name) for name in options.devices)
        device_index = _assign("devices", options.devices, clients, seed)
        links = tuple(load_link(name) for name in options.links)
        link_index = _assign("links", options.links, clients, seed)
        budgets = draw_budgets(options.budgets, devices, device_index, seed)
        battery = None if options.battery is None else Batteries(options.battery, devices, device_index, seed)
        return cls(
            devices,
            links,
            device_index,
            link_index,
            budgets,
            load_device(options.server),
            availability_of(options.availability, clients, seed),
            options.failures,
            battery,
            options.throttling,
            options.server_link,
        )

    def __len__(self) -> int:
        return len(self.device_index)

    def device(self, client: int) -> Device:
        """The client's device."""
        return self.devices[int(self.device_index[client])]

    def link(self, client: int) -> Link:
        """The client's link."""
        return self.links[int(self.link_index[client])]

    def of_devices(self, number: str, clients: ArrayLike | None = None) -> Floats:
        """A number of these (or all) clients' devices ("flops_per_second", ...): `[clients]`."""
        index = self.device_index if clients is None else self.device_index[np.asarray(clients, dtype=np.int64)]
        return np.array([getattr(d, number) for d in self.devices], dtype=float)[index]

    def of_links(self, number: str, clients: ArrayLike | None = None) -> Floats:
        """A number of these (or all) clients' links ("latency_seconds", ...): `[clients]`."""
        index = self.link_index if clients is None else self.link_index[np.asarray(clients, dtype=np.int64)]
        return np.array([getattr(one, number) for one in self.links], dtype=float)[index]

    @cached_property
    def available_memory_bytes(self) -> Floats:
        """What each device could give to tensors at most: usable memory less the runtime's overhead, `[clients]`.

        Not a budget: an owner who sets none is taken at their word, but no device has more than this.
        """
        return _available_memory(self.devices)[self.device_index]

    def jitter(self, seed: int, round: int, clients: ArrayLike) -> dict[str, Floats]:
        """Factors with median 1 on these clients' durations in this round: "download", "compute" and "upload".

        Each is `[clients]`, lognormal with the sigma of the profile; who else is asked for changes nothing.
        """
        drawn = seeds.normals(seed, "jitter", round, of=clients)
        computing, transfer = self.of_devices("jitter", clients), self.of_links("jitter", clients)
        sigmas = {"download": transfer, "compute": computing, "upload": transfer}
        return {phase: np.exp(sigma * drawn[:, i]) for i, (phase, sigma) in enumerate(sigmas.items())}


def apportion(shares: Mapping[str, float | int], clients: int) -> dict[str, int]:
    """Whole clients for each name, adding up to ``clients``: counts as they are, shares by largest remainder.

    No name is further than one client from its exact share; of equal remainders the first listed wins. Raises
    DeviceError if counts don't add up.
    """
    if all(isinstance(amount, int) for amount in shares.values()):
        total = int(sum(shares.values()))
        if total != clients:
            listed = ", ".join(f"{name}: {amount}" for name, amount in shares.items())
            raise DeviceError(f"the counts ({listed}) add up to {total}, but there are {clients} clients")
        return {name: int(amount) for name, amount in shares.items()}
    whole = float(sum(shares.values()))
    # Rounded, so that 3 x 33.333333% and 0.1 + 0.2 don't decide by their last binary digit.
    exact = {name: round(amount / whole * clients, 6) for name, amount in shares.items()}
    counts = {name: int(amount) for name, amount in exact.items()}
    left = clients - sum(counts.values())
    for name in sorted(exact, key=lambda name: counts[name] - exact[name])[:left]:
        counts[name] += 1
    return counts


def _available_memory(devices: tuple[Device, ...]) -> Floats:
    return np.array([max(d.usable_memory_bytes - d.runtime_overhead_bytes, 0.0) for d in devices], dtype=float)


def _assign(what: str, shares: Mapping[str, float | int], clients: int, seed: int) -> Indices:
    try:
        counts = apportion(shares, clients)
    except DeviceError as error:
        raise DeviceError(f"fleet.{what}: {error}") from None
    kind = np.min_scalar_type(max(len(counts) - 1, 0))
    if len(counts) == 1:
        return np.broadcast_to(kind.type(0), clients)
    index = np.repeat(np.arange(len(counts), dtype=kind), list(counts.values()))
    seeds.generator(seed, f"fleet {what}").shuffle(index)
    return index


def draw_budgets(
    options: BudgetOptions, devices: tuple[Device, ...], device_index: Indices, seed: int
) -> dict[str, Floats]:
    """What the owners of these devices let a trainer use, by the keys of BUDGET_FIELDS: `[clients]`."""
    budgets = {
        key: _budget(name, getattr(options, name), devices, device_index, seed) for key, name in BUDGET_FIELDS.items()
    }
    if options.within_device:
        budgets["memory"] = np.minimum(budgets["memory"], _available_memory(devices)[device_index])
    return budgets


def _budget(
    name: str, asked: tuple[float, float] | str | None, devices: tuple[Device, ...], index: Indices, seed: int
) -> Floats:
    """The clients' budgets of a field of BudgetOptions, inf where there is no limit: `[clients]`."""
    clients = len(index)
    if asked is None:
        return np.broadcast_to(inf, clients)
    low, high = share_of_device(asked) if isinstance(asked, str) else asked
    whole = name in ("memory", "bytes_per_round")
    if low == high and not isinstance(asked, str):
        return np.broadcast_to(np.floor(float(low)) if whole else float(low), clients)
    # From one draw per client and budget, so that raising an end of the range lowers nobody's budget. In place: an
    # array of ten million is 80 MB.
    drawn = seeds.generator(seed, f"budget {name}").random(clients)
    drawn *= high - low
    drawn += low
    if isinstance(asked, str):
        drawn *= np.array([d.ram_bytes for d in devices], dtype=float)[index]
        drawn -= np.array([d.runtime_overhead_bytes for d in devices], dtype=float)[index]
        np.maximum(drawn, 0.0, out=drawn)
    return np.floor(drawn, out=drawn) if whole else drawn
