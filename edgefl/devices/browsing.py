"""The profile library as plain data: what there is, what fits a filter, and everything about one profile."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from edgefl import units
from edgefl.devices.derived import derived_of_device, derived_of_link
from edgefl.devices.facts import profile_keys, read_written
from edgefl.devices.fleet_profile import FleetProfile, fleet_names, fleet_profile
from edgefl.devices.options import FleetOptions
from edgefl.devices.profile import (
    DEVICE_KINDS,
    Device,
    Link,
    device_names,
    is_file_name,
    library_files,
    link_names,
    load_device,
    load_link,
)
from edgefl.errors import UnitError, UnknownName
from edgefl.yaml_lines import spell

SECTIONS = ("devices", "links", "fleets")


def browse(
    *,
    sections: tuple[str, ...] = (),
    kind: str | None = None,
    min_memory: str | None = None,
    min_flops: str | None = None,
    max_watts: str | None = None,
    search: str | None = None,
) -> dict[str, list[dict[str, Any]]]:
    """Devices, links and fleets of the libraries; only ``sections``, and only what passes every filter.

    Memory is RAM, FLOPs are the sustained float32 rate, watts those of computing; a filter of these leaves links and
    fleets out, as does a kind. ``search`` is a part of a name or a title. Raises UnknownName for a kind that there
    isn't and UnitError for a quantity that can't be read.
    """
    if kind is not None and kind not in DEVICE_KINDS:
        raise UnknownName("kind of device", kind, DEVICE_KINDS)
    least_memory = _quantity("--min-memory", units.BYTES, min_memory, 0.0)
    least_flops = _quantity("--min-flops", units.RATE, min_flops, 0.0)
    most_watts = _quantity("--max-watts", units.WATTS, max_watts, float("inf"))
    of_devices = any(asked is not None for asked in (kind, min_memory, min_flops, max_watts))
    sections = sections or (("devices",) if of_devices else SECTIONS)

    def wanted(profile: Device | Link | FleetProfile) -> bool:
        return search is None or search.casefold() in f"{profile.name}\n{profile.title}".casefold()

    def fits(one: Device) -> bool:
        return (
            kind in (None, one.kind)
            and one.ram_bytes >= least_memory
            and one.flops_per_second >= least_flops
            and one.compute_watts <= most_watts
        )

    found: dict[str, list[dict[str, Any]]] = {}
    if "devices" in sections:
        every = [load_device(name) for name in device_names()]
        found["devices"] = [_device(one) for one in every if wanted(one) and fits(one)]
    if "links" in sections:
        links = [load_link(name) for name in link_names()]
        found["links"] = [_link(one) for one in links if wanted(one)]
    if "fleets" in sections:
        fleets = [fleet_profile(name) for name in fleet_names()]
        found["fleets"] = [_fleet(one, one.name) for one in fleets if wanted(one)]
    return found


def describe(name: str) -> dict[str, Any]:
    """Everything about one device, link or fleet of the libraries, or in a file of the user's own.

    Raises UnknownName with the nearest name, and DeviceError for a profile that is wrong.
    """
    if is_file_name(name):
        what = _kind_of_file(Path(name))
    else:
        names = {"device": device_names(), "link": link_names(), "fleet": fleet_names()}
        found = next((noun for noun, known in names.items() if name in known), None)
        if found is None:
            raise UnknownName("device, link or fleet", name, [one for known in names.values() for one in known])
        what = found
    if what == "fleet":
        return _fleet(fleet_profile(name), name)
    return _link(load_link(name)) if what == "link" else _device(load_device(name))


def _kind_of_file(path: Path) -> str:
    keys = profile_keys(path)
    if "fleet" in keys:
        return "fleet"
    return "link" if "download_bits_per_second" in keys or "upload_bits_per_second" in keys else "device"


def _quantity(option: str, quantity: units.Quantity, value: str | None, default: float) -> float:
    try:
        return default if value is None else quantity.parse(value)
    except UnitError as error:
        raise UnitError(f"{option}: {error}") from None


def _values(profile: Device | Link) -> dict[str, Any]:
    return {
        name: {"value": fact.value, "low": fact.low, "high": fact.high, "confidence": fact.confidence,
               "source": fact.source.model_dump(mode="json")}
        for name, fact in profile.facts.items()
    }  # fmt: skip


def _device(found: Device) -> dict[str, Any]:
    return {
        "profile": "device", "name": found.name, "title": found.title, "kind": found.kind, "twin": found.twin,
        "values": _values(found), "derived": derived_of_device(found),
    }  # fmt: skip


def _link(found: Link) -> dict[str, Any]:
    return {
        "profile": "link", "name": found.name, "title": found.title, "values": _values(found),
        "derived": derived_of_link(found),
    }  # fmt: skip


def _fleet(fleet: FleetProfile, name: str) -> dict[str, Any]:
    try:
        options = FleetOptions.model_validate(dict(fleet.fields))
    except ValidationError as error:
        first = error.errors()[0]
        keys = ("fleet", *first["loc"])
        path = Path(name) if is_file_name(name) else library_files("fleets")[name]
        message = f"{spell(keys)}: {first['msg'].removeprefix('Value error, ')}"
        raise read_written(path, "a fleet").error(message, *keys) from None
    parts = {name: load_device(name) for name in options.devices}
    return {
        "profile": "fleet", "name": fleet.name, "title": fleet.title, "confidence": fleet.confidence,
        "source": fleet.source.model_dump(mode="json"), "fields": dict(fleet.fields),
        "devices": _shares(options.devices), "links": _shares(options.links),
        "derived": {
            "least_ram_bytes": float(min(one.ram_bytes for one in parts.values())),
            "mean_flops_per_second": _mean(options.devices, {n: d.flops_per_second for n, d in parts.items()}),
            "mean_compute_watts": _mean(options.devices, {n: d.compute_watts for n, d in parts.items()}),
        },
    }  # fmt: skip


def _shares(amounts: Mapping[str, float | int]) -> dict[str, float]:
    total = sum(amounts.values())
    return {name: amount / total for name, amount in amounts.items()}


def _mean(amounts: Mapping[str, float | int], values: Mapping[str, float]) -> float:
    return sum(share * values[name] for name, share in _shares(amounts).items())
