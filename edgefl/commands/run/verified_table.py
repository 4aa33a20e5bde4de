"""Results of ``edgefl run --verify`` as tables."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.text import Text

from edgefl.drawing.text_tables import NOTHING, new_table, print_section, screen
from edgefl.records.verified import Verified


def print_verified(result: Verified, console: Console | None = None) -> None:
    """Print a table of the checked rules for each run, and the first record that breaks each broken rule."""
    console = console or screen()
    for label, run in result.runs.items():
        table = new_table("rule", "records", "broken", "", left=(0, 3))
        for check in run.checks:
            records = f"{check.records:,}" if check.records else NOTHING
            violations = f"{check.broken:,}" if check.records else NOTHING
            note = f" ({check.note})" if check.note else ""
            table.add_row(check.name, records, violations, check.says + note)
        broken = [check for check in run.checks if check.broken]
        so_far = "" if run.finished else " so far"
        verdict = "every rule holds" if not broken else f"{len(broken)} of {len(run.checks)} rules are broken"
        print_section(console, f"{label}: {run.rounds} rounds{so_far}, {verdict}", table)
        for check in broken:
            first = check.first
            assert first is not None
            values = ", ".join(f"{name} {_format_value(value)}" for name, value in first.values.items())
            console.print(Text(f"{check.name}: {run.folder}/{first.where}: {values}"), soft_wrap=True)
        if broken:
            console.print()


def _format_value(value: object) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name} {_format_value(item)}" for name, item in value.items()) + "}"
    return f"{value!r}" if isinstance(value, float) else str(value)
