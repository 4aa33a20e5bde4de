"""The clients of a fleet as a table: what each would do, at what cost, and its verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from edgefl import units
from edgefl.devices.budgets import budget_named
from edgefl.report.console import NOTHING, Facts, counted, new_table, print_table, screen, stage_of
from edgefl.report.profile import print_refused

MOST_CLIENTS = 40
"""Clients that are listed without ``full``."""
MOST_USED = 10.0
"""A round that takes this much of a budget or more is told by what the budget lacks."""


def print_clients(result: Facts, console: Console | None = None, *, full: bool = False) -> None:
    """Print the result of ``edgefl.profile_clients``: a row for each client, without ``full`` up to MOST_CLIENTS."""
    console = console or screen()
    for label, part in (result.get("combinations") or {result["scenario"]: result}).items():
        rows, most = part["rows"], len(part["rows"]) if full else MOST_CLIENTS
        console.print(Text(f"{label}: {_summary(rows)}", style="bold"))
        for kind in dict.fromkeys(row["kind"] for row in rows[:most]):
            _print_kind(console, kind, [row for row in rows[:most] if row["kind"] == kind])
        if len(rows) > most:
            console.print(Text(f"and {len(rows) - most:,} more clients: --full, --csv or --json lists them"))
        console.print()
    print_refused(console, result)
    console.print(Text("verdict: the budget that binds, and how much of it the round takes" + _device_note(result)))


def _device_note(result: Facts) -> str:
    parts = [result, *result.get("combinations", {}).values()]
    of_device = any(row.get("memory_limit") == "device" for part in parts for row in part["rows"])
    return "; device: the memory that the device has" if of_device else ""


def _summary(rows: Sequence[Facts]) -> str:
    """How many clients are eligible at their hardest stage, and what refuses the others."""
    if not rows:
        return "no such client"
    eligible = sum(row["eligible"] for row in rows)
    refused = Counter(row["binding"] or "method" for row in rows if not row["eligible"])
    by = f", refused by {counted(dict(refused.most_common()))}" if refused else ""
    return f"{eligible:,} of {len(rows):,} clients are eligible at their hardest stage{by}"


def _print_kind(console: Console, kind: str, rows: Sequence[Facts]) -> None:
    """Print a kind's clients; what all of them have in common stands in the title."""
    there = [row for row in rows if "stage" in row]
    cells: dict[str, list[str]] = {
        "client": [str(row["client"]) for row in rows],
        "device": [row["device"] for row in rows],
        "link": [row["link"] for row in rows],
        "stage": [stage_of(row) if "stage" in row else NOTHING for row in rows],
        "batch": [str(row.get("batch") or NOTHING) for row in rows],
        "peak": [units.show_bytes(r["peak_memory_bytes"]) if "stage" in r else NOTHING for r in rows],
        "FLOP": [units.show_flops(r["flops"]).removesuffix("FLOP") if "stage" in r else NOTHING for r in rows],
        "bytes": [units.show_bytes(r["download_bytes"] + r["upload_bytes"]) if "stage" in r else NOTHING for r in rows],
        "time": [units.show_seconds(row["virtual_seconds"]) if "stage" in row else NOTHING for row in rows],
        "verdict": [verdict(row) for row in rows],
    }
    common = [name for name in ("stage", "batch", "link") if len(set(cells[name])) == 1 and there]
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


def verdict(row: Facts) -> str:
    """The verdict in a few words: whether the client fits, and how much of its binding budget the round takes."""
    binding = row["binding"]
    if binding is None:
        return "fits" if row["eligible"] else "left out"
    return f"{'fits' if row['eligible'] else 'no'}, {tightest(row)}"


def tightest(row: Facts) -> str:
    """The binding budget, and how much of it the round takes or what it lacks: ``memory 36 %``."""
    binding, budget = row["binding"], row["budget"]
    word = "device" if binding == "memory" and row["memory_limit"] == "device" else binding
    used = 1 - row["margin"] / budget if budget else MOST_USED
    if used >= MOST_USED:
        return f"{word} lacks {budget_named(binding).show(-row['margin'])}"
    return f"{word} {units.show_share(used)}"
