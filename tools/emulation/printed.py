"""The result of an emulation as tables."""

from __future__ import annotations

from rich.console import Console

from edgefl import units
from edgefl.drawing.text_tables import new_table, print_section, screen
from tools.emulation.answer import Emulation

_PHASES = ("download", "compute", "upload", "round")


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
