"""What ``edgefl run --verify`` looks like."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from edgefl.report.console import NOTHING, new_table, print_section, screen


def print_verified(found: Mapping[str, Any], console: Console | None = None) -> None:
    """What ``edgefl run --verify`` found: a table of the rules for each run, and the first offences."""
    console = console or screen()
    for label, run in found["runs"].items():
        table = new_table("rule", "records", "broken", "", left=(0, 3))
        for check in run["checks"]:
            records = f"{check['records']:,}" if check["records"] else NOTHING
            wrong = f"{check['broken']:,}" if check["records"] else NOTHING
            note = f" ({check['note']})" if check["note"] else ""
            table.add_row(check["name"], records, wrong, check["says"] + note)
        broken = [check for check in run["checks"] if check["broken"]]
        whole = "" if run["finished"] else " so far"
        verdict = "every rule holds" if not broken else f"{len(broken)} of {len(run['checks'])} rules are broken"
        print_section(console, f"{label}: {run['rounds']} rounds{whole}, {verdict}", table)
        for check in broken:
            first = check["first"]
            values = ", ".join(f"{name} {_shown(value)}" for name, value in first["values"].items())
            console.print(Text(f"{check['name']}: {run['folder']}/{first['where']}: {values}"), soft_wrap=True)
        if broken:
            console.print()


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name} {_shown(item)}" for name, item in value.items()) + "}"
    return f"{value!r}" if isinstance(value, float) else str(value)
