"""The fleet: devices, links and budgets of all clients, as arrays with one entry per client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from edgefl import seeds
from edgefl.arrays import Booleans, Floats, Integers
from edgefl.devices.attackers import draw_attackers
from edgefl.devices.availability import Always, Availability, availability_of
from edgefl.devices.battery import Batteries
from edgefl.devices.budgets import BUDGETS, budget_named, field_of
from edgefl.devices.caps import CAPS, Caps
from edgefl.devices.carbon import Carbon
from edgefl.devices.changing_links import AvailableOverLinks, ChangingLinks
from edgefl.devices.failures import FailureOptions
from edgefl.devices.options import Amount, BudgetOptions, FleetOptions, Mixture, ServerLinkOptions, share_of_device
from edgefl.devices.profile import Device, Link, load_device, load_link, split_mode
from edgefl.devices.relays import Relays
from edgefl.devices.runtime import PYTORCH, RuntimeChoice, available_memory_bytes, with_runtime
from edgefl.errors import DeviceError


@dataclass(frozen=True)
class Fleet:
    """The clients' devices, links and budgets, as arrays `[clients]` instead of an object per client.

    ``device_index`` and ``link_index`` are indices into ``devices`` and ``links``. ``budgets`` has those of
    BUDGETS and the others that the scenario states; values are inf where there is no limit. ``memory_of_device`` tells
    whose memory budget is what the device has, because that is less than what its owner grants. An array whose entries
    are all equal may be a read-only view that takes no memory. ``devices`` have the overhead of ``runtime``. ``server``
    is the server's device, which runs PyTorch. ``battery`` has the levels at time 0; a simulation changes levels, so it
    uses ``battery.fresh()``. ``attackers`` tells which clients attack as ``failures.attack`` says, None for no
    attackers. ``caps`` are the budgets for a day or for all rounds together, None without any. ``carbon`` is None
    without an intensity. ``relays`` are between the clients and the server, None for none. ``pace_seed`` is the seed by
    which paces of devices were drawn, None if none were. ``changing`` are the links with a trace, None without any;
    ``availability`` knows when they are offline.
    """

    devices: tuple[Device, ...]
    links: tuple[Link, ...]
    device_index: Integers
    link_index: Integers
    budgets: Mapping[str, Floats]
    memory_of_device: Booleans
    server: Device
    availability: Availability = field(default_factory=Always)
    failures: FailureOptions = field(default_factory=FailureOptions)
    battery: Batteries | None = None
    throttling: bool = False
    server_link: ServerLinkOptions | None = None
    attackers: Booleans | None = None
    runtime: RuntimeChoice = PYTORCH
    caps: Caps | None = None
    carbon: Carbon | None = None
    relays: Relays | None = None
    pace_seed: int | None = None
    changing: ChangingLinks | None = None

    @classmethod
    def draw(cls, options: FleetOptions, clients: int, seed: int) -> Fleet:
        """Draw a fleet of this many clients; the result is a function of (options, clients, seed).

        Shares are rounded to whole clients by largest remainder. Devices and links are assigned to clients by
        independent shuffles. Raises DeviceError if counts don't add up to ``clients``.
        """
        if clients < 0:
            raise DeviceError(f"a fleet can't have {clients} clients")
        pace_seed = options.pace_seed(seed)
        devices = tuple(
            with_runtime_and_pace(load_device(name), options.runtime, pace_seed) for name in options.devices
        )
        device_index = _assign("devices", options.devices, clients, seed)
        links = tuple(load_link(name) for name in options.links)
        link_index = _assign("links", options.links, clients, seed)
        budgets, memory_of_device = draw_budgets(options.budgets, devices, device_index, seed)
        battery = None if options.battery is None else Batteries(options.battery, devices, device_index, seed)
        availability = availability_of(options.availability, clients, seed)
        changing = None
        if any(link.trace is not None for link in links):
            changing = ChangingLinks(links, link_index, options.begins)
            if any(trace.may_be_offline for trace in changing.traces.values()):
                availability = AvailableOverLinks(availability, changing)
        return cls(
            devices,
            links,
            device_index,
            link_index,
            budgets,
            memory_of_device,
            with_pace(load_device(options.server), pace_seed),
            availability,
            options.failures,
            battery,
            options.throttling,
            options.server_link,
            draw_attackers(options.failures.attack, clients, seed) if options.failures.attack else None,
            options.runtime,
            _draw_caps(options, devices, device_index, links, link_index, seed),
            None if options.carbon_intensity is None else Carbon(options.carbon_intensity),
            None if options.relays is None else Relays.draw(options.relays, clients, seed),
            pace_seed,
            changing,
        )

    def __len__(self) -> int:
        return len(self.device_index)

    @property
    def columns(self) -> tuple[Relays | Carbon, ...]:
        """What adds fields to records, in the order of the fields.

        ``flight_fields`` are those of a flight, of which ``flight_columns`` computes the values, and ``round_sums``
        are those of a round, with the sums of no flight.
        """
        return tuple(each for each in (self.relays, self.carbon) if each is not None)

    def device(self, client: int) -> Device:
        """The device of a client, by its number."""
        return self.devices[int(self.device_index[client])]

    def link(self, client: int) -> Link:
        """The link of a client, by its number."""
        return self.links[int(self.link_index[client])]

    def of_devices(self, number: str, clients: ArrayLike | None = None) -> Floats:
        """A number ("flops_per_second", ...) of the devices of these clients, or of all: `[clients]`."""
        index = self.device_index if clients is None else self.device_index[np.asarray(clients, dtype=np.int64)]
        return np.array([getattr(d, number) for d in self.devices], dtype=float)[index]

    def of_links(self, number: str, clients: ArrayLike | None = None) -> Floats:
        """A number ("latency_seconds", ...) of the links of these clients, or of all: `[clients]`."""
        index = self.link_index if clients is None else self.link_index[np.asarray(clients, dtype=np.int64)]
        return np.array([getattr(link, number) for link in self.links], dtype=float)[index]

    @property
    def budget_names(self) -> tuple[str, ...]:
        """The budgets that are judged: those of BUDGETS, and the others that the scenario states."""
        return (*BUDGETS, *(name for name in self.budgets if name not in BUDGETS))

    @property
    def pairs(self) -> list[tuple[Device, Link]]:
        """Every device with every link, in the order that ``pair_index`` counts."""
        return [(device, link) for device in self.devices for link in self.links]

    @property
    def pair_index(self) -> NDArray[np.int32]:
        """The pair of each client's device and link, `[clients]`."""
        return self.device_index.astype(np.int32) * len(self.links) + self.link_index

    @cached_property
    def available_memory_bytes(self) -> Floats:
        """The most memory that each device can give to tensors: usable memory minus runtime overhead, `[clients]`.

        A memory budget is never more, unless ``within_device`` is false.
        """
        return _available_memory(self.devices, self.device_index)

    @cached_property
    def _sigmas(self) -> tuple[Floats, Floats]:
        """The jitter of each device and of each link."""
        return np.array([device.jitter for device in self.devices]), np.array([link.jitter for link in self.links])

    def jitter(self, seed: int, round: int, clients: ArrayLike) -> Floats:
        """Lognormal factors with median 1 on the durations of download, compute and upload: `[3, clients]`.

        The sigmas are the jitter of the client's link and device profiles. A client's factors don't depend on the
        other clients.
        """
        clients = np.asarray(clients, dtype=np.int64)
        drawn = seeds.normals(seed, "jitter", round, of=clients)
        of_devices, of_links = self._sigmas
        factors = np.ascontiguousarray(drawn[:, :3].T)
        factors[1] *= of_devices[self.device_index[clients]]
        factors[::2] *= of_links[self.link_index[clients]]
        return np.exp(factors, out=factors)


def with_pace(device: Device, seed: int | None) -> Device:
    """The device with a drawn pace, which multiplies its seconds; the same object without a seed or an interval.

    The pace is log-normal with median 1, and its .1 and .9 quantiles are the ends of ``Processor.within``.  It depends
    on the seed and the name of the device alone, which its power modes share.
    """
    within = device.processor.within
    if seed is None or within is None:
        return device
    drawn = seeds.generator(seed, f"pace {split_mode(device.name)[0]}").standard_normal()
    return replace(device, processor=replace(device.processor, pace=within ** (drawn / NormalDist().inv_cdf(0.9))))


def with_runtime_and_pace(device: Device, runtime: RuntimeChoice, pace_seed: int | None) -> Device:
    """The device as a fleet with this runtime and these drawn paces has it.  Raises as ``with_runtime`` does."""
    return with_pace(with_runtime(device, runtime), pace_seed)


def apportion(shares: Mapping[str, float | int], clients: int) -> dict[str, int]:
    """Number of clients for each name, adding up to ``clients``.

    Counts (int) are used as they are. Shares are rounded by largest remainder, so no name is more than one client
    from its exact share; of equal remainders, the one listed first is rounded up. Raises DeviceError if counts don't
    add up to ``clients``.
    """
    if all(isinstance(amount, int) for amount in shares.values()):
        total = int(sum(shares.values()))
        if total != clients:
            listed = ", ".join(f"{name}: {amount}" for name, amount in shares.items())
            raise DeviceError(f"the counts ({listed}) add up to {total}, but there are {clients} clients")
        return {name: int(amount) for name, amount in shares.items()}
    total_share = float(sum(shares.values()))
    # Rounded so that floating-point errors of shares such as 33.333333% or 0.1 + 0.2 don't decide between names.
    exact = {name: round(amount / total_share * clients, 6) for name, amount in shares.items()}
    counts = {name: int(amount) for name, amount in exact.items()}
    unassigned = clients - sum(counts.values())
    for name in sorted(exact, key=lambda name: counts[name] - exact[name])[:unassigned]:
        counts[name] += 1
    return counts


def _available_memory(devices: tuple[Device, ...], index: Integers) -> Floats:
    """What each client's device can give to tensors: `[clients]`."""
    if len(devices) == 1:
        return np.broadcast_to(float(available_memory_bytes(devices[0])), len(index))
    return np.array([available_memory_bytes(device) for device in devices], dtype=float)[index]


def _assign(field_name: str, shares: Mapping[str, float | int], clients: int, seed: int) -> Integers:
    try:
        counts = apportion(shares, clients)
    except DeviceError as error:
        raise DeviceError(f"fleet.{field_name}: {error}") from None
    kind = np.min_scalar_type(max(len(counts) - 1, 0))
    if len(counts) == 1:
        return np.broadcast_to(kind.type(0), clients)
    index = np.repeat(np.arange(len(counts), dtype=kind), list(counts.values()))
    # a shuffle of its own for each field: with one for both, slow links would lie with the devices listed beside them
    seeds.generator(seed, f"fleet {field_name}").shuffle(index)
    return index


def draw_budgets(
    options: BudgetOptions, devices: tuple[Device, ...], device_index: Integers, seed: int
) -> tuple[dict[str, Floats], Booleans]:
    """Draw the clients' budgets, by name in the order of ``BudgetOptions.limits``: `[clients]` each, inf without limit.

    A memory budget is what the owner grants or what the device has, whichever is less.  The second result tells where
    it is the device's, `[clients]`; where both are equal it is the owner's.
    """
    budgets = {
        name: _budget(field_of(name), limits, budget_named(name).quantity.whole, devices, device_index, seed)
        for name, limits in options.limits().items()
    }
    if not options.within_device:
        return budgets, np.broadcast_to(np.False_, len(device_index))
    granted, available = budgets["memory"], _available_memory(devices, device_index)
    if granted.strides == available.strides == (0,):  # one number for all clients each
        both = granted[:1], available[:1]
        least, of_device = np.minimum(*both), np.greater(*both)
        budgets["memory"] = np.broadcast_to(least, len(device_index)) if len(least) else least
        return budgets, np.broadcast_to(of_device, len(device_index)) if len(least) else of_device
    of_device = np.greater(granted, available)
    # changed in place, because with ten million clients an array takes 80 MB
    budgets["memory"] = np.minimum(granted, available, out=granted if granted.flags.writeable else None)
    return budgets, of_device


def _draw_caps(
    options: FleetOptions,
    devices: tuple[Device, ...],
    device_index: Integers,
    links: tuple[Link, ...],
    link_index: Integers,
    seed: int,
) -> Caps | None:
    """The caps that are stated; None without any.  Bytes are capped on links whose profile says so."""
    capped, amounts = np.array([link.capped for link in links])[link_index], dict[str, Floats]()
    for name, stated in options.budgets.caps().items():
        if stated is not None:
            of_bytes = CAPS[name].budget == "bytes"
            drawn = _budget(name, stated, of_bytes, devices, device_index, seed)
            amounts[name] = np.where(capped, drawn, inf) if of_bytes else drawn
    return Caps(amounts, options.begins) if amounts else None


def _budget(
    name: str, limits: Amount | Mixture | None, whole: bool, devices: tuple[Device, ...], index: Integers, seed: int
) -> Floats:
    """The clients' budgets for one field of BudgetOptions, inf where there is no limit: `[clients]`."""
    clients = len(index)
    if isinstance(limits, Mixture):
        # who gets which amount depends on the shares alone, so other amounts leave the same clients small
        part = _assign(f"budgets.{name}", limits.to_data(), clients, seed)
        mixed = np.empty(clients)
        for number, (amount, _) in enumerate(limits.parts):
            of_part = part == number
            mixed[of_part] = _budget(name, amount, whole, devices, index, seed)[of_part]
        return mixed
    if limits is None:
        return np.broadcast_to(inf, clients)
    low, high = share_of_device(limits) if isinstance(limits, str) else limits
    if low == high and not isinstance(limits, str):
        return np.broadcast_to(np.floor(float(low)) if whole else float(low), clients)
    # One draw per client and budget scales with the range, so raising an end of the range lowers no client's budget.
    # The array is changed in place, because with ten million clients it takes 80 MB.
    drawn = seeds.generator(seed, f"budget {name}").random(clients)
    drawn *= high - low
    drawn += low
    if isinstance(limits, str):
        drawn *= np.array([d.ram_bytes for d in devices], dtype=float)[index]
        drawn -= np.array([d.runtime_overhead_bytes for d in devices], dtype=float)[index]
        np.maximum(drawn, 0.0, out=drawn)
    return np.floor(drawn, out=drawn) if whole else drawn
