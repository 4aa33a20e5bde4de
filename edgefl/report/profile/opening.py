"""The opening of a profile: one line for each stage and kind, or for each combination, and what stands out."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from edgefl import units
from edgefl.report.console import Facts, new_table, print_at_most, print_table, screen, stage_of, whose
from edgefl.report.profile.detail import operations, print_detail, print_refused, throttling_notes

MOST_ROWS = 18
"""Rows of the table: six stages of three kinds."""


def print_profile(result: Facts, console: Console | None = None, *, full: bool = False) -> None:
    """Print the result of ``edgefl.profile``: a table of at most 25 lines, or with ``full`` everything."""
    console = console or screen()
    if full:
        print_detail(result, console)
    else:
        _print_opening(console, result)
    _print_timeline(console, result)


def _print_opening(console: Console, result: Facts) -> None:
    profiles = result.get("combinations") or {result["scenario"]: result}
    rows = [row for profile in profiles.values() for row in profile["rows"]]
    if not rows:
        console.print(Text(f"{result['scenario']} has no such stage and kind"))
        return
    devices, links = ({row[name] for row in rows} for name in ("device", "link"))
    on = f" on {devices.pop()} over {links.pop()}" if len(devices) == len(links) == 1 else ""
    console.print(Text(f"One client's round of {result['scenario']}{on}", style="bold"))
    if len(profiles) > 1 or len(rows) > MOST_ROWS:
        _print_hardest(console, profiles)
    else:
        _print_stages(console, rows)
    for line in _notes(rows):
        console.print(Text(line))
    print_at_most(console, result)
    print_refused(console, result)
    console.print(Text("--full: memory by part, traffic, server, totals; --clients: every client of the fleet"))


def _print_stages(console: Console, rows: Sequence[Facts]) -> None:
    table = new_table(
        "stage", "rounds", "kind", "peak memory", "FLOP", "MACs/sample", "down", "up", "time", "energy", left=(2,)
    )
    for row in rows:
        table.add_row(
            stage_of(row), str(row["rounds"]), whose(row), units.show_bytes(row["peak_memory_bytes"]),
            operations(row["forward_flops"] + row["backward_flops"]), operations(row["fvcore_macs_per_sample"]),
            units.show_bytes(row["download_bytes"]), units.show_bytes(row["upload_bytes"]),
            units.show_seconds(row["virtual_seconds"]), units.show_joules(row["energy_joules"]),
        )  # fmt: skip
    print_table(console, table)


def _print_hardest(console: Console, profiles: dict[str, Facts]) -> None:
    """A line for each combination and kind, at the stage with the highest peak; the largest kinds if they are many."""
    lines = []
    for label, profile in profiles.items():
        kinds = dict.fromkeys(whose(row) for row in profile["rows"])
        for kind in kinds:
            mine = [row for row in profile["rows"] if whose(row) == kind]
            # a stage without rounds is shown only if there is no other
            hardest = max(mine, key=lambda row: (bool(row["rounds"]), row["peak_memory_bytes"]))
            total = next((t for t in profile["totals"] if whose(t) == kind), None)
            lines.append((label, hardest, len(mine), total))
    if len(lines) > MOST_ROWS:
        largest: dict[str, tuple[str, Facts, int, Facts | None]] = {}
        for line in lines:
            if line[0] not in largest or line[1]["peak_memory_bytes"] > largest[line[0]][1]["peak_memory_bytes"]:
                largest[line[0]] = line
        lines = list(largest.values())
    # the whole schedule's totals are those of a client that takes part in every round
    table = new_table(
        "", "kind", "hardest\nstage", "peak\nmemory", "time of\na round", "all\nrounds", "traffic", "FLOP", "time",
        "energy", left=(0, 1),
    )  # fmt: skip
    last = None
    for label, row, stages, total in lines[:MOST_ROWS]:
        whole = ("-",) * 5 if total is None else (
            str(total["rounds"]), units.show_bytes(total["traffic_bytes"]),
            operations(total["forward_flops"] + total["backward_flops"]), units.show_seconds(total["virtual_seconds"]),
            units.show_joules(total["energy_joules"]),
        )  # fmt: skip
        table.add_row(
            "" if label == last else label, whose(row), f"{stage_of(row)} of {stages}",
            units.show_bytes(row["peak_memory_bytes"]), units.show_seconds(row["virtual_seconds"]), *whole,
        )  # fmt: skip
        last = label
    print_table(console, table)
    if any(line[3] for line in lines):
        console.print(Text("all rounds, traffic, FLOP, time, energy: one client that takes part in every round"))
    if len(lines) > MOST_ROWS:
        console.print(Text(f"and {len(lines) - MOST_ROWS} more"))


def _notes(rows: Sequence[Facts]) -> list[str]:
    """Rows that don't fit their device, throttling, and assumed scratch: a line each."""
    notes = []
    too_large = [row for row in rows if row["peak_memory_bytes"] > row["available_memory_bytes"]]
    if too_large:
        worst = max(too_large, key=lambda row: row["peak_memory_bytes"])
        others = f"; {len(too_large)} rows in all" if len(too_large) > 1 else ""
        notes.append(
            f"too large for the {units.show_bytes(worst['available_memory_bytes'])} that the device has for tensors: "
            f"{worst['kind']}, stage {worst['stage']}{others}"
        )
    notes += throttling_notes(rows)
    if any(row["memory_assumed"] for row in rows):
        notes.append("scratch isn't measured on this machine: peaks are the upper end of a range (--full)")
    return notes


def _print_timeline(console: Console, result: Facts) -> None:
    if "timeline" in result:
        facts = result["timeline"]
        console.print(
            Text(
                f"The peak of {facts['kind']}, stage {facts['stage']}: {units.show_bytes(facts['peak_memory_bytes'])} "
                f"at {facts['operator']} in {facts['scope'] or 'no profile of the model'} ({facts['phase']})"
            )
        )
