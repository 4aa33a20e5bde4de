"""What ``edgefl devices check`` prints: which devices of the library fit one scenario or several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

from rich.console import Console
from rich.text import Text

from edgefl import units
from edgefl.devices import show_runtime
from edgefl.devices.budgets import show_binding
from edgefl.drawing.text_tables import NOTHING, new_table, plain_markdown, print_table, screen
from edgefl.records.devices import DeviceCheck, DeviceCheckRow, DeviceChecks

MOST_KINDS = 3
"""Kinds that have a column each; of more, each kind has rows, since columns would be too narrow."""


def print_device_check(result: DeviceCheck, console: Console | None = None, *, full: bool = False) -> None:
    """Print the result of ``edgefl.check_devices``: a line for each device, smallest memory first.

    With ``full``, or for many kinds, a line for each device and kind.
    """
    console = console or screen()
    rows = result.rows
    devices = _by_device(result)
    kinds = list(dict.fromkeys(row.whose for row in rows))
    console.print(Text(_head(result), style="bold"))
    for kind in kinds:
        console.print(Text(_limits(kind, [row for row in rows if row.whose == kind])))
    if full or len(kinds) > MOST_KINDS:
        _print_rows(console, rows)
    else:
        _print_lines(console, devices, kinds)
    for line in _notes(result, rows):
        console.print(Text(line))


def print_device_checks(result: DeviceChecks, console: Console | None = None) -> None:
    """Print the answers for several scenarios: a row for each device, a column for each scenario and kind."""
    console = console or screen()
    for label, check in result.checks.items():
        console.print(Text(_head(check, label), style="bold"))
    columns = _columns(result)
    table = new_table("device", *columns, left=range(1 + len(columns)))
    for device, cells in _matrix(result):
        table.add_row(device, *cells)
    print_table(console, table)
    for line in _matrix_notes(result):
        console.print(Text(line))


def devices_markdown(result: DeviceChecks) -> str:
    """The answers as a table in Markdown: a row for each device, a column for each scenario and kind."""
    columns = ["device", *_columns(result)]
    lines = [columns, ["---"] * len(columns), *([device, *cells] for device, cells in _matrix(result))]
    heads = [f"{plain_markdown(_head(check, label))}." for label, check in result.checks.items()]
    table = [f"| {' | '.join(cell if cell == '---' else plain_markdown(cell) for cell in line)} |" for line in lines]
    return "\n".join([*heads, "", *table, "", *(f"- {plain_markdown(line)}" for line in _matrix_notes(result))]) + "\n"


def _matrix_notes(result: DeviceChecks) -> list[str]:
    """What the answers of several scenarios are about, and what they depend on."""
    checks = result.checks
    notes = ["of each kind's largest client at its hardest stage; %: of the budget that the round takes"]
    for label, check in checks.items():
        peaks = {row.whose: row.peak_memory_bytes for row in sorted(check.rows, key=lambda row: row.peak_memory_bytes)}
        told = ", ".join(f"{kind} {units.show_bytes(peak)}" for kind, peak in peaks.items())
        notes.append(f"peak of {label}: {told}" if len(checks) > 1 else f"peak: {told}")
        notes += [f"{label}: {line}" if len(checks) > 1 else line for line in _comparison_notes(check)]
    return notes + _depends([row for check in checks.values() for row in check.rows])


def _comparison_notes(check: DeviceCheck) -> list[str]:
    """Which of the combinations of a scenario that compares the answers are about."""
    if not check.compared:
        return []
    return [f"of the scenario without its compare ({', '.join(check.compared)}); --set chooses another combination"]


def _depends(rows: Sequence[DeviceCheckRow]) -> list[str]:
    """What the answers that are neither yes nor no depend on."""
    notes = []
    if any(row.answer == "depends on scratch" for row in rows):
        notes.append("scratch: what kernels allocate isn't measured on this machine; the peak is its upper end")
    if any(row.answer == "depends on free memory" for row in rows):
        notes.append(
            "free memory: what the device has for tensors is known within a range (edgefl devices show NAME), which "
            "holds the peak; % is of its estimate, and edgefl devices calibrate on the device measures it"
        )
    return notes


def _by_device(check: DeviceCheck) -> dict[str, dict[str, DeviceCheckRow]]:
    """The rows of each device by kind."""
    found: dict[str, dict[str, DeviceCheckRow]] = {}
    for row in check.rows:
        found.setdefault(row.device, {})[row.whose] = row
    return found


def _head(check: DeviceCheck, label: str | None = None) -> str:
    """How many devices fit, and how many fit for some owners."""
    devices = _by_device(check).values()
    fitting = sum(all(row.answer == "yes" for row in mine.values()) for mine in devices)
    open_ = [{row.answer for row in mine.values()} - {"yes"} for mine in devices]
    partly = sum("no" in left and all(row.fitting_owners for row in mine.values())
                 for left, mine in zip(open_, devices, strict=True))  # fmt: skip
    some = [f", {partly} more for some owners"] if partly else []
    for what in ("scratch", "free memory"):
        if count := sum("no" not in left and max(left, default="") == f"depends on {what}" for left in open_):
            some.append(f", {count} more depending on {what}")
    return f"{fitting} of {len(devices)} devices fit {label or check.scenario} over {check.link}{''.join(some)}"


def _limits(kind: str, rows: Sequence[DeviceCheckRow]) -> str:
    """Peak memory of a kind, and whose word its limit is."""
    least, most = (units.show_bytes(find(row.peak_memory_bytes for row in rows)) for find in (min, max))
    granted = [row for row in rows if row.least_memory_bytes < row.available_memory_bytes]
    limit = "limited by the device's memory"
    if granted:
        low = units.show_bytes(min(row.least_memory_bytes for row in granted))
        high = units.show_bytes(max(row.most_memory_bytes for row in granted))
        owners = "its owner grants" if rows[0].owners == 1 else f"{rows[0].owners:,} owners grant"
        limit = f"{owners} {low if low == high else f'{low} to {high}'}"
    return f"{kind}: peak {least if least == most else f'{least} to {most}'}; {limit}"


def _columns(result: DeviceChecks) -> list[str]:
    """Titles of the columns: scenario and kind, or either where the other says nothing."""
    several = len(result.checks) > 1
    return [
        ": ".join(filter(None, (label if several or not kind else "", kind)))
        for label, check in result.checks.items()
        for kind in _shown_kinds(check)
    ]


def _shown_kinds(check: DeviceCheck) -> list[str]:
    """Kinds of a scenario; a single one needs no name."""
    kinds = list(dict.fromkeys(row.whose for row in check.rows))
    return kinds if len(kinds) > 1 else [""]


def _matrix(result: DeviceChecks) -> list[tuple[str, list[str]]]:
    """Each device with its answer for each scenario and kind."""
    tables = [(_by_device(check), _shown_kinds(check)) for check in result.checks.values()]
    rows = []
    for device in dict.fromkeys(device for table, _ in tables for device in table):
        cells = []
        for table, kinds in tables:
            mine = table.get(device, {})
            there = [mine.get(kind) if kind else next(iter(mine.values()), None) for kind in kinds]
            cells += [_answer(row) if row else NOTHING for row in there]
        rows.append((device, cells))
    return rows


def _answer(row: DeviceCheckRow) -> str:
    """The answer, and the budget that binds: ``yes, memory 36 %``."""
    return f"{_short(row) or 'yes'}, {show_binding(row)}"


def _short(row: DeviceCheckRow) -> str:
    """Why the answer isn't yes, in a few words; empty if it is."""
    if row.answer == "yes":
        return ""
    if row.answer != "no":
        return row.answer
    if row.fitting_owners:
        return f"{row.fitting_owners:,} of {row.owners:,} owners"
    return f"no, {row.eligible_stages} of {row.stages}" if row.eligible_stages else "no"


def _question(short: str) -> str:
    """``depends on scratch`` as ``scratch?``, for a narrow column."""
    return f"{short.removeprefix('depends on ')}?" if short.startswith("depends on ") else short


def _print_lines(console: Console, devices: Mapping[str, Mapping[str, DeviceCheckRow]], kinds: Sequence[str]) -> None:
    """A line for each device: the time of each kind's round, and the budget that is tightest over the kinds."""
    several = len(kinds) > 1
    table = new_table("device", "for tensors", *(f"{kind}, time" for kind in kinds), "tightest budget",
                      left=(0, 2 + len(kinds)))  # fmt: skip
    table.columns[0].min_width = max(map(len, devices), default=0)
    for name, mine in devices.items():
        worst = min(mine.values(), key=lambda row: (row.eligible, _remaining_share(row)))
        table.add_row(
            name, units.show_bytes(worst.available_memory_bytes),
            *(_question(_short(mine[kind])) or _time(mine[kind]) if kind in mine else NOTHING for kind in kinds),
            f"{worst.kind}: {show_binding(worst)}" if several else show_binding(worst),
        )  # fmt: skip
    print_table(console, table)


def _remaining_share(row: DeviceCheckRow) -> float:
    """Share of the binding budget that is left."""
    return (row.margin or 0.0) / row.budget if row.budget else -inf


def _time(row: DeviceCheckRow) -> str:
    return units.show_seconds(row.virtual_seconds) + ("~" if row.throttling_seconds > 0 else "")


def _print_rows(console: Console, rows: Sequence[DeviceCheckRow]) -> None:
    table = new_table("device", "kind", "stage", "peak", "time", "energy", "verdict", left=(0, 1, 6))
    table.columns[0].min_width = max((len(row.device) for row in rows), default=0)
    last = None
    for row in rows:
        table.add_row(
            row.device if row.device != last else "", row.whose, row.stage_and_part,
            units.show_bytes(row.peak_memory_bytes), _time(row), units.show_joules(row.energy_joules), _answer(row),
        )  # fmt: skip
        last = row.device
    print_table(console, table)


def _notes(result: DeviceCheck, rows: Sequence[DeviceCheckRow]) -> list[str]:
    notes = [
        "fits: the round of a kind's largest client, at its hardest stage, is within the device's memory, the "
        "deadline and every owner's budgets",
        f"for tensors: usable memory less that of {show_runtime(result.runtime)} (edgefl devices show NAME)",
        "%: of the budget that the round takes; no, 2 of 3: fits 2 of 3 stages",
    ]
    if any(0 < row.fitting_owners < row.owners for row in rows):
        notes.append("owners: those whose budgets it fits; the tightest budget is that of the one with least left")
    notes += _comparison_notes(result) + _depends(rows)
    if any(row.throttling_seconds > 0 for row in rows):
        included = "the time has that" if result.throttling else "the time lacks that (fleet.throttling: true)"
        notes.append(f"~: the device gets hot in this round and slows down; {included}")
    return notes
