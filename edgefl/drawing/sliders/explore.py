"""What ``edgefl explore`` prints beside the page that it writes."""

from __future__ import annotations

from collections import Counter

from rich.console import Console
from rich.text import Text

from edgefl.drawing.sliders.page_data import Explored, ExploredDevices, Preset
from edgefl.drawing.text_tables import NOTHING, new_table, print_at_most, print_section, screen


def print_explored(result: Explored | ExploredDevices, page: str, console: Console | None = None) -> None:
    """Print where the page is, what can be chosen in it, and with which choices more clients or devices can train."""
    console = console or screen()
    counts = [f"{len(axis.choices)} of {axis.path}" for axis in result.axes]
    cells = "1 cell" if len(result.cells) == 1 else f"{len(result.cells):,} cells"
    console.print(Text(f"{page}: {cells}{': ' if counts else ''}{' x '.join(counts)}", style="bold"), soft_wrap=True)
    console.print()
    if isinstance(result, Explored):
        _print_presets(console, result)
    else:
        _print_devices(console, result)
    refused = Counter(cell.refused for cell in result.cells if cell.refused)
    for reason, count in refused.items():
        console.print(Text(f"refused ({count} of {cells}): {reason}"))
    print_at_most(console, result.at_most)


def _print_presets(console: Console, result: Explored) -> None:
    table = new_table("eligible", "changes", left=(1,))
    for preset in result.presets:
        table.add_row(f"{preset.eligible:,} of {preset.clients:,}", _changes(result, preset))
    print_section(console, "Clients that can train in the hardest stage, by what the scenario grants", table)


def _changes(result: Explored, preset: Preset) -> str:
    at = result.cells[preset.cell].at
    return ", ".join(result.axes[axis].choices[at[axis]].label for axis in preset.changes) or NOTHING


def _print_devices(console: Console, result: ExploredDevices) -> None:
    """Print for each kind how many devices can train it in the cells with the fewest and the most."""
    table = new_table("clients", "devices", "fewest", "most", "with", left=(0, 4))
    for kind in dict.fromkeys(line.kind for line in result.lines):
        mine = [index for index, line in enumerate(result.lines) if line.kind == kind]
        fits = {
            cell.label: [answer.answer for index in mine if (answer := cell.answers[index])].count("yes")
            for cell in result.cells
            if not cell.refused
        }
        best = max(fits, key=lambda label: fits[label])
        table.add_row(kind, str(len(mine)), str(min(fits.values())), str(fits[best]), best)
    print_section(console, "Devices of the library that can train", table)
