"""The result of ``edgefl calibrate`` as tables."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console
from rich.text import Text

from edgefl import units
from edgefl.drawing.text_tables import new_table, print_section, screen
from edgefl.records.devices import Calibration

_SHOWN: dict[str, Callable[[float], str]] = {
    "flops_per_second": units.show_rate,
    "bytes_per_second": units.show_bytes_per_second,
    "bits_per_second": units.show_bits_per_second,
    "bytes": units.show_bytes,
    "watts": units.show_watts,
    "share": units.show_share,
    "loss": units.show_share,
    "jitter": lambda sigma: f"{sigma:.3g}",
}


def print_calibration(result: Calibration, console: Console | None = None) -> None:
    """Print the measured profiles of device and link, notes on what could not be measured, and the files written."""
    console = console or screen()
    for profile in (result.device, result.link):
        if profile is None:
            continue
        table = new_table("number", "value", "lowest", "highest", "how", left=(0, 4))
        for name, fact in profile.values.items():
            show = _formatter(name)
            table.add_row(name, show(fact.value), show(fact.low), show(fact.high), fact.confidence)
        print_section(console, profile.title, table)
    for note in result.notes:
        console.print(Text(f"note: {note}"))
    for path in result.files:
        console.print(Text(f"written: {path}"))


def _formatter(name: str) -> Callable[[float], str]:
    """The function that formats a field, chosen by the unit at the end of its name."""
    return next((show for end, show in _SHOWN.items() if name.endswith(end)), units.show_seconds)
