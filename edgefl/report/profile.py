"""Profiles, comparisons of profiles and cost differences as tables and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from edgefl import units
from edgefl.report.console import (
    MOST_COLUMNS,
    NOTHING,
    Facts,
    counted,
    mib,
    new_table,
    or_dash,
    print_section,
    screen,
    stage_of,
)

SHORT = {
    "parameters": "param.",
    "gradients": "grad.",
    "optimizer": "optim.",
    "activations": "activ.",
    "temporaries": "temp.",
}
"""Short names of parts of memory, so that a table with all parts fits a terminal."""


def _operations(value: float) -> str:
    """A number of operations with its prefix but without a unit: ``85.1 M``."""
    return units.show_flops(value).removesuffix("FLOP")


def print_profile(result: Facts, console: Console | None = None) -> None:
    """Print the result of ``edgefl.profile``: costs, memory and traffic of each combination of the scenario."""
    console = console or screen()
    profiles = result.get("combinations") or {result["scenario"]: result}
    for label, profile in profiles.items():
        rows = profile["rows"]
        heading = f"on {rows[0]['device']} over {rows[0]['link']}" if rows else "has no such stage and kind"
        console.print(Text(f"=== {label} {heading} ===", style="bold"))
        console.print()
        if rows:
            _print_rows(console, rows)
            _print_traffic(console, rows)
        _print_server(console, profile["server_rows"])
        _print_rounds(console, profile)
        _print_totals(console, profile["totals"])
    if "timeline" in result:
        facts = result["timeline"]
        console.print(
            Text(
                f"The peak of {facts['kind']}, stage {facts['stage']}: {units.show_bytes(facts['peak_memory_bytes'])} "
                f"at {facts['operator']} in {facts['scope'] or 'no profile of the model'} ({facts['phase']})"
            )
        )


def _print_rows(console: Console, rows: Sequence[Facts]) -> None:
    cost = new_table(
        "stage", "rounds", "kind", "peak memory", "live", "forward", "backward", "MACs/sample", "time", "energy",
        left=(2,),
    )  # fmt: skip
    for row in rows:
        cost.add_row(
            stage_of(row), str(row["rounds"]), row["kind"], units.show_bytes(row["peak_memory_bytes"]),
            units.show_bytes(row["live_memory_bytes"]),
            units.show_flops(row["forward_flops"]), units.show_flops(row["backward_flops"]),
            _operations(row["fvcore_macs_per_sample"]), units.show_seconds(row["virtual_seconds"]),
            units.show_joules(row["energy_joules"]),
        )  # fmt: skip
    print_section(console, "One client's round (MACs: one sample, one local epoch, as fvcore counts)", cost)
    print_by_part(console, "Peak memory by part, MiB", rows, {"": "memory_bytes"}, _memory_note(rows))


def _overhead(row: Facts) -> str:
    return f"runtime overhead of {row['device']}, not included above: {units.show_bytes(row['runtime_overhead_bytes'])}"


def _memory_note(rows: Sequence[Facts]) -> str:
    """What the memory of these rows holds and leaves out."""
    note = f"{_overhead(rows[0])}; {units.show_bytes(rows[0]['available_memory_bytes'])} are left for tensors"
    if any(row["memory_assumed"] for row in rows):
        note += (
            "\nscratch isn't measured on this machine: the peak is the upper end of a range (scratch of twice the "
            "arguments), live memory the lower end"
        )
    return note


def print_by_part(
    console: Console, title: str, rows: Sequence[Facts], fields: Mapping[str, str], note: str = ""
) -> None:
    """Print a table of bytes by part, in MiB.  Parts that are zero in all rows are left out.

    ``fields`` maps words to the rows' fields that hold ``{part: bytes}``.  Each field is a line of the table; the lines
    begin with their words if there are several fields.
    """
    counts = [row[field] for row in rows for field in fields.values()]
    names = [n for n in dict.fromkeys(n for c in counts for n in c) if any(c.get(n) for c in counts)]
    several = len(fields) > 1
    table = new_table("stage", "kind", *[""] * several, *(SHORT.get(n, n) for n in names), left=(1, 1 + several))
    for row in rows:
        head = stage_of(row), row["kind"]
        for word, field in fields.items():
            table.add_row(*head, *[word] * several, *(mib(row[field].get(n, 0)) for n in names))
            head = "", ""
    print_section(console, title, table, note)


def _print_traffic(console: Console, rows: Sequence[Facts]) -> None:
    moved = new_table("stage", "kind", "down", "up", "down serialised", "up serialised", "payloads down", left=(1, 6))
    for row in rows:
        moved.add_row(
            stage_of(row), row["kind"],
            *(units.show_bytes(row[f"{direction}_bytes"]) for direction in ("download", "upload")),
            *(units.show_bytes(row[f"serialised_{direction}_bytes"]) for direction in ("download", "upload")),
            ", ".join(f"{n} {units.show_bytes(b)}" for n, b in row["download_bytes_by_payload"].items()),
        )  # fmt: skip
    print_section(console, "Traffic of a client's round, active parts only", moved)
    fields = {"down": "download_bytes_by_part", "up": "upload_bytes_by_part"}
    print_by_part(console, "Traffic by part, MiB", rows, fields)


def _print_server(console: Console, rows: Sequence[Facts]) -> None:
    if not rows:
        return
    table = new_table("stage", "rounds", "when", "kind", "steps", "peak memory", "FLOP", "MACs", "time", left=(2, 3, 4))
    for row in rows:
        table.add_row(
            str(row["stage"]), str(row["rounds"]), row["when"], row["kind"], ", ".join(dict.fromkeys(row["steps"])),
            units.show_bytes(row["peak_memory_bytes"]),
            _operations(row["forward_flops"] + row["backward_flops"]), _operations(row["fvcore_macs"]),
            units.show_seconds(row["compute_seconds"]),
        )  # fmt: skip
    print_section(console, f"Server works, cost of one execution on {rows[0]['device']}", table, _overhead(rows[0]))


def _print_rounds(console: Console, part: Facts) -> None:
    if not part["round_totals"]:
        return
    table = new_table("stage", "rounds", "clients", "MACs", "forward", "backward", "down", "up", left=(2,))
    for total in part["round_totals"]:
        selected = {kind: f"{n:.3g}" for kind, n in total["selected"].items()}
        table.add_row(
            str(total["stage"]), str(total["rounds"]), ", ".join(f"{kind} {n}" for kind, n in selected.items()),
            _operations(total["fvcore_macs"]), units.show_flops(total["forward_flops"]),
            units.show_flops(total["backward_flops"]), units.show_bytes(total["download_bytes"]),
            units.show_bytes(total["upload_bytes"]),
        )  # fmt: skip
    print_section(console, "One round: expected selected clients and the server, without evaluation", table)


def _print_totals(console: Console, totals: Sequence[Facts]) -> None:
    if not totals:
        return
    table = new_table(
        "kind", "rounds", "peak memory", "down", "up", "serialised", "FLOP", "MACs/\nsample", "time", "energy"
    )
    for total in totals:
        table.add_row(
            total["kind"], str(total["rounds"]), units.show_bytes(total["peak_memory_bytes"]),
            units.show_bytes(total["download_bytes"]), units.show_bytes(total["upload_bytes"]),
            units.show_bytes(total["serialised_traffic_bytes"]),
            _operations(total["forward_flops"] + total["backward_flops"]),
            _operations(total["fvcore_macs_per_sample_all_rounds"]), units.show_seconds(total["virtual_seconds"]),
            units.show_joules(total["energy_joules"]),
        )  # fmt: skip
    print_section(console, "Whole schedule, one client that takes part in every round", table)


# --- rows for a spreadsheet ------------------------------------------------------------------------------------------


def flat(row: Facts) -> dict[str, Any]:
    """The row with nested fields joined by a dot: ``memory_bytes.activations``."""
    fields: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            fields |= {f"{name}.{part}": item for part, item in value.items()}
        else:
            fields[name] = value
    return fields


def profile_csv(result: Facts) -> str:
    """The rows as CSV, one line per stage and kind.

    The first column names the combination or the scenario if there are several.  Fields that a row doesn't have (such
    as payloads of another method) are empty.
    """
    parts: Mapping[str, Facts]
    parts, first = {"": result}, ""
    for name, word in (("combinations", "combination"), ("profiles", "scenario")):
        if name in result:
            parts, first = result[name], word
    rows = [({first: label} if first else {}) | flat(row) for label, part in parts.items() for row in part["rows"]]
    # parts of one quantity are adjacent columns, even if only a later row has some of them
    order = list(dict.fromkeys(name.partition(".")[0] for row in rows for name in row))
    names = dict.fromkeys(name for row in rows for name in row)
    columns = sorted(names, key=lambda name: order.index(name.partition(".")[0]))
    file = io.StringIO()
    writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


# --- profiles side by side -------------------------------------------------------------------------------------------


def _all_digits(value: float) -> str:
    """Bytes in MiB with two decimals, as in the papers' tables."""
    return f"{value / 2**20:,.2f} MiB"


COMPARED = (
    ("peak memory", "peak_memory_bytes", _all_digits),
    ("MACs/sample", "fvcore_macs_per_sample", _operations),
    ("FLOP", "flops", units.show_flops),
    ("traffic", "traffic_bytes", _all_digits),
    ("time", "virtual_seconds", units.show_seconds),
    ("energy", "energy_joules", units.show_joules),
)


def print_compared_profiles(result: Facts, console: Console | None = None) -> None:
    """Print the result of ``compare_profiles``: a column per scenario, with ratios to the first in brackets."""
    console = console or screen()
    labels = list(result["profiles"])
    row_of = {(row["label"], row["kind"]): row for row in result["rows"]}
    over = f"stage {result['stage']}, one round" if result["stage"] else "the whole schedule, one client in every round"
    for start in range(0, len(labels), MOST_COLUMNS):
        shown = labels[start : start + MOST_COLUMNS]
        table = new_table("", *shown)
        for kind in dict.fromkeys(row["kind"] for row in result["rows"]):
            table.add_row(Text(kind, style="bold"))
            for title, name, show in COMPARED:
                cells = []
                for label in shown:
                    row = row_of.get((label, kind))
                    ratio = row["ratios"][name] if row and label != result["reference"] else None
                    in_brackets = "" if ratio is None else f" ({ratio:.2f})"
                    cells.append((or_dash(show, row[name]) if row else NOTHING) + in_brackets)
                table.add_row(f"  {title}", *cells)
        print_section(console, f"Over {over} (ratio to {result['reference']})", table)


# --- what changed between two profiles -------------------------------------------------------------------------------


def _amount(name: str, value: float | None) -> str:
    if value is None:
        return NOTHING
    for ending, show in (("_bytes", units.show_bytes), ("_flops", units.show_flops), ("_seconds", units.show_seconds),
                         ("_joules", units.show_joules), ("", _operations)):  # fmt: skip
        if name.endswith(ending):
            return show(value)
    return f"{value:g}"


def print_cost_difference(result: Facts, console: Console | None = None) -> None:
    """Print the result of ``cost_diff``: changed figures (``<<`` marks too much growth), removed and added rows."""
    console = console or screen()
    limit = f"{100 * result['fail_above']:g} %"
    if result["changed"]:
        table = new_table("", "figure", "old", "new", "change", "", left=(0, 1))
        for figure in result["changed"]:
            growth = "from 0" if figure["growth"] is None else f"{100 * figure['growth']:+.3g} %"
            table.add_row(figure["where"], figure["figure"], _amount(figure["figure"], figure["old"]),
                          _amount(figure["figure"], figure["new"]), growth, "<<" if figure["grew"] else "")  # fmt: skip
        print_section(console, "Changed figures", table)
    for word in ("removed", "added"):
        for where in result[word]:
            console.print(Text(f"{word}: {where}"))
    grew = sum(figure["grew"] for figure in result["changed"])
    compared = counted({"figures": result["figures"], "changed": len(result["changed"])})
    console.print(Text(f"{compared}, grown by more than {limit}: {grew}"))
