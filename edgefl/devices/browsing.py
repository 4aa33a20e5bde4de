"""The profile libraries as records: lists of profiles, and all details of one profile."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from math import inf
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from edgefl import units
from edgefl.devices.derived import derived_of_device, derived_of_link
from edgefl.devices.fleet_profile import FleetProfile, fleet_names, fleet_profile
from edgefl.devices.link_trace import LinkTrace
from edgefl.devices.options import FleetOptions
from edgefl.devices.processors import efficiency_of
from edgefl.devices.profile import (
    BrokenLibrary,
    Device,
    Link,
    broken_libraries,
    device_names,
    is_file_name,
    library_files,
    link_names,
    load_device,
    load_link,
    split_mode,
)
from edgefl.devices.written_facts import FactSource, profile_keys, read_written
from edgefl.errors import EdgeflError, UnknownName
from edgefl.records.devices import BrokenPart, DeviceProfile, FleetSheet, Library, LinkProfile, Number, RestsOn, Sourced
from edgefl.records.record import UNSET, Maybe
from edgefl.yaml_lines import spell

P = TypeVar("P", DeviceProfile, LinkProfile, FleetSheet)

SECTIONS = ("devices", "links", "fleets")


def browse(*, sections: Iterable[str] = (), search: str | None = None) -> Library:
    """The devices, links and fleets of the libraries, by section; only ``sections`` if given.

    ``search`` is a part of a name or title.
    """
    sections = tuple(sections) or SECTIONS

    def section(noun: str, names: Sequence[str], read: Callable[[str], P]) -> list[P] | Maybe:
        if f"{noun}s" not in sections:
            return UNSET
        found = []
        for name in names:
            try:
                found.append(read(name))
            except EdgeflError as error:
                broken.append(BrokenPart(part=noun, name=name, message=str(error)))
        return [each for each in found if (search or "").casefold() in f"{each.name}\n{each.title}".casefold()]

    with warnings.catch_warnings(action="ignore", category=BrokenLibrary):
        broken = [BrokenPart(part="profile library", name=n, message=text) for n, text in broken_libraries().items()]
        return Library(
            devices=section("device", device_names(), lambda name: _device(load_device(name))),
            links=section("link", link_names(), lambda name: _link(load_link(name))),
            fleets=section("fleet", fleet_names(), lambda name: _fleet(fleet_profile(name), name)),
            broken=broken or UNSET,
        )


def describe(name: str) -> DeviceProfile | LinkProfile | FleetSheet:
    """All numbers, sources and derived figures of a device, link or fleet, from the libraries or the user's own file.

    Raises UnknownName with the nearest name, and DeviceError for an invalid profile.
    """
    if is_file_name(name):
        noun = _noun_of_file(Path(split_mode(name)[0]))
    elif split_mode(name)[1] is not None and not is_file_name(name):
        return _device(load_device(name))
    else:
        names = {"device": device_names(), "link": link_names(), "fleet": fleet_names()}
        noun_of_name = next((noun for noun, in_library in names.items() if name in in_library), None)
        if noun_of_name is None:
            raise UnknownName("device, link or fleet", name, [n for in_library in names.values() for n in in_library])
        noun = noun_of_name
    if noun == "fleet":
        return _fleet(fleet_profile(name), name)
    return _link(load_link(name)) if noun == "link" else _device(load_device(name))


def _noun_of_file(path: Path) -> str:
    keys = profile_keys(path)
    if "fleet" in keys:
        return "fleet"
    return "link" if "download_bits_per_second" in keys or "upload_bits_per_second" in keys else "device"


def numbers_of(profile: Device | Link) -> dict[str, Number]:
    """The numbers of a profile by name."""
    return {
        name: Number(value=fact.value, low=fact.low, high=fact.high, confidence=fact.confidence,
                     source=_source_record(fact.source))
        for name, fact in profile.facts.items()
    }  # fmt: skip


def _source_record(source: FactSource) -> Sourced:
    return Sourced(**source.model_dump(mode="json"))


def _device(device: Device) -> DeviceProfile:
    return DeviceProfile(
        profile="device", name=device.name, title=device.title, type=device.type, twin=device.twin, modes=device.modes,
        values=numbers_of(device), derived=derived_of_device(device), rests_on=rests_on(device),
        metered=_energy_figure_counts()[device.name],
    )  # fmt: skip


class _Figure(BaseModel):
    """What counts of a published measurement; ``tools/published_steps`` reads all of it."""

    device: str
    measured: str = ""
    watts: object = None


@cache
def _energy_figure_counts() -> Counter[str]:
    """Published figures of watts or joules by device.  Raises DeviceError for an invalid file of measurements."""
    counts = Counter[str]()
    for path in library_files("measurements").values():
        written = read_written(path, "a file of measurements has a list, measurements")
        try:
            rows = TypeAdapter(list[_Figure]).validate_python(written.data.get("measurements"))
        except ValidationError as error:
            raise written.invalid(error, ("measurements",), "a measurement is {device, measured, value}") from None
        counts.update(row.device for row in rows if row.watts is not None or row.measured in ("power", "energy"))
    return counts


def rests_on(device: Device) -> RestsOn | None:
    """What the seconds of a device rest on; None for a profile that names no class of processors."""
    within = device.processor.within
    if device.processor_class is None or within is None:
        return None
    entry = efficiency_of(device.processor_class, split_mode(device.name)[0])
    return RestsOn(
        processor=device.processor_class, of=entry.of, runtime=entry.runtime, rows=entry.rows, devices=entry.devices,
        within=within,
    )  # fmt: skip


def _link(link: Link) -> LinkProfile:
    return LinkProfile(
        profile="link", name=link.name, title=link.title, values=numbers_of(link), derived=derived_of_link(link),
        trace=None if link.trace is None else _trace_words(link, link.trace),
    )  # fmt: skip


def _trace_words(link: Link, trace: LinkTrace) -> str:
    """Between which rates a trace varies, and whether it repeats."""
    own, show = (link.download_bits_per_second, link.upload_bits_per_second), units.show_bits_per_second
    down, up = (f"{show(r.min() * of)} to {show(r.max() * of)}" for r, of in zip(trace.rates, own, strict=True))
    return f"down {down}, up {up}" + (f", anew every {units.show_seconds(trace.period)}" if trace.period < inf else "")


def _fleet(fleet: FleetProfile, name: str) -> FleetSheet:
    try:
        options = FleetOptions.model_validate(dict(fleet.fields))
    except ValidationError as error:
        first = error.errors()[0]
        keys = ("fleet", *first["loc"])
        path = Path(name) if is_file_name(name) else library_files("fleets")[name]
        message = f"{spell(keys)}: {first['msg'].removeprefix('Value error, ')}"
        raise read_written(path, "a fleet").error(message, *keys) from None
    devices = {name: load_device(name) for name in options.devices}
    return FleetSheet(
        profile="fleet", name=fleet.name, title=fleet.title, confidence=fleet.confidence,
        sources={field: _source_record(source) for field, source in fleet.sources.items()}, fields=dict(fleet.fields),
        devices=_shares(options.devices), links=_shares(options.links),
        derived={
            "least_ram_bytes": float(min(device.ram_bytes for device in devices.values())),
            "mean_flops_per_second": _mean(options.devices, {n: d.flops_per_second for n, d in devices.items()}),
            "mean_compute_watts": _mean(options.devices, {n: d.compute_watts for n, d in devices.items()}),
        },
    )  # fmt: skip


def _shares(amounts: Mapping[str, float | int]) -> dict[str, float]:
    total = sum(amounts.values())
    return {name: amount / total for name, amount in amounts.items()}


def _mean(amounts: Mapping[str, float | int], values: Mapping[str, float]) -> float:
    return sum(share * values[name] for name, share in _shares(amounts).items())


def seconds_within(names: Iterable[str]) -> dict[str, float]:
    """``Processor.within`` of these devices, which are names of the library or files; others have none."""
    asked = (name for name in dict.fromkeys(names) if is_file_name(name) or split_mode(name)[0] in device_names())
    known = {name: load_device(name).processor.within for name in asked}
    return {name: within for name, within in known.items() if within is not None}
