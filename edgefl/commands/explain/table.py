"""Text of ``edgefl explain``: the critical path of a round, what would have shortened it, and who was absent."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from edgefl.commands.explain.answer import AbsentClient, Explanation, Story
from edgefl.drawing.text_tables import new_table, percent, print_section, screen
from edgefl.records.epsilon import privacy_words
from edgefl.records.record import UNSET
from edgefl.units import show_seconds

MOST_SHORTER = 5
"""Changes that are listed: those that save most."""
MOST_NAMES = 12
"""Client numbers that a line of absent clients names."""


def print_explanation(facts: Explanation) -> None:
    """Print what ``edgefl explain`` found: the client's story if one was asked for, else the whole round."""
    console = screen()
    length = facts.virtual_seconds
    console.print(
        Text(
            f"Round {facts.round} (stage {facts.stage}, {facts.policy}): {facts.outcome} in "
            f"{show_seconds(length)}; {len(facts.took_part)} of {facts.clients} clients took part"
            + (f"\n{privacy}" if (privacy := privacy_words(facts.privacy)) else "")
        )
    )
    console.print()
    if facts.client is not UNSET:
        _print_client(facts.client)
    table = new_table("from", "who", "what", "on", "seconds", "share", left=(1, 2, 3))
    for part in facts.path:
        place = {"compute": part.device, "download": part.link, "upload": part.link}.get(part.phase) or ""
        begins = part.started_virtual_seconds - facts.started_virtual_seconds
        table.add_row(
            show_seconds(begins) if begins else "0 s", part.who, part.phase, place,
            f"{part.seconds:.4g}", percent(part.share),
        )  # fmt: skip
    print_section(console, "Critical path", table)
    if facts.shorter:
        table = new_table("saves, s", "with", left=(1,))
        for each in facts.shorter[:MOST_SHORTER]:
            bound = "up to " if each.at_most else ""
            table.add_row(f"{bound}{each.seconds:.3g}", each.change)
        print_section(console, "What would have shortened it", table)
    if facts.absent and facts.client is UNSET:
        table = new_table("clients", "reason", "who", "why", left=(1, 2, 3))
        for row in _group_absent(facts.absent):
            table.add_row(*row)
        print_section(console, "Absent", table)


def _print_client(client: Story) -> None:
    console = screen()
    who = ", ".join(filter(None, (client.kind, client.device, client.link)))
    console.print(Text(f"Client {client.client}" + (f" ({who})" if who else ""), style="bold"))
    if client.verdict:
        console.print(Text(client.verdict))
    for flight in client.flights:
        phases = ", ".join(f"{name} {show_seconds(seconds)}" for name, seconds in flight.phases.items())
        slack = flight.slack_seconds
        place = "its landing ended the round's flights" if not slack else f"{show_seconds(slack)} before the last one"
        console.print(Text(f"{flight.outcome} in {show_seconds(flight.virtual_seconds)}: {phases}; {place}"))
    if client.reason:
        console.print(Text(f"absent: {client.reason}: {client.why}"))
    console.print()


def _group_absent(absent: Sequence[AbsentClient]) -> list[tuple[str, str, str, str]]:
    """Rows of the table of absent clients: those of one reason and kind together, with one why where it is the same."""
    groups: dict[tuple[str, str], list[AbsentClient]] = {}
    for entry in absent:
        groups.setdefault((entry.reason, entry.kind), []).append(entry)
    rows = []
    for (reason, kind), entries in groups.items():
        numbers = [str(entry.client) for entry in entries if entry.client is not None]
        more = f" and {len(numbers) - MOST_NAMES} more" if len(numbers) > MOST_NAMES else ""
        whys = list(dict.fromkeys(entry.why for entry in entries))
        why = whys[0] if len(whys) == 1 else f"such as {numbers[0]}: {whys[0]}"
        names = f"{kind} {', '.join(numbers[:MOST_NAMES])}{more}" if numbers else kind
        rows.append((str(sum(entry.clients for entry in entries)), reason, names, why))
    return sorted(rows, key=lambda row: -int(row[0]))
