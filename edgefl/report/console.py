"""What every table for people is made with: a console of at most 100 columns, and how single values are written."""

from __future__ import annotations

import sys
from collections.abc import Container, Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

Facts = Mapping[str, Any]


WIDTH = 100


TITLES = {
    "accuracy": "accuracy", "balanced_accuracy": "balanced accuracy", "soft_score": "soft score", "r@1": "R@1",
    "r@10": "R@10", "r@1_sum_folds": "R@1 sum",
}  # fmt: skip


NOTHING = "-"


MOST_COLUMNS = 4
"""Runs that stand side by side in one comparison table; more make further tables."""


def screen(*, stderr: bool = False) -> Console:
    """A console that is never wider than ``WIDTH`` and writes no control codes where nobody looks at a terminal."""
    file = sys.stderr if stderr else sys.stdout
    console = Console(file=file, highlight=False, soft_wrap=False, emoji=False, markup=False)
    if not console.is_terminal:
        return Console(
            file=file, highlight=False, emoji=False, markup=False, width=WIDTH, no_color=True, color_system=None
        )
    console.width = min(console.width, WIDTH)
    return console


def new_table(*columns: str, left: Container[int] = (0,)) -> Table:
    """A table whose columns ``left`` (places from 0) hold words and whose others hold numbers."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for index, name in enumerate(columns):
        table.add_column(name, justify="left" if index in left else "right", overflow="fold")
    return table


def print_section(console: Console, title: str, table: Table | None = None, note: str = "") -> None:
    """A title, a table below it, a note below that, and an empty line."""
    console.print(Text(title, style="bold"))
    if table is not None:
        print_table(console, table)
    if note:
        console.print(Text(note))
    console.print()


def print_table(console: Console, table: Table) -> None:
    """The table without the spaces that fill its lines: nobody wants them in a file."""
    with console.capture() as captured:
        console.print(table)
    text = captured.get()
    if not console.is_terminal:
        text = "".join(line.rstrip() + "\n" for line in text.splitlines())
    console.file.write(text)


def stage_of(row: Facts) -> str:
    """A row's stage, with the part of the model that it is where a schedule offers several: ``3, stages 1-2``."""
    return f"{row['stage']}, {row['part']}" if row.get("part") else str(row["stage"])


def or_dash(show: Any, value: Any) -> str:
    """``show(value)``, or a dash where the value is None."""
    return NOTHING if value is None else str(show(value))


def percent(share: float) -> str:
    """A share as whole per cent: ``12 %``."""
    return f"{100 * share:.0f} %"


def signed_percent(share: float) -> str:
    """An error as per cent with its sign and two digits: ``+0.31 %``."""
    return "0 %" if share == 0 else f"{100 * share:+.2g} %"


def counted(counts: Mapping[str, int]) -> str:
    """Names with their counts: ``memory 3, bytes 1``."""
    return ", ".join(f"{name} {n}" for name, n in counts.items())


def mib(value: float) -> str:
    """Bytes in MiB with two decimals, without the unit; 0 as ``0``."""
    return f"{value / 2**20:.2f}" if value else "0"
