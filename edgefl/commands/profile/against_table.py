"""What changed between two profiles."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from edgefl.commands.profile.answer import CostDifference
from edgefl.commands.profile.rounds_table import operations
from edgefl.drawing.text_tables import field_formatter, format_counts, new_table, print_section, screen


def _amount(name: str, value: float) -> str:
    return (operations if "macs" in name else field_formatter(name))(value)


def print_cost_difference(result: CostDifference, console: Console | None = None) -> None:
    """Print what ``--against`` found: changed figures (``<<`` marks too much growth), removed and added rows."""
    console = console or screen()
    limit = f"{100 * result.fail_above:g} %"
    if result.changed:
        table = new_table("", "figure", "old", "new", "change", "", left=(0, 1))
        for figure in result.changed:
            growth = "from 0" if figure.growth is None else f"{100 * figure.growth:+.3g} %"
            table.add_row(figure.where, figure.figure, _amount(figure.figure, figure.old),
                          _amount(figure.figure, figure.new), growth, "<<" if figure.grew else "")  # fmt: skip
        print_section(console, "Changed figures", table)
    for word, rows in (("removed", result.removed), ("added", result.added)):
        for where in rows:
            console.print(Text(f"{word}: {where}"))
    grew = sum(figure.grew for figure in result.changed)
    compared = format_counts({"figures": result.figures, "changed": len(result.changed)})
    console.print(Text(f"{compared}, grown by more than {limit}: {grew}"))
