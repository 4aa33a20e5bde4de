"""What ``edgefl sweep --devices`` prints: which devices can train which combinations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from rich.console import Console
from rich.text import Text

from edgefl import units
from edgefl.commands.sweep.answer import DeviceCheck, DeviceCheckRow, Sweep
from edgefl.devices import show_runtime
from edgefl.devices.budgets import show_binding
from edgefl.drawing.text_tables import (
    GAP,
    NOTHING,
    new_table,
    percent,
    plain_markdown,
    print_section,
    print_table,
    screen,
)

MOST_WORDED = 6
"""Columns whose cells have words: six of ``yes 90 %`` beside a device's name take 80 characters."""
MOST_PEAKS = 24
"""Columns whose peaks are printed without ``full``: a screen of them."""
SIGNS = {"yes": "y", "no": ".", "depends": "?"}
VERDICTS = tuple(SIGNS)
DEVICES_MORE = "More: --full (each device: peak, time, energy, the budget that binds), --as csv, --as json."
MOST_KINDS = 3
"""Kinds that have a column each; of more, each kind has rows, since columns would be too narrow."""


def print_device_check(result: DeviceCheck, console: Console | None = None, *, full: bool = False) -> None:
    """Print the answers for one combination: a line for each device, smallest memory first.

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


def print_devices(result: Sweep, console: Console | None = None, *, full: bool = False) -> None:
    """Print which devices can train: one combination in detail, or of several a column for each and each kind.

    A cell has words, or of many columns a sign.  With ``full`` each combination's rows follow.
    """
    console = console or screen()
    checks = result.devices or {}
    if len(checks) == 1:
        print_device_check(next(iter(checks.values())), console, full=full)
        return
    columns = _columns(checks)
    devices = list(dict.fromkeys(device for column in columns for device in column.rows))
    links = list(dict.fromkeys(check.link for check in checks.values()))
    has_words = len(columns) <= MOST_WORDED
    cells = [[_cell(column.rows.get(device), has_words) for column in columns] for device in devices]
    heads = [column.head for column in columns]
    wide = sum(GAP + max(map(len, (*head.split("\n"), *own))) for head, *own in zip(heads, *cells, strict=True))
    is_numbered = not has_words or max(map(len, devices)) + wide > console.width
    if is_numbered:
        heads = [str(number) for number in range(1, 1 + len(columns))]
    table = new_table("device", *heads, left=range(1 + len(columns)) if has_words else (0,))
    for device, own in zip(devices, cells, strict=True):
        table.add_row(device, *own)
    over = f" over {links[0]}" if len(links) == 1 else ""
    title = f"Which devices can train the largest client of each kind{over}"
    print_section(console, title, table, _answers_told(columns, has_words))
    _print_columns(console, result, columns, full or len(columns) <= MOST_PEAKS, is_numbered, len(links) > 1)
    for line in _depends([row for check in checks.values() for row in check.rows]):
        console.print(Text(line))
    for label, check in checks.items() if full else ():
        console.print(Text(f"\n{_head(check, label)}", style="bold"))
        _print_rows(console, check.rows)


@dataclass(frozen=True)
class _DeviceColumn:
    """A combination and a kind of client, and its row for each device; a combination's only kind is not named."""

    label: str
    kind: str
    link: str
    rows: Mapping[str, DeviceCheckRow]

    @property
    def head(self) -> str:
        """Label and kind in short lines."""
        return self.label.replace(",", ",\n") + (f":\n{self.kind}" if self.kind else "")


def _columns(checks: Mapping[str, DeviceCheck]) -> list[_DeviceColumn]:
    found = []
    for label, check in checks.items():
        kinds = list(dict.fromkeys(row.whose for row in check.rows))
        found += [
            _DeviceColumn(label, kind if len(kinds) > 1 else "", check.link,
                    {row.device: row for row in check.rows if row.whose == kind})
            for kind in kinds
        ]  # fmt: skip
    return found


def _cell(row: DeviceCheckRow | None, has_words: bool) -> str:
    """The answer in a word or two, ``yes 36 %``, ``no``, ``3 of 6``, ``depends``; or as a sign."""
    if row is None:
        return NOTHING
    if not has_words:
        return SIGNS[_verdict(row)]
    if row.answer == "yes":
        return "yes" if row.binding is None else f"yes {percent(1 - _remaining_share(row))}"
    return f"{row.fitting_owners:,} of {row.owners:,}" if row.answer == "no" and row.fitting_owners else _verdict(row)


def _verdict(row: DeviceCheckRow) -> str:
    """``yes``, ``no`` or ``depends``: on scratch, on free memory, or on the owner."""
    return row.answer if row.answer == "yes" or (row.answer == "no" and not row.fitting_owners) else "depends"


def _answers_told(columns: Sequence[_DeviceColumn], has_words: bool) -> str:
    """What the cells mean."""
    fits = "the round at its hardest stage is within the device's memory, the deadline and every owner's budgets"
    if not has_words:
        return f"y: yes, {fits}.  .: no.  ?: it depends on scratch, free memory or the owner."
    some = any(row.fitting_owners and row.answer == "no" for column in columns for row in column.rows.values())
    owners = "  3 of 6: within the budgets of 3 of 6 owners." if some else ""
    return f"yes: {fits}.  %: of the tightest budget that the round takes.{owners}"


def _print_columns(
    console: Console, result: Sweep, columns: Sequence[_DeviceColumn], peaks: bool, is_numbered: bool, has_links: bool
) -> None:
    """Print a line for each column: what it is, on how many devices it can train, and its peak."""
    titles, values = result.named_values([column.label for column in columns])
    has_kinds, number_of = any(column.kind for column in columns), [""] if is_numbered else []
    names = [*number_of, *titles, *(["kind"] if has_kinds else []), *(["link"] if has_links else [])]
    peak = ["peak"] if peaks else []
    table = new_table(*names, *VERDICTS, *peak, left=range(len(number_of), len(names)))
    for number, (column, words) in enumerate(zip(columns, values, strict=True), 1):
        counts = Counter(_verdict(row) for row in column.rows.values())
        most = max(row.peak_memory_bytes for row in column.rows.values())
        table.add_row(
            *([str(number)] if is_numbered else []), *words, *([column.kind] if has_kinds else []),
            *([column.link] if has_links else []), *(str(counts[verdict]) for verdict in VERDICTS),
            *([units.show_bytes(most)] if peaks else []),
        )  # fmt: skip
    print_section(console, "Devices by answer", table, DEVICES_MORE)


def devices_markdown(result: Sweep) -> str:
    """The answers as a table in Markdown: a row for each device, a column for each combination and kind."""
    checks = result.devices or {}
    columns = _columns(checks)
    several = len(checks) > 1
    titles = [": ".join(filter(None, (each.label if several or not each.kind else "", each.kind))) for each in columns]
    devices = dict.fromkeys(device for column in columns for device in column.rows)
    rows = {device: [column.rows.get(device) for column in columns] for device in devices}
    heads = [f"{plain_markdown(_head(check, label if several else None))}." for label, check in checks.items()]
    cells = [[device, *(_answer(row) if row else NOTHING for row in own)] for device, own in rows.items()]
    table = markdown_table(["device", *titles], cells)
    notes = ["of each kind's largest client at its hardest stage; %: of the budget that the round takes"]
    for label, check in checks.items():
        peaks = {row.whose: row.peak_memory_bytes for row in sorted(check.rows, key=lambda row: row.peak_memory_bytes)}
        told = ", ".join(f"{kind} {units.show_bytes(peak)}" for kind, peak in peaks.items())
        notes.append(f"peak of {label}: {told}" if several else f"peak: {told}")
    notes += _depends([row for check in checks.values() for row in check.rows])
    return "\n".join([*heads, "", *table, "", *(f"- {plain_markdown(line)}" for line in notes)]) + "\n"


def markdown_table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table in Markdown that shows its words as they are."""
    lines = [map(plain_markdown, titles), ["---"] * len(titles), *(map(plain_markdown, row) for row in rows)]
    return [f"| {' | '.join(cells)} |" for cells in lines]


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
    notes += _depends(rows)
    if any(row.throttling_seconds > 0 for row in rows):
        included = "the time has that" if result.throttling else "the time lacks that (fleet.throttling: true)"
        notes.append(f"~: the device gets hot in this round and slows down; {included}")
    return notes
