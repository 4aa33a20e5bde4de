"""What ``edgefl validate`` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from edgefl.commands.validate.answer import JsonSchema
from edgefl.drawing.text_tables import format_counts, screen, seeds_together, show_rounds, without_seed
from edgefl.records.record import UNSET

if TYPE_CHECKING:
    from edgefl.commands.validate.answer import ValidCombination, ValidScenario


def as_yaml(result: ValidScenario | JsonSchema) -> str:
    """The scenario with every default written out, or the schema."""
    from edgefl.scenario import load

    return schema_or_file(result) if isinstance(result, JsonSchema) else load(dict(result.resolved)).to_yaml()


def schema_or_file(result: JsonSchema) -> str:
    """The schema as text, or the line of its file."""
    from edgefl.commands.validate.schemas import schema_text

    return schema_text(result.of) if result.file is None else f"{result.file}\n"


def print_validation(result: ValidScenario | JsonSchema, console: Console | None = None) -> str | None:
    """Print the result of ``edgefl.validate``: methods and schedules of the combinations, with clients and fleet below.

    What several combinations have in common is printed once.  A schema is returned.
    """
    if isinstance(result, JsonSchema):
        return schema_or_file(result)
    console = console or screen()
    count = len(result.combinations)
    several = len({without_seed(row.label) for row in result.combinations}) < count
    seeds = "several seeds" if several else f"seed {result.seed}"
    console.print(Text(f"{result.scenario} is valid: {count} combination{'s' if count > 1 else ''}, {seeds}"))
    alike: dict[tuple[str, ...], list[ValidCombination]] = {}
    for row in result.combinations:
        alike.setdefault(tuple(_clients_and_fleet(row)), []).append(row)
    for lines, rows in alike.items():
        console.print()
        labels: dict[str, list[str]] = {}
        for row in rows:
            labels.setdefault(_plan(row), []).append(row.label)
        for plan, mine in labels.items():
            console.print(Text("; ".join(seeds_together(mine) if several else mine), style="bold"))
            console.print(Text(f"  {plan}"))
        for line in lines:
            console.print(Text(line))
    return None


def _plan(row: ValidCombination) -> str:
    """Method, schedule and rounds in words."""
    stages = f" in {len(row.rounds_by_stage)} stages ({', '.join(map(str, row.rounds_by_stage))})"
    rounds = show_rounds(row.rounds, row.fewest_rounds)
    return f"{row.method} under {row.schedule}, {rounds} rounds" + (stages if len(row.rounds_by_stage) > 1 else "")


def _clients_and_fleet(row: ValidCombination) -> list[str]:
    """A line for each kind of clients, and what they train on."""
    lines = []
    for kind, n in row.clients.items():
        size = f"{row.samples[kind]:,} samples, a model of {row.parameters[kind]:,} parameters"
        lines.append(f"  {n} {kind} clients: {size}")
        if lacking := row.lacking.get(kind):
            lines.append("    of which " + ", ".join(f"{m:,} {what}" for what, m in lacking.items()))
    lines += [f"  {text}" for text in row.nobody_fits]
    lines += [f"  devices: {format_counts(row.devices)}", f"  links: {format_counts(row.links)}"]
    return lines if row.relays is UNSET else [*lines, f"  relays: {format_counts(row.relays)}"]
