"""Devices of the library against a scenario: a table, and a figure of what fits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from edgefl import units
from edgefl.report.console import Facts, new_table, print_table, screen
from edgefl.report.figures import KIND_COLOURS, MARKS
from edgefl.report.profile.clients import verdict
from edgefl.runs.durable import writing


def print_device_check(result: Facts, console: Console | None = None) -> None:
    """Print the result of ``edgefl.check_devices``: a line for each device and kind, smallest memory first."""
    console = console or screen()
    rows = result["rows"]
    devices = dict.fromkeys(row["device"] for row in rows)
    fitting = [name for name in devices if all(row["eligible"] for row in rows if row["device"] == name)]
    head = f"{len(fitting)} of {len(devices)} devices fit {result['scenario']} over {result['link']}"
    console.print(Text(f"{head}: largest client of each kind, hardest stage", style="bold"))
    table = new_table(
        "device", "for tensors", "kind", "stage", "peak", "fits", "time", "energy", "verdict", left=(0, 2, 5, 8)
    )
    last = None
    for row in rows:
        new = row["device"] != last
        table.add_row(
            row["device"] if new else "", units.show_bytes(row["available_memory_bytes"]) if new else "", row["kind"],
            str(row["stage"]), units.show_bytes(row["peak_memory_bytes"]), _fits(row),
            units.show_seconds(row["virtual_seconds"]) + ("~" if row["throttling_seconds"] > 0 else ""),
            units.show_joules(row["energy_joules"]), verdict(row),
        )  # fmt: skip
        last = row["device"]
    print_table(console, table)
    for line in _notes(result, rows):
        console.print(Text(line))


def _fits(row: Facts) -> str:
    """``yes``, ``no``, or in how many of the stages."""
    if row["eligible"]:
        return "yes"
    return f"{row['eligible_stages']} of {row['stages']}" if row["eligible_stages"] else "no"


def _notes(result: Facts, rows: Sequence[Facts]) -> list[str]:
    notes = ["fits: memory of the device, the round's deadline, and owners' tightest FLOPs, bytes, seconds and joules"]
    if any(row["throttling_seconds"] > 0 for row in rows):
        included = (
            "the time has that" if result["throttling"] else "the time lacks that (fleet.throttling: true adds it)"
        )
        notes.append(f"~: the device gets hot in this round and slows down; {included}")
    return notes


def draw_device_check(result: Facts, path: Path) -> None:
    """Draw each device's seconds of a round over its memory for tensors; devices that don't fit are hollow.

    A panel for each kind, with its peak memory as a line.  Raises RunError if the file can't be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    kinds = list(dict.fromkeys(row["kind"] for row in result["rows"]))
    figure = Figure(figsize=(2.0 + 4.4 * max(len(kinds), 1), 4.8), layout="constrained", dpi=140)
    FigureCanvasAgg(figure)
    grid: Any = figure.subplots(1, max(len(kinds), 1), sharey=True, squeeze=False)
    for index, kind in enumerate(kinds):
        axes, rows = grid[0][index], [row for row in result["rows"] if row["kind"] == kind]
        colour, mark = KIND_COLOURS[index % len(KIND_COLOURS)], MARKS[index % len(MARKS)]
        for eligible in (True, False):
            mine = [row for row in rows if row["eligible"] == eligible]
            axes.scatter(
                [max(row["available_memory_bytes"], 2**20) / 2**30 for row in mine],
                [row["virtual_seconds"] for row in mine],
                marker=mark, s=36, edgecolors=colour, facecolors=colour if eligible else "none",
                label=f"{'fits' if eligible else 'does not fit'} ({len(mine)})",
            )  # fmt: skip
        for row in rows:
            place = max(row["available_memory_bytes"], 2**20) / 2**30, row["virtual_seconds"]
            axes.annotate(row["device"], place, fontsize=4.5, xytext=(3, 3), textcoords="offset points")
        peak = max(row["peak_memory_bytes"] for row in rows)
        axes.axvline(peak / 2**30, color="#888888", linestyle=":", label=f"peak {units.show_bytes(peak)}")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.grid(alpha=0.25)
        axes.set_title(kind, fontsize=10)
        axes.set_xlabel("memory for tensors, GiB")
        axes.legend(fontsize=7, loc="upper right")
    grid[0][0].set_ylabel("seconds of a round")
    figure.suptitle(f"{result['scenario']}: devices of the library over {result['link']}", fontsize=11)
    with writing(path):
        figure.savefig(path)
