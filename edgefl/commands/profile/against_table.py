"""Profiles side by side, and what changed between two profiles."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from edgefl import units
from edgefl.commands.profile.answer import ComparedProfiles, CostDifference
from edgefl.commands.profile.table import operations, print_refused
from edgefl.drawing.text_tables import MOST_COLUMNS, NOTHING, format_counts, new_table, or_dash, print_section, screen


def _all_digits(value: float) -> str:
    """Bytes in MiB with two decimals, as in the papers' tables."""
    return f"{value / 2**20:,.2f} MiB"


COMPARED = (
    ("peak memory", "peak_memory_bytes", _all_digits),
    ("MACs/sample", "fvcore_macs_per_sample", operations),
    ("FLOP", "flops", units.show_flops),
    ("traffic", "traffic_bytes", _all_digits),
    ("time", "virtual_seconds", units.show_seconds),
    ("energy", "energy_joules", units.show_joules),
)


def print_compared_profiles(result: ComparedProfiles, console: Console | None = None) -> None:
    """Print the result of ``compare_profiles``: a column per scenario, with ratios to the first in brackets."""
    console = console or screen()
    labels = list(result.profiles)
    row_of = {(row.label, row.whose): row for row in result.rows}
    over = f"stage {result.stage}, one round" if result.stage else "the whole schedule, one client in every round"
    for start in range(0, len(labels), MOST_COLUMNS):
        shown = labels[start : start + MOST_COLUMNS]
        table = new_table("", *shown)
        for kind in dict.fromkeys(row.whose for row in result.rows):
            table.add_row(Text(kind, style="bold"))
            for title, name, show in COMPARED:
                cells = []
                for label in shown:
                    row = row_of.get((label, kind))
                    ratio = row.ratios[name] if row and label != result.reference else None
                    in_brackets = "" if ratio is None else f" ({ratio:.2f})"
                    cells.append((or_dash(show, getattr(row, name)) if row else NOTHING) + in_brackets)
                table.add_row(f"  {title}", *cells)
        print_section(console, f"Over {over} (ratio to {result.reference})", table)
    print_refused(console, result.refused)


# --- what changed between two profiles -------------------------------------------------------------------------------


def _amount(name: str, value: float | None) -> str:
    if value is None:
        return NOTHING
    for ending, show in (("_bytes", units.show_bytes), ("_flops", units.show_flops), ("_seconds", units.show_seconds),
                         ("_joules", units.show_joules), ("", operations)):  # fmt: skip
        if name.endswith(ending):
            return show(value)
    return f"{value:g}"


def print_cost_difference(result: CostDifference, console: Console | None = None) -> None:
    """Print the result of ``cost_diff``: changed figures (``<<`` marks too much growth), removed and added rows."""
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
