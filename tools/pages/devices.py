"""The blocks of the page ``devices.md``: what a profile's numbers are, and every device and link of the library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any, cast

from edgefl.devices import (
    Device,
    FleetProfile,
    Link,
    device_names,
    fleet_names,
    fleet_profile,
    link_names,
    load_device,
    load_link,
)
from edgefl.devices.fleet_profile import OWN_ESTIMATE
from edgefl.devices.processors import classes
from edgefl.devices.runtime import PYTORCH, load_runtime, runtime_names
from edgefl.devices.written_facts import Fact, FactSource
from edgefl.drawing.text_tables import number_formatter
from tools.pages.classes import members
from tools.pages.markdown import oneline, table

DERIVED = ("name", "facts", "processor_class", "tf32_flops_per_second")
"""Fields of a profile that its file doesn't write."""
CONFIDENCES = ("measured", "datasheet", "fitted", "estimated")


def device_blocks() -> dict[str, str]:
    """Each block of the page by its name."""
    devices = [load_device(name) for name in device_names()]
    devices.sort(key=lambda device: device.flops_per_second)
    links = sorted(map(load_link, link_names()), key=lambda link: link.download_bits_per_second)
    return {
        "all devices": _device_list(devices),
        "all links": _link_list(links),
        "all fleets": _fleet_list([fleet_profile(name) for name in fleet_names()]),
        "numbers of a device": _meanings(Device, devices),
        "processors": _processors(devices),
        "numbers of a link": _meanings(Link, links),
        "devices": "\n\n".join(part for each in devices for part in _device(each)),
        "links": "\n\n".join(part for each in links for part in _profile(each)),
        "confidence": _confidence(devices),
        "confidence by number": _by_number(devices),
        "sources": _sources([*devices, *links]),
    }


def _meanings(of: type[Any], profiles: Sequence[Device | Link]) -> str:
    """What each number of a profile is; those that every file has are needed."""
    written = ({name for name, fact in each.facts.items() if fact.confidence != "fitted"} for each in profiles)
    needed = dict.fromkeys({"title", "type"}.union(set.intersection(*written)), "yes")
    needed |= dict.fromkeys(("processor", "flops_per_second"), "one of them")
    rows = [
        (f"`{each.name}`", oneline(each.text).removesuffix("."), needed.get(each.name, ""))
        for each in members(of)
        if not isinstance(getattr(of, each.name, None), property | FunctionType) and each.name not in DERIVED
    ]
    return table(("Number", "Meaning", "Needed"), rows)


def _processors(devices: Sequence[Device]) -> str:
    """The classes of processors, with the devices of each."""
    rows = [
        (f"`{name}`", each.about, ", ".join(sorted(d.name for d in devices if d.processor_class == name)) or "–")
        for name, each in classes().items()
    ]
    return table(("Class", "Processors", "Devices"), rows)


def _device_list(devices: list[Device]) -> str:
    numbers = ("ram_bytes", "usable_memory_bytes", "flops_per_second", "memory_bytes_per_second", "compute_watts")
    rows = [
        (
            f"[`{device.name}`](#{device.name})",
            device.title,
            *(_shown(name, device) for name in numbers),
            "–" if device.battery_joules is None else _shown("battery_joules", device),
            _counts(device.facts),
        )
        for device in devices
    ]
    head = ("Device", "What it is", "RAM", "Usable", "Training", "Bandwidth", "Power", "Battery", "m/d/f/e")
    return table(head, rows)


def _link_list(links: list[Link]) -> str:
    numbers = ("download_bits_per_second", "upload_bits_per_second", "latency_seconds", "loss")
    rows = [
        (f"[`{link.name}`](#{link.name})", link.title, *(_shown(name, link) for name in numbers), _counts(link.facts))
        for link in links
    ]
    return table(("Link", "What it is", "Down", "Up", "Latency", "Loss", "m/d/f/e"), rows)


def _fleet_list(fleets: list[FleetProfile]) -> str:
    """The shares of devices and links of each fleet, with who says so."""
    rows = [
        (f"`{fleet.name}`", fleet.title, *(_shares(fleet, field) for field in ("devices", "links"))) for fleet in fleets
    ]
    return table(("Fleet", "What it is", "Devices", "Links"), rows)


def _shares(fleet: FleetProfile, field: str) -> str:
    written, source = cast("Mapping[str, str]", fleet.fields[field]), fleet.sources[field]
    by = "own estimate" if source.title == OWN_ESTIMATE else f"after [{source.title}]({source.url}), {source.date}"
    return ", ".join(f"{name} {amount}" for name, amount in written.items()) + f" ({by})"


def _shown(number: str, profile: Device | Link) -> str:
    """A number of a profile with its unit, and the first letter of its confidence."""
    return f"{number_formatter(number)(getattr(profile, number))} ({profile.facts[number].confidence[0]})"


def _counts(facts: Mapping[str, Fact]) -> str:
    """How many numbers are measured, from a data sheet, fitted, and estimated."""
    return "/".join(str(sum(fact.confidence == each for fact in facts.values())) for each in CONFIDENCES)


def _device(device: Device) -> Iterator[str]:
    """The section of a device, with the numbers that differ in its power modes."""
    heading, text, numbers = _profile(device)
    about = f"{text} Type: {device.type}. Processor: {device.processor_class}."
    about += f" Same numbers in: {device.twin}." if device.twin else ""
    yield from (heading, about)
    yield "\n".join([numbers, *(_row(f"@{mode}: ", name, fact) for mode, name, fact in new_in_modes(device))])


def new_in_modes(device: Device) -> Iterator[tuple[str, str, Fact]]:
    """The numbers of a device's power modes that differ from its own, each with its mode and name."""
    for mode in device.modes:
        for name, fact in load_device(f"{device.name}@{mode}").facts.items():
            if fact != device.facts.get(name):
                yield mode, name, fact


def _profile(profile: Device | Link) -> tuple[str, str, str]:
    rows = [_row("", name, fact) for name, fact in profile.facts.items()]
    return f"### {profile.name}", f"{profile.title}.", "\n".join([table(HEAD, []), *rows])


HEAD = ("Number", "Value", "Range", "Confidence", "Source")


def _row(mode: str, name: str, fact: Fact) -> str:
    show, source = number_formatter(name), fact.source
    title = f"[{source.title}]({source.url})" if source.url else source.title
    low, high = show(fact.low), show(fact.high)
    cells = (f"{mode}`{name}`", show(fact.value), low if low == high else f"{low} to {high}", fact.confidence, title)
    return table(cells, []).splitlines()[0]


def _sources(profiles: Sequence[Device | Link]) -> str:
    """Each source of others as one cites it, and the profiles that have numbers of it."""
    cited: dict[tuple[str, str], dict[str, None]] = {}
    for profile in profiles:
        for fact in profile.facts.values():
            if fact.confidence != "fitted" and fact.source.title != OWN_ESTIMATE:
                cited.setdefault(_cited(fact.source), {})[profile.name] = None
    rows = [(*source, ", ".join(f"[`{name}`](#{name})" for name in names)) for source, names in sorted(cited.items())]
    return table(("Source", "Read on", "Numbers of"), rows)


def _cited(source: FactSource) -> tuple[str, str]:
    title = f"{source.title}, <{source.url}>" if source.url else source.title
    return title, source.date.isoformat() if source.read else "not opened"


def _confidence(devices: Sequence[Device]) -> str:
    """How many numbers are measured, from a data sheet, fitted, and estimated; without any source."""
    facts = {
        f"{len(devices)} devices": [fact for device in devices for fact in device.facts.values()],
        "their power modes": [fact for device in devices for _, _, fact in new_in_modes(device)],
        f"{len(link_names())} links": [fact for name in link_names() for fact in load_link(name).facts.values()],
        "runtimes": [load_runtime(name).fact for name in runtime_names() if name != PYTORCH],
    }
    facts["all"] = [fact for of in facts.values() for fact in of]
    rows = [
        (name, *_counted(of), str(len(of)), str(sum(f.source.title == OWN_ESTIMATE for f in of)))
        for name, of in facts.items()
    ]
    return table(("Numbers of", *map(str.capitalize, CONFIDENCES), "All", "Our own estimate only"), rows)


def _by_number(devices: Sequence[Device]) -> str:
    """The same for each number of a device and of a link."""
    rows = []
    for what, profiles in (
        ("device", [each.facts for each in devices]),
        ("link", [load_link(n).facts for n in link_names()]),
    ):
        for name in dict.fromkeys(name for facts in profiles for name in facts):
            rows.append((what, f"`{name}`", *_counted([facts[name] for facts in profiles if name in facts])))
    return table(("Of a", "Number", *map(str.capitalize, CONFIDENCES)), rows)


def _counted(facts: Sequence[Fact]) -> list[str]:
    return [str(sum(fact.confidence == each for fact in facts) or "–") for each in CONFIDENCES]
