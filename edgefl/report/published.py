"""Predictions beside published measurements: the table, its summary, and a scatter plot."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from edgefl import units
from edgefl.report.console import new_table, or_dash, percent, print_section, screen

_SHOW: dict[str, Callable[[float], str]] = {
    "seconds": units.show_seconds, "peak_memory": units.show_bytes, "power": units.show_watts,
    "energy": units.show_joules,
}  # fmt: skip
_TITLES = {
    "seconds": "Seconds of a training step", "peak_memory": "Peak memory", "power": "Power",
    "energy": "Energy of an epoch",
}  # fmt: skip


def print_published(result: Mapping[str, Any], console: Console | None = None) -> None:
    """Print a result of ``validate_devices``."""
    console = console or screen()
    rows = result["rows"]
    for quantity, title in _TITLES.items():
        mine = [row for row in rows if row["quantity"] == quantity]
        if mine:
            _print_rows(console, title, mine, _SHOW[quantity])
    for row in rows:
        if row["reason"]:
            console.print(Text(f"not predicted: {row['device']}, {row['model']}: {row['reason']}"), soft_wrap=True)
    table = new_table("half", "numbers", "rows", "median error", "worst", "tau", left=(0, 1))
    for one in result["summary"]:
        table.add_row(
            one["half"], "with factors" if one["factors"] else "of the profile", str(one["rows"]),
            or_dash(percent, one["median_error"]), or_dash(percent, one["worst_error"]),
            or_dash("{:.2f}".format, one["tau"]),
        )  # fmt: skip
    print_section(
        console, "Seconds: relative error, and Kendall's tau-b of the order", table,
        "Factors were fitted to the first half; only the second judges them. No profile has them.",
    )  # fmt: skip
    table = new_table("class", "number", "factor", left=(0, 1))
    for name, numbers in result["factors"].items():
        for number, factor in numbers.items():
            table.add_row(name, number, f"{factor:g}")
    print_section(console, "Factors on rates and on seconds per operator", table)
    sources = dict.fromkeys((row["source"]["title"], row["source"]["url"]) for row in rows)
    console.print(Text("Sources", style="bold"))
    for title, url in sources:
        console.print(Text(f"{title}\n  {url}" if url else title), soft_wrap=True)
    console.print()


def _print_rows(console: Console, title: str, rows: list[Mapping[str, Any]], show: Callable[[float], str]) -> None:
    table = new_table(
        "device", "model", "batch", "measured", "predicted", "ratio", "with factors", "half", left=(0, 1, 7)
    )
    for row in rows:
        model = row["model"] + ("" if row["trained"] == "all" else ", last layer")
        precision = "" if row["precision"] == "float32" else f", {row['precision']}"
        table.add_row(
            row["device"], model + precision, str(row["batch"]), show(row["measured"]), or_dash(show, row["predicted"]),
            or_dash("{:.2f}".format, row["ratio"]), or_dash("{:.2f}".format, row["fitted_ratio"]), row["half"],
        )  # fmt: skip
    print_section(console, title, table, "Ratio: predicted / measured.")
