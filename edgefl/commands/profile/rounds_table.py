"""A profile as tables: its opening, or all tables with ``full``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar, cast

from rich.console import Console
from rich.text import Text

from edgefl import units
from edgefl.commands.profile.answer import (
    ByPart,
    ClientEvaluationRow,
    PeakMoment,
    Profile,
    ProfileRow,
    ServerRow,
    Tables,
    TotalsRow,
)
from edgefl.devices import show_overhead
from edgefl.drawing.text_tables import (
    mib,
    new_table,
    percent,
    print_bounds,
    print_section,
    print_table,
    screen,
    seeds_together,
    show_rounds,
    without_seed,
)
from edgefl.operator_classes import OPERATOR_NAMES
from edgefl.records.answer import OfStage
from edgefl.records.clients import ExchangeRecord
from edgefl.records.record import UNSET, Maybe

SHORT = {
    "parameters": "param.",
    "gradients": "grad.",
    "activations": "activ.",
    "temporaries": "temp.",
    "convolution": "conv.",
    "convolution 1x1": "1x1",
    "grouped convolution": "grouped",
    "depthwise convolution": "depth-\nwise",
    "normalisation": "norms",
    "embedding": "embed.",
    "optimizer": "optim.",
}
"""Short names of parts of memory and classes of operators, so that a table with all fits a terminal."""


R = TypeVar("R", bound=OfStage)


def operations(value: float) -> str:
    """A number of operations with its prefix but without a unit: ``85.1 M``."""
    return units.show_flops(value).removesuffix("FLOP")


def print_detail(result: Profile, console: Console | None = None) -> None:
    """Print everything in the result of ``edgefl.profile``, for each combination of the scenario."""
    console = console or screen()
    profiles = result.parts
    for label, profile in profiles.items():
        rows = profile.rows
        heading = f"on {rows[0].device} over {rows[0].link}" if rows else "has no such stage and kind"
        console.print(Text(f"=== {label} {heading} ===", style="bold"))
        console.print()
        if rows:
            _print_rows(console, rows)
            _print_seconds(console, rows)
            _print_traffic(console, rows)
        _print_server(console, profile.server_rows)
        _print_client_evaluation(console, profile.client_evaluation_rows)
        _print_rounds(console, profile)
        _print_totals(console, profile.totals)
    print_bounds(console, result.at_most, result.seconds_within)
    print_refused(console, result.refused)


def print_refused(console: Console, refused: Mapping[str, str] | Maybe) -> None:
    """Print the combinations that can't be run, with the reason."""
    labels: dict[str, list[str]] = {}
    for label, why in (refused or {}).items():
        labels.setdefault(why, []).append(label)
    for why, same in labels.items():
        console.print(Text(f"can't be run: {'; '.join(seeds_together(same))}: {why}"))


def _print_rows(console: Console, rows: Sequence[ProfileRow]) -> None:
    cost = new_table(
        "stage", "rounds", "kind", "peak memory", "live", "forward", "backward", "MACs/sample", "time", "energy",
        left=(2,),
    )  # fmt: skip
    for row in rows:
        cost.add_row(
            row.stage_and_part, show_rounds(row.rounds, row.fewest_rounds), row.whose,
            units.show_bytes(row.peak_memory_bytes),
            units.show_bytes(row.live_memory_bytes),
            units.show_flops(row.forward_flops), units.show_flops(row.backward_flops),
            operations(row.fvcore_macs_per_sample), units.show_seconds(row.virtual_seconds),
            units.show_joules(row.energy_joules),
        )  # fmt: skip
    hot = "\n".join(throttling_notes(rows))
    print_section(console, "One client's round (MACs: one sample, one local epoch, as fvcore counts)", cost, hot)
    print_by_part(console, "Peak memory by part, MiB", rows, {"": lambda row: row.memory_bytes}, _memory_note(rows))


def throttling_notes(rows: Sequence[ProfileRow]) -> list[str]:
    """A line on the rows in which the device gets hot and slows down; none if it never does."""
    hot = [row for row in rows if row.throttling_seconds > 0]
    if not hot:
        return []
    worst = max(hot, key=lambda row: row.throttling_seconds)
    added = units.show_seconds(worst.throttling_seconds)
    where = f"{worst.kind}, stage {worst.stage}" + (f"; {len(hot)} rows in all" if len(hot) > 1 else "")
    if worst.throttling_included:
        return [f"times include throttling: {added} of {where}"]
    return [f"throttling isn't in these times (fleet.throttling): +{added} for {where}"]


def _process(rows: Sequence[ProfileRow]) -> str:
    """What a process takes at the highest peak: tensors and the runtime, with the range of that."""
    row = max(rows, key=lambda row: row.process_memory_bytes)
    overhead = show_overhead(row.runtime_overhead_bytes, row.runtime)
    tensors = "the peak"
    if row.reserved_memory_bytes is not UNSET and row.reserved_memory_bytes > row.peak_memory_bytes:
        tensors = f"{units.show_bytes(row.reserved_memory_bytes)} in segments of the GPU's allocator"
    return f"a process takes {units.show_bytes(row.process_memory_bytes)}: {tensors} and {overhead}"


def _memory_note(rows: Sequence[ProfileRow]) -> str:
    """What the memory of these rows holds and leaves out."""
    left = units.show_bytes(rows[0].available_memory_bytes)
    note = f"{_process(rows)}; {rows[0].device} has {left} for tensors"
    if hosts := [row.host_memory_bytes for row in rows if row.host_memory_bytes is not UNSET]:
        note += f"\nstates in the memory of the GPU's host, not included above: at most {units.show_bytes(max(hosts))}"
    if any(row.memory_assumed for row in rows):
        note += (
            "\nscratch isn't measured on this machine: the peak is the upper end of a range (scratch of twice the "
            "arguments), live memory the lower end"
        )
    return note


def print_by_part(
    console: Console, title: str, rows: Sequence[R], columns: Mapping[str, Callable[[R], ByPart]], note: str = ""
) -> None:
    """Print a table of bytes by part, in MiB.  Parts that are zero in all rows are left out.

    ``columns`` has by word what holds the bytes by part of a row.  Each is a line of the table; the lines begin with
    their words if there are several.
    """
    counts = [of(row) for row in rows for of in columns.values()]
    names = [n for n in dict.fromkeys(n for c in counts for n in c) if any(c.get(n) for c in counts)]
    several = len(columns) > 1
    table = new_table("stage", "kind", *[""] * several, *(SHORT.get(n, n) for n in names), left=(1, 1 + several))
    for row in rows:
        head = row.stage_and_part, row.whose
        for word, of in columns.items():
            table.add_row(*head, *[word] * several, *(mib(of(row).get(n, 0)) for n in names))
            head = "", ""
    print_section(console, title, table, note)


def _print_seconds(console: Console, rows: Sequence[ProfileRow]) -> None:
    """Print by class of operator where the seconds of a client's computing go."""
    spent = [row.compute_seconds_by_class for row in rows]
    order = [*OPERATOR_NAMES, "launches", "loading"]
    names = sorted({name for each in spent for name in each}, key=order.index)
    table = new_table("stage", "kind", "seconds", *(SHORT.get(name, name) for name in names), left=(1,))
    for row, by_class in zip(rows, spent, strict=True):
        whole = sum(by_class.values())
        shares = (percent(by_class.get(name, 0) / whole) if whole else "–" for name in names)
        table.add_row(row.stage_and_part, row.whose, units.show_seconds(whole), *shares)
    if names:
        print_section(console, f"Where the seconds of computing go on {rows[0].device}", table)


def _print_traffic(console: Console, rows: Sequence[ProfileRow]) -> None:
    moved = new_table("stage", "kind", "down", "up", "down serialised", "up serialised", "payloads down", left=(1, 6))
    for row in rows:
        moved.add_row(
            row.stage_and_part, row.whose,
            units.show_bytes(row.download_bytes), units.show_bytes(row.upload_bytes),
            units.show_bytes(row.serialised_download_bytes), units.show_bytes(row.serialised_upload_bytes),
            ", ".join(f"{n} {units.show_bytes(b)}" for n, b in row.download_bytes_by_payload.items()),
        )  # fmt: skip
    print_section(console, "Traffic of a client's round, active parts only", moved)
    columns: dict[str, Callable[[ProfileRow], ByPart]] = {
        "down": lambda row: row.download_bytes_by_part,
        "up": lambda row: row.upload_bytes_by_part,
    }
    print_by_part(console, "Traffic by part, MiB", rows, columns)


def _print_client_evaluation(console: Console, rows: Sequence[ClientEvaluationRow]) -> None:
    if not rows:
        return
    table = new_table("stage", "kind", "samples", "peak memory", "FLOP", "down", "time", "energy", left=(1,))
    for row in rows:
        table.add_row(
            str(row.stage), row.whose, str(row.samples), units.show_bytes(row.peak_memory_bytes),
            operations(row.flops), units.show_bytes(row.download_bytes),
            units.show_seconds(row.virtual_seconds), units.show_joules(row.energy_joules),
        )  # fmt: skip
    print_section(console, "One client's evaluation on its held-out samples", table)


def _print_server(console: Console, rows: Sequence[ServerRow]) -> None:
    if not rows:
        return
    table = new_table("stage", "rounds", "when", "kind", "steps", "peak memory", "FLOP", "MACs", "time", left=(2, 3, 4))
    for row in rows:
        table.add_row(
            str(row.stage), str(row.rounds), row.when, row.kind, ", ".join(dict.fromkeys(row.steps)),
            units.show_bytes(row.peak_memory_bytes),
            operations(row.flops), operations(row.fvcore_macs),
            units.show_seconds(row.compute_seconds),
        )  # fmt: skip
    device, overhead = rows[0].device, units.show_bytes(rows[0].runtime_overhead_bytes)
    note = f"runtime overhead of {device}, not included above: {overhead}"
    print_section(console, f"Server works, cost of one execution on {device}", table, note)


def _print_rounds(console: Console, part: Tables) -> None:
    if not part.round_totals:
        return
    table = new_table("stage", "rounds", "clients", "MACs", "forward", "backward", "down", "up", left=(2,))
    for total in part.round_totals:
        selected = {kind: f"{n:.3g}" for kind, n in total.selected.items()}
        table.add_row(
            str(total.stage), str(total.rounds), ", ".join(f"{kind} {n}" for kind, n in selected.items()),
            operations(total.fvcore_macs), units.show_flops(total.forward_flops),
            units.show_flops(total.backward_flops), units.show_bytes(total.download_bytes),
            units.show_bytes(total.upload_bytes),
        )  # fmt: skip
    print_section(console, "One round: expected selected clients and the server, without evaluation", table)


def _print_totals(console: Console, totals: Sequence[TotalsRow]) -> None:
    if not totals:
        return
    table = new_table(
        "kind", "rounds", "peak memory", "down", "up", "serialised", "FLOP", "MACs/\nsample", "time", "energy"
    )
    for total in totals:
        table.add_row(
            total.whose, show_rounds(total.rounds, total.fewest_rounds), units.show_bytes(total.peak_memory_bytes),
            units.show_bytes(total.download_bytes), units.show_bytes(total.upload_bytes),
            units.show_bytes(total.serialised_traffic_bytes),
            operations(total.flops),
            operations(total.fvcore_macs_per_sample_all_rounds), units.show_seconds(total.virtual_seconds),
            units.show_joules(total.energy_joules),
        )  # fmt: skip
    told = "\n".join(filter(None, (_least(totals), _epsilons(totals))))
    print_section(console, "Whole schedule, one client that takes part in every round", table, told)


def _least(totals: Sequence[TotalsRow]) -> str:
    """The fewest rounds in which a run may end, and what they move; empty if it always plays all rounds."""
    told = [
        f"{total.whose} {total.fewest_rounds} rounds, {units.show_bytes(total.least_traffic_bytes)} both ways"
        for total in totals
        if total.fewest_rounds is not UNSET and total.least_traffic_bytes is not UNSET
    ]
    return f"in all at least: {'; '.join(told)}" if told else ""


def _epsilons(totals: Sequence[TotalsRow]) -> str:
    """The epsilon of a sample by kind; empty without one."""
    told = [f"{total.whose} {total.sample_epsilon:.3g}" for total in totals if total.sample_epsilon is not UNSET]
    return f"epsilon of a sample after all rounds, by Poisson batches: {'; '.join(told)}" if told else ""


MOST_ROWS = 18
"""Rows of the table, so that it fits a screen: six stages of three kinds."""


def print_profile(result: Profile, console: Console | None = None, *, full: bool = False) -> None:
    """Print the result of ``edgefl.profile``: a table of at most 26 lines, or with ``full`` everything."""
    console = console or screen()
    if full:
        print_detail(result, console)
    else:
        _print_opening(console, result)
    _print_timeline(console, result.timeline)


def _print_opening(console: Console, result: Profile) -> None:
    profiles = result.parts
    rows = [row for profile in profiles.values() for row in profile.rows]
    if not rows:
        console.print(Text(f"{result.scenario} has no such stage and kind"))
        return
    devices, links = {row.device for row in rows}, {row.link for row in rows}
    on = f" on {devices.pop()} over {links.pop()}" if len(devices) == len(links) == 1 else ""
    console.print(Text(f"One client's round of {result.scenario}{on}", style="bold"))
    if len(profiles) > 1 or len(rows) > MOST_ROWS:
        _print_hardest(console, profiles)
    else:
        _print_stages(console, rows)
    for line in [_process(rows), *_notes(rows)]:
        console.print(Text(line))
    print_bounds(console, result.at_most, result.seconds_within)
    for label, profile in profiles.items():
        for told in filter(None, (_least(profile.totals), _epsilons(profile.totals))):
            console.print(Text(f"{label}, {told}" if len(profiles) > 1 else told))
    print_refused(console, result.refused)
    console.print(Text("--full: memory by part, traffic, server, totals; --clients: every client of the fleet"))


def _print_stages(console: Console, rows: Sequence[ProfileRow]) -> None:
    table = new_table(
        "stage", "rounds", "kind", "peak memory", "FLOP", "MACs/sample", "down", "up", "time", "energy", left=(2,)
    )
    for row in rows:
        table.add_row(
            row.stage_and_part, show_rounds(row.rounds, row.fewest_rounds), row.whose,
            units.show_bytes(row.peak_memory_bytes),
            operations(row.flops), operations(row.fvcore_macs_per_sample),
            units.show_bytes(row.download_bytes), units.show_bytes(row.upload_bytes),
            units.show_seconds(row.virtual_seconds), units.show_joules(row.energy_joules),
        )  # fmt: skip
    print_table(console, table)


def _print_hardest(console: Console, profiles: Mapping[str, Tables]) -> None:
    """A line for each combination and kind, at the stage with the highest peak; the largest kinds if they are many."""
    lines = []
    for label, profile in _seeds_once(profiles).items():
        kinds = dict.fromkeys(row.whose for row in profile.rows)
        for kind in kinds:
            mine = [row for row in profile.rows if row.whose == kind]
            # a stage without rounds is shown only if there is no other
            hardest = max(mine, key=lambda row: (bool(row.rounds), row.peak_memory_bytes))
            total = next((t for t in profile.totals if t.whose == kind), None)
            lines.append((label, hardest, len(mine), total))
    if len(lines) > MOST_ROWS:
        largest: dict[str, tuple[str, ProfileRow, int, TotalsRow | None]] = {}
        for line in lines:
            if line[0] not in largest or line[1].peak_memory_bytes > largest[line[0]][1].peak_memory_bytes:
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
            show_rounds(total.rounds, total.fewest_rounds), units.show_bytes(total.traffic_bytes),
            operations(total.flops), units.show_seconds(total.virtual_seconds),
            units.show_joules(total.energy_joules),
        )  # fmt: skip
        table.add_row(
            "" if label == last else label, row.whose, f"{row.stage_and_part} of {stages}",
            units.show_bytes(row.peak_memory_bytes), units.show_seconds(row.virtual_seconds), *whole,
        )  # fmt: skip
        last = label
    print_table(console, table)
    if any(line[3] for line in lines):
        console.print(Text("all rounds, traffic, FLOP, time, energy: one client that takes part in every round"))
    if len(lines) > MOST_ROWS:
        console.print(Text(f"and {len(lines) - MOST_ROWS} more"))


def _seeds_once(profiles: Mapping[str, Tables]) -> Mapping[str, Tables]:
    """The profiles by label; those that differ in their seeds only, and in no row, are one without the seed."""
    alike: dict[str, list[Tables]] = {}
    for label, profile in profiles.items():
        alike.setdefault(without_seed(label), []).append(profile)
    if len(profiles) == len(alike) or any(
        other.rows != first.rows or other.totals != first.totals
        for first, *others in alike.values()
        for other in others
    ):
        return profiles
    return {label or "all seeds": first for label, (first, *_) in alike.items()}


def _notes(rows: Sequence[ProfileRow]) -> list[str]:
    """Rows that don't fit their device, throttling, and assumed scratch: a line each."""
    notes = []
    too_large = [
        row for row in rows if row.process_memory_bytes - row.runtime_overhead_bytes > row.available_memory_bytes
    ]
    if too_large:
        worst = max(too_large, key=lambda row: row.process_memory_bytes)
        others = f"; {len(too_large)} rows in all" if len(too_large) > 1 else ""
        notes.append(
            f"too large for the {units.show_bytes(worst.available_memory_bytes)} that the device has for tensors: "
            f"{worst.kind}, stage {worst.stage}{others}"
        )
    notes += dict.fromkeys(_exchange_note(row) for row in rows if row.exchange is not UNSET)
    notes += throttling_notes(rows)
    if any(row.memory_assumed for row in rows):
        notes.append("scratch isn't measured on this machine: peaks are the upper end of a range (--full)")
    return notes


def _exchange_note(row: ProfileRow) -> str:
    exchange = cast(ExchangeRecord, row.exchange)
    down, up = exchange.serialised_download_bytes, exchange.serialised_upload_bytes
    moved = f"{row.kind}: {exchange.trips:,} exchanges, {units.show_bytes(up)} up and {units.show_bytes(down)} down"
    if not exchange.server_peak_memory_bytes:
        return f"{moved} of keys and shares"
    return (
        f"{moved}; the server's half peaks at {units.show_bytes(exchange.server_peak_memory_bytes)}, computes "
        f"{units.show_flops(exchange.server_flops)} and takes {units.show_seconds(exchange.server_seconds)}, "
        f"{100 * exchange.server_seconds / row.compute_seconds:.1f} % of the client's time of computing"
    )


def _print_timeline(console: Console, moment: PeakMoment | Maybe) -> None:
    if moment is not UNSET:
        console.print(
            Text(
                f"The peak of {moment.kind}, stage {moment.stage}: {units.show_bytes(moment.peak_memory_bytes)} at "
                f"{moment.operator} in {moment.scope or 'no profile of the model'} ({moment.phase})"
            )
        )
