"""Results of ``edgefl calibrate`` and ``edgefl emulate`` as tables."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console
from rich.text import Text

from edgefl import units
from edgefl.drawing.text_tables import new_table, print_section, screen
from edgefl.records.devices import Calibration
from edgefl.records.emulated import Emulation

_SHOWN: dict[str, Callable[[float], str]] = {
    "flops_per_second": units.show_rate,
    "bytes_per_second": units.show_bytes_per_second,
    "bits_per_second": units.show_bits_per_second,
    "bytes": units.show_bytes,
    "watts": units.show_watts,
    "share": units.show_share,
    "loss": units.show_share,
    "jitter": lambda sigma: f"{sigma:.3g}",
}

_PHASES = ("download", "compute", "upload", "round")


def print_calibration(result: Calibration, console: Console | None = None) -> None:
    """Print the measured profiles of device and link, notes on what could not be measured, and the files written."""
    console = console or screen()
    for profile in (result.device, result.link):
        if profile is None:
            continue
        table = new_table("number", "value", "lowest", "highest", "how", left=(0, 4))
        for name, fact in profile.values.items():
            show = _formatter(name)
            table.add_row(name, show(fact.value), show(fact.low), show(fact.high), fact.confidence)
        print_section(console, profile.title, table)
    for note in result.notes:
        console.print(Text(f"note: {note}"))
    for path in result.files:
        console.print(Text(f"written: {path}"))


def _formatter(name: str) -> Callable[[float], str]:
    """The function that formats a field, chosen by the unit at the end of its name."""
    return next((show for end, show in _SHOWN.items() if name.endswith(end)), units.show_seconds)


def print_emulation(result: Emulation, console: Console | None = None) -> None:
    """Print the devices under their quotas, simulated and emulated seconds of each client-round, and the errors."""
    console = console or screen()
    table = new_table("device", "quota", "share had", "FLOP/s", "bytes/s", "an operator", left=(0,))
    for name, each in result.devices.items():
        share = each.share
        table.add_row(
            name,
            units.show_share(each.quota),
            units.show_share(share),
            units.show_rate(each.flops_per_second * share),
            units.show_bytes_per_second(each.memory_bytes_per_second * share),
            units.show_seconds(each.seconds_per_operator / share),
        )
    print_section(console, "Devices, as shares of a core of this machine", table)
    table = new_table("round", "client", "device", "link", *_PHASES, left=(2, 3))
    for row in result.client_rounds:
        seconds = (
            f"{simulated:.3f}/{emulated:.3f}" for simulated, emulated in (
                (row.simulated_download_seconds, row.emulated_download_seconds),
                (row.simulated_compute_seconds, row.emulated_compute_seconds),
                (row.simulated_upload_seconds, row.emulated_upload_seconds),
                (row.simulated_round_seconds, row.emulated_round_seconds),
            )
        )  # fmt: skip
        table.add_row(str(row.round), str(row.client), row.device, row.link, *seconds)
    print_section(console, "Seconds of each client's round, simulated/emulated", table)
    table = new_table("of", "median", "worst", "client-rounds", left=(0,))
    for name, error in result.errors.items():
        table.add_row(name, units.show_share(error.median), units.show_share(error.worst), str(error.client_rounds))
    print_section(console, "Simulated / emulated - 1, without sign", table)
