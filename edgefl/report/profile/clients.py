"""The clients of a fleet as a table: what each would do, at what cost, and its verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from edgefl import units
from edgefl.report.console import NOTHING, Facts, counted, new_table, print_table, screen

MOST_CLIENTS = 40
"""Clients that are listed without ``full``."""
_SHOWN = {
    "memory": units.show_bytes,
    "flops": units.show_flops,
    "bytes": units.show_bytes,
    "seconds": units.show_seconds,
    "joules": units.show_joules,
}


def print_clients(result: Facts, console: Console | None = None, *, full: bool = False) -> None:
    """Print the result of ``edgefl.profile_clients``: a row for each client, without ``full`` up to MOST_CLIENTS."""
    console = console or screen()
    for label, part in (result.get("combinations") or {result["scenario"]: result}).items():
        rows = part["rows"]
        console.print(Text(f"{label}: {_summary(rows)}", style="bold"))
        if rows:
            print_table(console, _table(rows if full else rows[:MOST_CLIENTS]))
        if not full and len(rows) > MOST_CLIENTS:
            console.print(Text(f"and {len(rows) - MOST_CLIENTS:,} more clients: --full, --csv or --json lists them"))
        console.print()


def _summary(rows: Sequence[Facts]) -> str:
    """How many clients are eligible at their hardest stage, and what refuses the others."""
    eligible = sum(row["eligible"] for row in rows)
    refused = Counter(row["binding"] or "method" for row in rows if not row["eligible"])
    by = f", refused by {counted(dict(refused.most_common()))}" if refused else ""
    return f"{eligible:,} of {len(rows):,} clients are eligible at their hardest stage{by}"


def _table(rows: Sequence[Facts]) -> object:
    table = new_table(
        "client", "kind", "device", "link", "stage", "batch", "peak", "FLOP", "bytes", "time", "verdict",
        left=(1, 2, 3, 10),
    )  # fmt: skip
    for row in rows:
        head = str(row["client"]), row["kind"], row["device"], row["link"]
        if "stage" not in row:
            table.add_row(*head, *[NOTHING] * 6, "left out")
            continue
        table.add_row(
            *head, str(row["stage"]), NOTHING if row["batch"] is None else str(row["batch"]),
            units.show_bytes(row["peak_memory_bytes"]), units.show_flops(row["flops"]).removesuffix("FLOP"),
            units.show_bytes(row["download_bytes"] + row["upload_bytes"]), units.show_seconds(row["virtual_seconds"]),
            verdict(row),
        )  # fmt: skip
    return table


def verdict(row: Facts) -> str:
    """The verdict in a few words: ``fits``, or which budget lacks how much."""
    binding = row["binding"]
    if binding is None:
        return "fits"
    word = "device" if row["memory_limit"] == "device" and binding == "memory" else binding
    if row["eligible"]:
        share = row["margin"] / row["budget"] if row["budget"] else 0.0
        return f"fits, {word} {units.show_share(share)} left"
    return f"no: {word} lacks {_SHOWN[binding](-row['margin'])}"
