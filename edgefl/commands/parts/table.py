"""The tables of ``edgefl parts``."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from edgefl.commands.parts.answer import ListedPart, Parts
from edgefl.drawing.text_tables import new_table, print_table, screen


def print_parts(result: Parts, console: Console | None = None) -> None:
    """Print a section for each kind with a line for each part, or a single part with its options."""
    console = console or screen()
    match list(result.sections.values()):
        case [[part]]:
            _print_options(console, part)
            return
    for kind, parts in ((kind, parts) for kind, parts in result.sections.items() if parts):
        _print_section(console, kind, parts)
    console.print(Text("Their options: edgefl parts KIND NAME, --as json, and edgefl validate --schema for editors."))


def _print_section(console: Console, kind: str, parts: Sequence[ListedPart]) -> None:
    table = new_table("", "", left=(0, 1))
    table.show_header = False
    for part in parts:
        table.add_row(f"  {part.name}", part.summary)
    console.print(Text(kind, style="bold"))
    print_table(console, table)
    console.print()


def _print_options(console: Console, part: ListedPart) -> None:
    console.print(Text(f"{part.name}: {part.summary}"))
    if part.options:
        table = new_table("  option", "default", "values", "", left=range(4))
        for option in part.options:
            table.add_row(f"  {option.name}", option.default, option.values, option.description)
        print_table(console, table)
