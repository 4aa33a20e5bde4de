"""The clients of a fleet as a table: what each would do, at what cost, and its verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from rich.console import Console
from rich.text import Text

from edgefl import units
from edgefl.commands.profile.answer import ClientRow, Profile
from edgefl.commands.profile.rounds_table import print_refused
from edgefl.devices.budgets import show_binding
from edgefl.drawing.text_tables import NOTHING, format_counts, new_table, print_table, screen
from edgefl.records.answer import RoundVerdict

MOST_CLIENTS = 40
"""Clients that are listed without ``full``: a screen of them."""


def print_clients(result: Profile, console: Console | None = None, *, full: bool = False) -> None:
    """Print a profile's clients: a row for each, without ``full`` up to MOST_CLIENTS."""
    console = console or screen()
    for label, part in result.parts.items():
        rows = part.clients or ()
        most = len(rows) if full else MOST_CLIENTS
        console.print(Text(f"{label}: {_summary(rows)}", style="bold"))
        for kind in dict.fromkeys(row.kind for row in rows[:most]):
            _print_kind(console, kind, [row for row in rows[:most] if row.kind == kind])
        if len(rows) > most:
            console.print(Text(f"and {len(rows) - most:,} more clients: --full, --as csv or --as json lists them"))
        console.print()
    print_refused(console, result.refused)
    console.print(Text("verdict: the budget that binds, and how much of it the round takes" + _device_note(result)))


def _device_note(result: Profile) -> str:
    rows = (row for part in (result, *result.parts.values()) for row in part.clients or ())
    of_device = any(row.memory_limit == "device" for row in rows)
    return "; device: the memory that the device has" if of_device else ""


def _caps(rows: Sequence[ClientRow]) -> list[str]:
    """The caps that one of these clients has."""
    return list(dict.fromkeys(name for row in rows for name in row.rounds_within or ()))


def _within(name: str, row: ClientRow) -> str:
    """How many rounds fit this cap."""
    return f"{row.rounds_within[name]:,}" if row.rounds_within and name in row.rounds_within else NOTHING


def _summary(rows: Sequence[ClientRow]) -> str:
    """How many clients are eligible at their hardest stage, and what refuses the others."""
    if not rows:
        return "no such client"
    eligible = sum(row.eligible for row in rows)
    refused = Counter(row.binding or "method" for row in rows if not row.eligible)
    by = f", refused by {format_counts(dict(refused.most_common()))}" if refused else ""
    return f"{eligible:,} of {len(rows):,} clients are eligible at their hardest stage{by}"


def _print_kind(console: Console, kind: str, rows: Sequence[ClientRow]) -> None:
    """Print a kind's clients; what all of them have in common stands in the title."""

    def cells_of(show: Callable[[ClientRow], str]) -> list[str]:
        return [NOTHING if row.is_left_out else show(row) for row in rows]

    cells: dict[str, list[str]] = {
        "client": [str(row.client) for row in rows],
        "device": [row.device for row in rows],
        "link": [row.link for row in rows],
        "stage": cells_of(lambda row: row.stage_and_part),
        "batch": cells_of(lambda row: str(row.batch or NOTHING)),
        "peak": cells_of(lambda row: units.show_bytes(row.peak_memory_bytes)),
        "FLOP": cells_of(lambda row: units.show_flops(row.flops).removesuffix("FLOP")),
        "bytes": cells_of(lambda row: units.show_bytes(row.download_bytes + row.upload_bytes)),
        "time": cells_of(lambda row: units.show_seconds(row.virtual_seconds)),
        **{f"rounds in\n{name.replace('_', ' ')}": cells_of(partial(_within, name)) for name in _caps(rows)},
        "verdict": [verdict(row) for row in rows],
    }
    all_out = all(row.is_left_out for row in rows)
    common = [name for name in ("stage", "batch", "link") if len(set(cells[name])) == 1 and not all_out]
    words = ", ".join(f"{name} {cells[name][0]}" for name in common)
    names = [name for name in cells if name not in common]
    table = new_table(*names, left=[names.index(name) for name in ("device", "link", "verdict") if name in names])
    for name, column in zip(names, table.columns, strict=True):
        if name in ("device", "verdict"):
            column.min_width = max(map(len, cells[name]))
    for line in zip(*(cells[name] for name in names), strict=True):
        table.add_row(*line)
    console.print(Text(f"{kind} clients" + (f": {words}" if words else "")))
    print_table(console, table)


def verdict(row: RoundVerdict) -> str:
    """The verdict in a few words: whether the client fits, and how much of its binding budget the round takes."""
    if row.binding is None:
        return "yes" if row.eligible else "left out"
    return f"{'yes' if row.eligible else 'no'}, {show_binding(row)}"
