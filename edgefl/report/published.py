"""Predictions beside published measurements: the table, its summary, and a scatter plot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from edgefl import units
from edgefl.report.console import Facts, new_table, or_dash, percent, print_section, screen
from edgefl.report.figures import KIND_COLOURS, MARKS
from edgefl.runs.durable import writing

_SHOW: dict[str, Callable[[float], str]] = {
    "seconds": units.show_seconds, "peak_memory": units.show_bytes, "power": units.show_watts,
    "energy": units.show_joules,
}  # fmt: skip
_TITLES = {
    "seconds": "Seconds of a training step", "peak_memory": "Peak memory", "power": "Power",
    "energy": "Energy of an epoch",
}  # fmt: skip


def print_published(result: Facts, console: Console | None = None) -> None:
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


def _print_rows(console: Console, title: str, rows: list[Facts], show: Callable[[float], str]) -> None:
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


def draw_published(result: Facts, path: Path) -> None:
    """Draw predicted over measured seconds of a step on logarithmic axes; rows of the fitted half are hollow.

    Each class of devices has a colour and a mark.  Raises RunError if the file can't be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = [row for row in result["rows"] if row["quantity"] == "seconds" and row["predicted"]]
    figure = Figure(figsize=(6.4, 5.6), layout="constrained", dpi=140)
    FigureCanvasAgg(figure)
    axes: Any = figure.add_subplot()
    for index, name in enumerate(dict.fromkeys(row["class"] for row in rows)):
        colour, mark = KIND_COLOURS[index % len(KIND_COLOURS)], MARKS[index % len(MARKS)]
        for half, filled in (("held-out", True), ("fitted", False)):
            mine = [row for row in rows if row["class"] == name and row["half"] == half]
            if mine:
                axes.scatter(
                    [row["measured"] for row in mine], [row["predicted"] for row in mine], marker=mark, s=30,
                    edgecolors=colour, facecolors=colour if filled else "none", label=f"{name}, {half} ({len(mine)})",
                )  # fmt: skip
    every = [row[key] for row in rows for key in ("measured", "predicted")]
    if every:
        ends = [min(every) / 1.5, max(every) * 1.5]
        axes.plot(ends, ends, color="#888888", linewidth=1)
        for factor in (0.5, 2.0):
            axes.plot(ends, [factor * end for end in ends], color="#888888", linewidth=0.8, linestyle=":")
        axes.set_xlim(ends)
        axes.set_ylim(ends)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.grid(alpha=0.25)
    axes.set_xlabel("published seconds of a training step")
    axes.set_ylabel("predicted seconds; dotted: half and double")
    axes.legend(fontsize=7, loc="upper left")
    with writing(path):
        figure.savefig(path)
