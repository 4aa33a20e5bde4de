"""What ``edgefl validate`` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from edgefl.report.console import counted, screen

if TYPE_CHECKING:
    from edgefl.records.validate import ValidScenario


def print_validation(result: ValidScenario, console: Console | None = None) -> None:
    """Print the result of ``edgefl.validate``: methods, schedules, clients and fleet of each combination."""
    console = console or screen()
    count = len(result.combinations)
    console.print(
        Text(f"{result.scenario} is valid: {count} combination{'s' if count > 1 else ''}, seed {result.seed}")
    )
    for row in result.combinations:
        console.print(Text(f"\n{row.label}", style="bold"))
        stages = f" in {len(row.rounds_by_stage)} stages ({', '.join(map(str, row.rounds_by_stage))})"
        rounds = f"{row.rounds} rounds" + (stages if len(row.rounds_by_stage) > 1 else "")
        console.print(Text(f"  {row.method} under {row.schedule}, {rounds}"))
        for kind, n in row.clients.items():
            size = f"{row.samples[kind]:,} samples, a model of {row.parameters[kind]:,} parameters"
            console.print(Text(f"  {n} {kind} clients: {size}"))
            if lacking := row.lacking.get(kind):
                console.print(Text("    of which " + ", ".join(f"{m:,} {what}" for what, m in lacking.items())))
        console.print(Text(f"  devices: {counted(row.devices)}"))
        console.print(Text(f"  links: {counted(row.links)}"))
