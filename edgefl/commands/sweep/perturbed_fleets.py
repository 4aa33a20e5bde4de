"""Fleets whose devices and links have other numbers than the library's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from edgefl.devices import Device, Fleet, FleetOptions, Link
from edgefl.devices.fleet import draw_budgets
from edgefl.devices.options import amounts_of

LARGER_IS_BETTER = {
    "usable_memory_bytes": True,
    "ram_bytes": True,
    "runtime_overhead_bytes": False,
    "flops_per_second": True,
    "float16_flops_per_second": True,
    "bfloat16_flops_per_second": True,
    "memory_bytes_per_second": True,
    "storage_bytes_per_second": True,
    "seconds_per_operator": False,
    "throttle_after_seconds": True,
    "throttled_share": True,
    "compute_watts": False,
    "idle_watts": False,
    "download_bits_per_second": True,
    "upload_bits_per_second": True,
    "latency_seconds": False,
    "loss": False,
    "download_watts": False,
    "upload_watts": False,
}
"""The numbers of devices and links that costs and budgets depend on, and whether a larger one is better."""
MEMORY = ("usable_memory_bytes", "ram_bytes", "runtime_overhead_bytes")
THROTTLING = ("throttle_after_seconds", "throttled_share")
MOST_LOSS = 0.99
"""The largest loss of a scaled link: at 1 nothing would arrive, and at 0.99 a link keeps a hundredth of its rate."""

Profile = TypeVar("Profile", Device, Link)


def profiles_of(fleet: Fleet) -> dict[str, Device | Link]:
    """Devices and links of a fleet by name."""
    return {d.name: d for d in fleet.devices} | {link.name: link for link in fleet.links}


def numbers_of(profile: Device | Link) -> list[str]:
    """Names of the profile's numbers that are set, finite and not 0."""
    values = {name: getattr(profile, name, None) for name in LARGER_IS_BETTER}
    return [name for name, value in values.items() if value and value != float("inf")]


def scale_fleet(fleet: Fleet, factors: Mapping[tuple[str, str], float], options: FleetOptions, seed: int) -> Fleet:
    """The fleet with these numbers multiplied, by (profile, number); the same object if that changes nothing.

    Clients keep their devices and links.  Budgets follow the memory of the devices.
    """
    ignored = (set(MEMORY) - budget_numbers(options)) | (set() if fleet.throttling else set(THROTTLING))
    factors = {key: factor for key, factor in factors.items() if key[1] not in ignored}
    devices = tuple(_times(device, factors) for device in fleet.devices)
    links = tuple(_times(link, factors) for link in fleet.links)
    if devices == fleet.devices and links == fleet.links:
        return fleet
    changed = replace(fleet, devices=devices, links=links)
    if any(number in MEMORY for _, number in factors):
        budgets, of_device = draw_budgets(options.budgets, changed.devices, changed.device_index, seed)
        return replace(changed, budgets=budgets, memory_of_device=of_device)
    return changed


def budget_numbers(options: FleetOptions) -> set[str]:
    """The numbers of MEMORY that budgets depend on."""
    of_device = any(isinstance(amount, str) for amount, _ in amounts_of(options.budgets.memory))
    shares = {"ram_bytes", "runtime_overhead_bytes"} if of_device else set[str]()
    return shares | ({"usable_memory_bytes", "runtime_overhead_bytes"} if options.budgets.within_device else set())


def _times(profile: Profile, factors: Mapping[tuple[str, str], float]) -> Profile:
    changed: dict[str, Any] = {}
    for number in numbers_of(profile):
        factor = factors.get((profile.name, number))
        if factor is not None:
            value = getattr(profile, number)
            changed[number] = int(value * factor) if isinstance(value, int) else value * factor
    if "loss" in changed:
        changed["loss"] = min(changed["loss"], MOST_LOSS)
    if "throttled_share" in changed:
        changed["throttled_share"] = min(changed["throttled_share"], 1.0)
    return replace(profile, **changed) if changed else profile
