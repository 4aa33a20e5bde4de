"""Results of ``edgefl profile --measure`` and of the comparison of MAC counts as tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.text import Text

from edgefl import units
from edgefl.commands.profile.answer import ByPart, CountedRow, MeasuredRow, Measurements
from edgefl.commands.profile.rounds_table import print_by_part
from edgefl.drawing.text_tables import NOTHING, mib, new_table, or_dash, print_section, screen


def _share(error: float) -> str:
    return "0 %" if error == 0 else f"{100 * error:+.3g} %"


def print_measured(result: Measurements, console: Console | None = None) -> None:
    """Print predicted against measured memory, FLOPs and seconds, and memory by part, of ``measure``'s result."""
    console = console or screen()
    rows = result.rows
    device = result.device
    table = new_table(
        "stage", "kind", "batch", "peak MiB\npredicted", "\nmeasured", "\nerror", "live MiB\npredicted", "\nerror",
        "FLOPs\nerror", "RSS MiB\nbefore", "\npeak", left=(1,),
    )  # fmt: skip
    for row in rows:
        table.add_row(
            row.stage_and_part, row.whose, str(row.batch), mib(row.peak_memory_bytes),
            mib(row.measured_peak_memory_bytes), _share(row.memory_error),
            mib(row.live_memory_bytes), _share(row.live_memory_error),
            _share(row.flops_error),
            f"{row.rss_bytes_before / 2**20:.0f}", f"{row.rss_bytes_peak / 2**20:.0f}",
        )  # fmt: skip
    note = (
        "peak: live tensors and kernels' scratch, measured by torch's allocator.  live: tensors, by edgefl's meter.  "
        "RSS: the whole process, with Python, libraries and memory that the allocator retains."
    )
    print_section(
        console, f"Predicted against measured on {device}: the first steps of a round, with random batches", table, note
    )
    columns: dict[str, Callable[[MeasuredRow], ByPart]] = {
        "predicted": lambda row: row.live_memory_bytes_by_part,
        "measured": lambda row: row.measured_live_memory_bytes_by_part,
    }
    print_by_part(console, "Live memory at its peak by part, MiB", rows, columns)
    _print_seconds(console, result)


def _print_seconds(console: Console, result: Measurements) -> None:
    machine = result.machine
    table = new_table("stage", "kind", "step", "predicted", "measured", "error", "wall time", left=(1, 2))
    for row in result.rows:
        for step in row.steps:
            table.add_row(
                row.stage_and_part, row.whose, f"{step.pattern}, pass {step.distinct_pass + 1}",
                or_dash(units.show_seconds, step.seconds), units.show_seconds(step.measured_cpu_seconds),
                or_dash(_share, step.error), units.show_seconds(step.measured_wall_seconds),
            )  # fmt: skip
    note = (
        "Seconds are predicted for CPUs only."
        if machine is None
        else f"Predicted with the rates of one thread of this machine: {units.show_rate(machine.flops_per_second)}, "
        f"{units.show_bytes_per_second(machine.memory_bytes_per_second)}, "
        f"{units.show_seconds(machine.seconds_per_operator)} per operator.  "
        "measured: CPU seconds of the fastest step."
    )
    print_section(console, "Time of a step", table, note)


def print_counts(rows: Sequence[CountedRow], console: Console | None = None) -> None:
    """Print forward MACs as edgefl's meter and as fvcore count them, and every difference, from ``count``'s rows."""
    console = console or screen()
    table = new_table("stage", "kind", "meter", "fvcore", "error", left=(1,))
    for row in rows:
        table.add_row(
            row.stage_and_part, row.whose, f"{row.forward_macs:,}", f"{row.fvcore_forward_macs:,}",
            _share(row.error),
        )  # fmt: skip
    print_section(console, "Forward MACs of one sample; LayerNorm: 5 per element, BatchNorm: not counted", table)
    for row in rows:
        for line in row.differing:
            console.print(Text(f"differs: {row.kind}, stage {row.stage}, {line}"))
    if not rows:
        console.print(Text(NOTHING))
