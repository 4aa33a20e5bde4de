"""What the profile library looks like: lists with the numbers that decide, and everything about one profile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.text import Text

from edgefl import units
from edgefl.report.console import Facts, new_table, or_dash, print_section, print_table, screen

SHOWN_NUMBERS = {
    "ram_bytes": units.show_bytes,
    "usable_memory_bytes": units.show_bytes,
    "runtime_overhead_bytes": units.show_bytes,
    "flops_per_second": units.show_rate,
    "peak_flops_per_second": units.show_rate,
    "float16_flops_per_second": units.show_rate,
    "bfloat16_flops_per_second": units.show_rate,
    "memory_bytes_per_second": units.show_bytes_per_second,
    "storage_bytes_per_second": units.show_bytes_per_second,
    "seconds_per_operator": units.show_seconds,
    "compute_watts": units.show_watts,
    "idle_watts": units.show_watts,
    "battery_joules": units.show_joules,
    "throttle_after_seconds": units.show_seconds,
    "throttled_share": units.show_share,
    "download_bits_per_second": units.show_bits_per_second,
    "upload_bits_per_second": units.show_bits_per_second,
    "latency_seconds": units.show_seconds,
    "loss": units.show_share,
    "download_watts": units.show_watts,
    "upload_watts": units.show_watts,
    "jitter": "{:g}".format,
}
SHOWN_DERIVED = {
    "flops_per_joule": lambda value: f"{units.show_flops(value)}/J",
    "bytes_per_flop": "{:.3g}".format,
    "sustained_share_of_peak": units.show_share,
    "available_memory_bytes": units.show_bytes,
    "seconds_to_load_a_gigabyte": units.show_seconds,
    "flops_per_second_hot": units.show_rate,
    "battery_seconds": units.show_seconds,
    "download_goodput_bits_per_second": units.show_bits_per_second,
    "upload_goodput_bits_per_second": units.show_bits_per_second,
    "download_seconds_per_megabyte": units.show_seconds,
    "upload_seconds_per_megabyte": units.show_seconds,
    "download_joules_per_megabyte": units.show_joules,
    "upload_joules_per_megabyte": units.show_joules,
    "least_ram_bytes": units.show_bytes,
    "mean_flops_per_second": units.show_rate,
    "mean_compute_watts": units.show_watts,
}
KINDS = {
    "microcomputer": "Microcomputers", "phone": "Phones", "accelerator-board": "Boards with an accelerator",
    "mini-pc": "Mini PCs", "laptop": "Laptops", "desktop": "Desktops", "server": "Servers",
}  # fmt: skip


def print_devices(found: Facts, console: Console | None = None) -> None:
    """What ``devices.browsing`` found: the library as tables, or everything about one profile."""
    console = console or screen()
    if "profile" in found:
        _print_fleet(console, found) if found["profile"] == "fleet" else _print_one(console, found)
        return
    if "devices" in found:
        _print_device_list(console, found["devices"])
    if "links" in found:
        _print_link_list(console, found["links"])
    if "fleets" in found:
        _print_fleet_list(console, found["fleets"])
    console.print(Text("m/d/e: how many of its numbers were measured, are from a data sheet, are estimated."))
    console.print(Text("edgefl devices show NAME: every number with its range, its source and how sure it is."))


def _print_device_list(console: Console, rows: Any) -> None:
    if not rows:
        print_section(console, "No device passes")
        return
    table = new_table("device", "RAM", "usable", "training", "bandwidth", "power", "battery", "m/d/e")
    order = list(KINDS)
    for kind, group in groupby(sorted(rows, key=lambda one: order.index(one["kind"])), key=lambda one: one["kind"]):
        table.add_row(Text(KINDS[kind], style="bold"))
        for one in sorted(group, key=lambda one: one["values"]["flops_per_second"]["value"]):
            v = _numbers(one)
            table.add_row(
                f"  {one['name']}", units.show_bytes(v["ram_bytes"]), units.show_bytes(v["usable_memory_bytes"]),
                units.show_rate(v["flops_per_second"]), units.show_bytes_per_second(v["memory_bytes_per_second"]),
                units.show_watts(v["compute_watts"]), or_dash(units.show_joules, v.get("battery_joules")), _sure(one),
            )  # fmt: skip
    print_section(
        console, "Devices", table,
        "Training: sustained float32 rate. Usable: RAM that an idle system leaves. Power: while computing.",
    )  # fmt: skip


def _print_link_list(console: Console, rows: Any) -> None:
    if not rows:
        print_section(console, "No link passes")
        return
    table = new_table("link", "down", "up", "latency", "loss", "watts down", "up", "m/d/e")
    for one in sorted(rows, key=lambda one: one["values"]["download_bits_per_second"]["value"]):
        v = _numbers(one)
        table.add_row(
            one["name"], units.show_bits_per_second(v["download_bits_per_second"]),
            units.show_bits_per_second(v["upload_bits_per_second"]), units.show_seconds(v["latency_seconds"]),
            units.show_share(v["loss"]), units.show_watts(v["download_watts"]), units.show_watts(v["upload_watts"]),
            _sure(one),
        )  # fmt: skip
    print_section(console, "Links", table)


def _print_fleet_list(console: Console, rows: Any) -> None:
    if not rows:
        print_section(console, "No fleet passes")
        return
    table = new_table("fleet", "devices", "links", "least RAM", "mean training", "confidence", "", left=(0, 5, 6))
    for one in rows:
        table.add_row(
            one["name"], str(len(one["devices"])), str(len(one["links"])),
            units.show_bytes(one["derived"]["least_ram_bytes"]),
            units.show_rate(one["derived"]["mean_flops_per_second"]), one["confidence"], one["title"],
        )  # fmt: skip
    print_section(console, "Fleets", table, "A scenario's `fleet: {like: NAME}` takes one.")


def _print_one(console: Console, found: Facts) -> None:
    table = new_table("", "value", "range", "confidence", left=(0, 3))
    for name, fact in found["values"].items():
        show = SHOWN_NUMBERS[name]
        table.add_row(name, show(fact["value"]), f"{show(fact['low'])} to {show(fact['high'])}", fact["confidence"])
    about = [f"kind: {found['kind']}" if found.get("kind") else "", f"same numbers in: {found['twin']}"
             if found.get("twin") else ""]  # fmt: skip
    print_section(console, f"{found['name']}: {found['title']}", table, "\n".join(line for line in about if line))
    _print_derived(console, found["derived"])
    by_source: dict[str, list[str]] = {}
    for name, fact in found["values"].items():
        by_source.setdefault(_source(fact["source"]), []).append(f"  {name}: {fact['source']['quote']}")
    console.print(Text("Sources", style="bold"))
    for head, quotes in by_source.items():
        console.print(Text("\n".join([head, *quotes])), soft_wrap=True)
    console.print()


def _print_fleet(console: Console, found: Facts) -> None:
    console.print(Text(f"{found['name']}: {found['title']}", style="bold"))
    for noun in ("devices", "links"):
        table = new_table(noun[:-1], "share")
        for name, share in found[noun].items():
            table.add_row(name, units.show_share(share))
        print_table(console, table)
        console.print()
    rest = {key: value for key, value in found["fields"].items() if key not in ("devices", "links")}
    if rest:
        table = new_table("", "as written", left=(0, 1))
        for key, value in rest.items():
            table.add_row(key, _spelled(value))
        print_section(console, "Besides", table)
    _print_derived(console, found["derived"])
    console.print(Text(f"Source ({found['confidence']})", style="bold"))
    console.print(Text(f"{_source(found['source'])}\n  {found['source']['quote']}\n"), soft_wrap=True)


def _print_derived(console: Console, derived: Facts) -> None:
    table = new_table("", "value")
    for name, value in derived.items():
        table.add_row(name, SHOWN_DERIVED[name](value))
    print_section(console, "What follows", table)


def _numbers(one: Facts) -> dict[str, float]:
    return {name: fact["value"] for name, fact in one["values"].items()}


def _sure(one: Facts) -> str:
    counted = Counter(fact["confidence"] for fact in one["values"].values())
    return "/".join(str(counted[confidence]) for confidence in ("measured", "datasheet", "estimated"))


def _source(source: Facts) -> str:
    read = "" if source["read"] else ", not opened then"
    return f"{source['title']} ({source['date']}{read})" + (f"\n  {source['url']}" if source["url"] else "")


def _spelled(value: Any) -> str:
    """As it could stand in a scenario."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_spelled(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_spelled, value)) + "]"
    return str(value).lower() if isinstance(value, bool) else str(value)
