"""Devices of the library against a scenario: a table, and a figure of what fits."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from edgefl import units
from edgefl.report.console import NOTHING, Facts, new_table, print_table, screen, stage_of, whose
from edgefl.report.figures import KIND_COLOURS, MARKS
from edgefl.report.profile.clients import tightest, verdict
from edgefl.runs.durable import writing

MOST_KINDS = 3
"""Kinds that have a column each."""


def print_device_check(result: Facts, console: Console | None = None, *, full: bool = False) -> None:
    """Print the result of ``edgefl.check_devices``: a line for each device, smallest memory first.

    With ``full``, or for many kinds, a line for each device and kind.
    """
    console = console or screen()
    rows = result["rows"]
    devices = dict.fromkeys(row["device"] for row in rows)
    kinds = list(dict.fromkeys(whose(row) for row in rows))
    fitting = [name for name in devices if all(row["eligible"] for row in rows if row["device"] == name)]
    head = f"{len(fitting)} of {len(devices)} devices fit {result['scenario']} over {result['link']}"
    console.print(Text(f"{head}: largest client of each kind, hardest stage", style="bold"))
    if full or len(kinds) > MOST_KINDS:
        _print_rows(console, rows)
    else:
        _print_lines(console, rows, list(devices), kinds)
    for line in _notes(result, rows):
        console.print(Text(line))


def _print_lines(console: Console, rows: Sequence[Facts], devices: Sequence[str], kinds: Sequence[str]) -> None:
    """A line for each device: the time of each kind's round, and the budget that is tightest over the kinds."""
    several = len(kinds) > 1
    table = new_table("device", "for tensors", *(f"{kind}, time" for kind in kinds), "tightest budget",
                      left=(0, 2 + len(kinds)))  # fmt: skip
    table.columns[0].min_width = max(map(len, devices), default=0)
    by_device = {name: {whose(row): row for row in rows if row["device"] == name} for name in devices}
    for name, mine in by_device.items():
        worst = min(mine.values(), key=lambda row: (row["eligible"], _left(row)))
        table.add_row(
            name, units.show_bytes(worst["available_memory_bytes"]),
            *(_time(mine[kind]) if kind in mine else NOTHING for kind in kinds),
            f"{worst['kind']}: {tightest(worst)}" if several else tightest(worst),
        )  # fmt: skip
    print_table(console, table)


def _left(row: Facts) -> float:
    """Share of the binding budget that is left."""
    return float(row["margin"] / row["budget"]) if row["budget"] else -inf


def _time(row: Facts) -> str:
    seconds = units.show_seconds(row["virtual_seconds"]) + ("~" if row["throttling_seconds"] > 0 else "")
    if row["eligible"]:
        return seconds
    stages = f", {row['eligible_stages']} of {row['stages']}" if row["eligible_stages"] else ""
    return f"no{stages}"


def _print_rows(console: Console, rows: Sequence[Facts]) -> None:
    table = new_table("device", "kind", "stage", "peak", "time", "energy", "verdict", left=(0, 1, 6))
    table.columns[0].min_width = max((len(row["device"]) for row in rows), default=0)
    last = None
    for row in rows:
        table.add_row(
            row["device"] if row["device"] != last else "", whose(row), stage_of(row),
            units.show_bytes(row["peak_memory_bytes"]),
            units.show_seconds(row["virtual_seconds"]) + ("~" if row["throttling_seconds"] > 0 else ""),
            units.show_joules(row["energy_joules"]), verdict(row),
        )  # fmt: skip
        last = row["device"]
    print_table(console, table)


def _notes(result: Facts, rows: Sequence[Facts]) -> list[str]:
    notes = [
        "fits: within the device's memory, the round's deadline, and owners' tightest other budgets",
        "%: of the budget that the round takes; no, 2 of 3: fits 2 of 3 stages",
    ]
    if any(row["throttling_seconds"] > 0 for row in rows):
        included = "the time has that" if result["throttling"] else "the time lacks that (fleet.throttling: true)"
        notes.append(f"~: the device gets hot in this round and slows down; {included}")
    return notes


def draw_device_check(result: Facts, path: Path) -> None:
    """Draw each device's seconds of a round over its memory for tensors; devices that don't fit are hollow.

    A panel for each kind, with its peak memory as a line.  Raises RunError if the file can't be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    kinds = list(dict.fromkeys(whose(row) for row in result["rows"]))
    figure = Figure(figsize=(2.0 + 4.4 * max(len(kinds), 1), 4.8), layout="constrained", dpi=140)
    FigureCanvasAgg(figure)
    grid: Any = figure.subplots(1, max(len(kinds), 1), sharey=True, squeeze=False)
    for index, kind in enumerate(kinds):
        axes, rows = grid[0][index], [row for row in result["rows"] if whose(row) == kind]
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
