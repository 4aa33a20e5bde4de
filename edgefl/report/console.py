"""Common parts of all tables: a console of at most 100 columns, and the format of single values."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Container, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

Facts = Mapping[str, Any]


WIDTH = 100
"""Columns of the console."""

TITLES = {
    "accuracy": "accuracy", "balanced_accuracy": "balanced accuracy", "soft_score": "soft score", "r@1": "R@1",
    "r@10": "R@10", "r@1_sum_folds": "R@1 sum",
}  # fmt: skip
"""Titles of metrics in tables."""

NOTHING = "-"
"""Text of a cell without a value."""

DIVERGED = "diverged"
"""Text of a cell whose metric isn't finite."""

MOST_COLUMNS = 4
"""Runs in one comparison table; further runs go into further tables."""


def screen(*, stderr: bool = False) -> Console:
    """A console on stdout (or stderr) of at most ``WIDTH`` columns; without control codes if it isn't a terminal."""
    file = sys.stderr if stderr else sys.stdout
    console = Console(file=file, highlight=False, soft_wrap=False, emoji=False, markup=False)
    if not console.is_terminal:
        return Console(
            file=file, highlight=False, emoji=False, markup=False, width=WIDTH, no_color=True, color_system=None
        )
    console.width = min(console.width, WIDTH)
    return console


def new_table(*columns: str, left: Container[int] = (0,)) -> Table:
    """An empty table.  The columns ``left`` (indices from 0) are left-aligned text; the others are numbers."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for index, name in enumerate(columns):
        table.add_column(name, justify="left" if index in left else "right", overflow="fold")
    return table


def print_section(console: Console, title: str, table: Table | None = None, note: str = "") -> None:
    """Print a title, the table below it, the note below that, and an empty line."""
    console.print(Text(title, style="bold"))
    if table is not None:
        print_table(console, table)
    if note:
        console.print(Text(note))
    console.print()


def print_table(console: Console, table: Table) -> None:
    """Print the table; outside a terminal without the spaces that rich appends to each line."""
    with console.capture() as captured:
        console.print(table)
    text = captured.get()
    if not console.is_terminal:
        text = "".join(line.rstrip() + "\n" for line in text.splitlines())
    console.file.write(text)


def stage_of(row: Facts) -> str:
    """The stage of a row, with the part of the model if the schedule offers several parts: ``3, stages 1-2``."""
    return f"{row['stage']}, {row['part']}" if row.get("part") else str(row["stage"])


def score(values: Mapping[str, float | None], name: str) -> str:
    """A metric with three decimals, ``diverged`` if it isn't finite, a dash if it wasn't computed."""
    if name not in values:
        return NOTHING
    value = values[name]
    return DIVERGED if value is None else f"{value:.3f}"


def or_dash(show: Any, value: Any) -> str:
    """``show(value)``, or a dash if the value is None."""
    return NOTHING if value is None else str(show(value))


def percent(share: float) -> str:
    """A share as percent without decimals: ``12 %``."""
    return f"{100 * share:.0f} %"


def signed_percent(share: float) -> str:
    """A relative error as percent with a sign and two significant digits: ``+0.31 %``."""
    return "0 %" if share == 0 else f"{100 * share:+.2g} %"


def counted(counts: Mapping[str, int]) -> str:
    """Names with their counts as text: ``memory 3, bytes 1``."""
    return ", ".join(f"{name} {n}" for name, n in counts.items())


def refusals(refused_by: Mapping[str, int], memory_by: Mapping[str, int]) -> str:
    """Clients by the budget that refuses them, with those whose device has too little memory: ``memory 3 (device 2)``.

    ``memory_by`` counts those of memory by whose word it is.
    """
    of_device = memory_by.get("device", 0)
    return ", ".join(
        f"{name} {n} (device {of_device})" if name == "memory" and of_device else f"{name} {n}"
        for name, n in refused_by.items()
    )


def mib(value: float) -> str:
    """Bytes in MiB with two decimals and without a unit: ``12.30``; 0 bytes give ``0``."""
    return f"{value / 2**20:.2f}" if value else "0"


def csv_text(rows: Sequence[Facts], columns: Sequence[str] | None = None) -> str:
    """Flat rows as CSV, empty where a row lacks a column; by default columns are in the order of their first rows."""
    file = io.StringIO()
    names = columns if columns is not None else list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(file, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()
