"""The result of ``edgefl devices calibrate`` as tables."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from edgefl.commands.devices.answer import Calibration
from edgefl.drawing.text_tables import new_table, number_formatter, print_section, screen


def print_calibration(result: Calibration, console: Console | None = None) -> None:
    """Print the measured profiles of devices and links, notes on what could not be measured, and the files written."""
    console = console or screen()
    for profile in (*result.devices, *result.links):
        table = new_table("number", "value", "lowest", "highest", "how", left=(0, 4))
        for name, fact in profile.values.items():
            show = number_formatter(name)
            table.add_row(name, show(fact.value), show(fact.low), show(fact.high), fact.confidence)
        print_section(console, profile.title, table)
    for note in result.notes:
        console.print(Text(f"note: {note}"))
    for path in result.files:
        console.print(Text(f"written: {path}"))
