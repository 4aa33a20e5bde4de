"""Devices and links of the library, and what was measured: tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby

from rich.console import Console
from rich.text import Text

from edgefl import units
from edgefl.commands.devices.answer import Calibration
from edgefl.devices.fleet_profile import OWN_ESTIMATE
from edgefl.drawing.text_tables import new_table, number_formatter, or_dash, print_section, print_table, screen
from edgefl.records.devices import DeviceProfile, FleetSheet, Library, LinkProfile, RestsOn, Sourced
from edgefl.records.record import UNSET
from edgefl.yaml_lines import flow

TYPES = {
    "microcomputer": "Microcomputers", "phone": "Phones", "accelerator-board": "Boards with an accelerator",
    "mini-pc": "Mini PCs", "laptop": "Laptops", "desktop": "Desktops", "server": "Servers",
}  # fmt: skip


def print_devices(result: Library | DeviceProfile | LinkProfile | FleetSheet, console: Console | None = None) -> None:
    """Print a result of ``devices.browsing``: lists of profiles, or all numbers of one profile."""
    console = console or screen()
    if not isinstance(result, Library):
        _print_fleet(console, result) if isinstance(result, FleetSheet) else _print_profile(console, result)
        return
    if result.devices is not UNSET:
        _print_device_list(console, result.devices)
    if result.links is not UNSET:
        _print_link_list(console, result.links)
    if result.fleets is not UNSET:
        _print_fleet_list(console, result.fleets)
    console.print(
        Text("m/d/f/e: how many numbers are measured, from a data sheet, fitted to published seconds, estimated.")
    )
    console.print(Text("edgefl devices show NAME: every number with its range, source and confidence."))


def _print_device_list(console: Console, rows: Sequence[DeviceProfile]) -> None:
    if not rows:
        print_section(console, "No device matches")
        return
    table = new_table("device", "RAM", "usable", "training", "bandwidth", "power", "battery", "m/d/f/e")
    order = list(TYPES)
    by_type = sorted(rows, key=lambda device: order.index(device.type))
    for type, group in groupby(by_type, key=lambda device: device.type):
        table.add_row(Text(TYPES[type], style="bold"))
        for device in sorted(group, key=lambda device: device.values["flops_per_second"].value):
            v = _values(device)
            table.add_row(
                f"  {device.name}", units.show_bytes(v["ram_bytes"]), units.show_bytes(v["usable_memory_bytes"]),
                units.show_rate(v["flops_per_second"]), units.show_bytes_per_second(v["memory_bytes_per_second"]),
                units.show_watts(v["compute_watts"]), or_dash(units.show_joules, v.get("battery_joules")),
                _confidence_counts(device),
            )  # fmt: skip
    print_section(
        console, "Devices", table,
        "Training: float32 rate of products. Usable: RAM that is free on an idle system. Power: while computing.",
    )  # fmt: skip


def _print_link_list(console: Console, rows: Sequence[LinkProfile]) -> None:
    if not rows:
        print_section(console, "No link matches")
        return
    table = new_table("link", "down", "up", "latency", "loss", "watts down", "up", "m/d/f/e")
    for link in sorted(rows, key=lambda link: link.values["download_bits_per_second"].value):
        v = _values(link)
        table.add_row(
            link.name, units.show_bits_per_second(v["download_bits_per_second"]),
            units.show_bits_per_second(v["upload_bits_per_second"]), units.show_seconds(v["latency_seconds"]),
            units.show_share(v["loss"]), units.show_watts(v["download_watts"]), units.show_watts(v["upload_watts"]),
            _confidence_counts(link),
        )  # fmt: skip
    print_section(console, "Links", table)


def _print_fleet_list(console: Console, rows: Sequence[FleetSheet]) -> None:
    if not rows:
        print_section(console, "No fleet matches")
        return
    table = new_table("fleet", "devices", "links", "least RAM", "mean training", "own estimates", "", left=(0, 5, 6))
    for fleet in rows:
        own = [field for field in ("devices", "links") if _is_own(fleet, field)]
        table.add_row(
            fleet.name, str(len(fleet.devices)), str(len(fleet.links)),
            units.show_bytes(fleet.derived["least_ram_bytes"]),
            units.show_rate(fleet.derived["mean_flops_per_second"]), " and ".join(own) or "none", fleet.title,
        )  # fmt: skip
    print_section(
        console, "Fleets", table,
        "Own estimates: shares that nobody published. A scenario uses a fleet with `fleet: {like: NAME}`.",
    )  # fmt: skip


def _print_profile(console: Console, profile: DeviceProfile | LinkProfile) -> None:
    table = new_table("", "value", "range", "confidence", left=(0, 3))
    for name, fact in profile.values.items():
        show = number_formatter(name)
        table.add_row(name, show(fact.value), f"{show(fact.low)} to {show(fact.high)}", fact.confidence)
    about = [f"trace: {profile.trace}"] if isinstance(profile, LinkProfile) and profile.trace else []
    if isinstance(profile, DeviceProfile):
        about.append(f"type: {profile.type}")
        if profile.twin:
            about.append(f"same numbers in: {profile.twin}")
        if profile.modes:
            about.append("power modes: " + ", ".join(f"{profile.name}@{mode}" for mode in profile.modes))
        if profile.rests_on is not None:
            about.append(_rests_on(profile.rests_on))
        about.append(f"joules: published figures: {profile.metered}" if profile.metered else METERLESS)
    print_section(console, f"{profile.name}: {profile.title}", table, "\n".join(about))
    _print_derived(console, profile.derived)
    by_source: dict[str, list[str]] = {}
    for name, fact in profile.values.items():
        by_source.setdefault(_source(fact.source), []).append(f"  {name}: {fact.source.quote}")
    console.print(Text("Sources", style="bold"))
    for head, quotes in by_source.items():
        console.print(Text("\n".join([head, *quotes])), soft_wrap=True)
    console.print()


METERLESS = "joules: never held against a meter"


def _rests_on(known: RestsOn) -> str:
    runtime = f" with {known.runtime}" if known.runtime else ""
    rows = f"{known.rows} published rows of {known.of}{runtime}"
    return f"seconds: {units.show_interval(known.within)}, by {rows}"


def _print_fleet(console: Console, fleet: FleetSheet) -> None:
    console.print(Text(f"{fleet.name}: {fleet.title}", style="bold"))
    for noun, shares in (("device", fleet.devices), ("link", fleet.links)):
        table = new_table(noun, "share, own estimate" if _is_own(fleet, f"{noun}s") else "share, after a source")
        for name, share in shares.items():
            table.add_row(name, units.show_share(share))
        print_table(console, table)
        console.print()
    other_fields = {key: value for key, value in fleet.fields.items() if key not in ("devices", "links")}
    if other_fields:
        table = new_table("", "by", "as written", left=(0, 1, 2))
        for key, value in other_fields.items():
            table.add_row(key, "own estimate" if _is_own(fleet, key) else "after a source", flow(value))
        print_section(console, "Other fields", table)
    _print_derived(console, fleet.derived)
    by_source: dict[tuple[str, str], list[str]] = {}
    for field, source in fleet.sources.items():
        by_source.setdefault((_source(source), source.quote), []).append(field)
    console.print(Text(f"Sources ({fleet.confidence})", style="bold"))
    for (head, quote), fields in by_source.items():
        console.print(Text(f"{head}\n  {', '.join(fields)}: {quote}"), soft_wrap=True)
    console.print()


def _is_own(fleet: FleetSheet, field: str) -> bool:
    return field in fleet.sources and fleet.sources[field].title == OWN_ESTIMATE


def _print_derived(console: Console, derived: Mapping[str, float]) -> None:
    table = new_table("", "value")
    for name, value in derived.items():
        table.add_row(name, number_formatter(name)(value))
    print_section(console, "Derived values", table)


def _values(profile: DeviceProfile | LinkProfile) -> dict[str, float]:
    return {name: fact.value for name, fact in profile.values.items()}


def _confidence_counts(profile: DeviceProfile | LinkProfile) -> str:
    counts = Counter(fact.confidence for fact in profile.values.values())
    return "/".join(str(counts[confidence]) for confidence in ("measured", "datasheet", "fitted", "estimated"))


def _source(source: Sourced) -> str:
    read = "" if source.read else ", not read"
    return f"{source.title} ({source.date}{read})" + (f"\n  {source.url}" if source.url else "")


def print_calibration(result: Calibration, console: Console | None = None) -> None:
    """Print the measured profiles of devices and links, notes on what could not be measured, and the files written."""
    console = console or screen()
    for profile in (*result.devices, *result.links):
        table = new_table("number", "value", "lowest", "highest", "how", left=(0, 4))
        for name, fact in profile.values.items():
            show = number_formatter(name)
            table.add_row(name, show(fact.value), show(fact.low), show(fact.high), fact.confidence)
        print_section(console, profile.title, table)
    for note in result.notes:
        console.print(Text(f"note: {note}"))
    for path in result.files:
        console.print(Text(f"written: {path}"))
