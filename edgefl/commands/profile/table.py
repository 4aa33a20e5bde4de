"""What ``edgefl profile`` prints: the tables of a client's rounds, or of what was asked for in their place."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from edgefl.commands.profile.answer import CostDifference, Profile
from edgefl.commands.profile.clients_table import print_clients
from edgefl.commands.profile.measured_table import print_counts, print_measured
from edgefl.commands.profile.rounds_table import operations, print_profile
from edgefl.drawing.text_tables import field_formatter, format_counts, new_table, print_section, records_csv, screen
from edgefl.records.record import UNSET
from edgefl.terminal import say


def print_answer(result: Profile, console: Console | None = None, *, full: bool = False) -> None:
    """Print a profile, or its clients or what changed since an earlier one; then what was measured and counted."""
    console = console or screen()
    if result.clients is not UNSET:
        print_clients(result, console, full=full)
    if result.against is not UNSET:
        print_cost_difference(result.against, console)
    if result.clients is UNSET and result.against is UNSET:
        print_profile(result, console, full=full)
    if result.measured:
        print_measured(result.measured, console)
    if result.fvcore is not UNSET:
        print_counts(result.fvcore, console)


def profile_csv(result: Profile) -> str:
    """The rows as CSV, one line per stage and kind, or those of the clients; of several combinations with a label."""
    if result.measured or result.fvcore is not UNSET or result.against is not UNSET:
        say("CSV has the predicted rows alone: --as json has the rest")
    parts = {label: part.rows if part.clients is UNSET else part.clients for label, part in result.parts.items()}
    return records_csv(parts, "combination" if result.combinations else "")


# --- what changed since an earlier profile ----------------------------------------------------------------------------


def _amount(name: str, value: float) -> str:
    return (operations if "macs" in name else field_formatter(name))(value)


def print_cost_difference(result: CostDifference, console: Console | None = None) -> None:
    """Print what ``--against`` found: changed figures (``<<`` marks too much growth), removed and added rows."""
    console = console or screen()
    limit = f"{100 * result.fail_above:g} %"
    if result.changed:
        changed = new_table("", "figure", "old", "new", "change", "", left=(0, 1))
        for figure in result.changed:
            growth = "from 0" if figure.growth is None else f"{100 * figure.growth:+.3g} %"
            changed.add_row(figure.where, figure.figure, _amount(figure.figure, figure.old),
                          _amount(figure.figure, figure.new), growth, "<<" if figure.grew else "")  # fmt: skip
        print_section(console, "Changed figures", changed)
    for word, rows in (("removed", result.removed), ("added", result.added)):
        for where in rows:
            console.print(Text(f"{word}: {where}"))
    grew = sum(figure.grew for figure in result.changed)
    compared = format_counts({"figures": result.figures, "changed": len(result.changed)})
    console.print(Text(f"{compared}, grown by more than {limit}: {grew}"))
