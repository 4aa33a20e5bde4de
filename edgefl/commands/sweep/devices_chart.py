"""The figure of the devices that fit a scenario."""

from __future__ import annotations

from edgefl import units
from edgefl.drawing.charts.chart import Chart, ChartAxis, Panel, Series
from edgefl.drawing.charts.palette import QUIET, of_kind
from edgefl.records.devices import DeviceCheck

ANSWERS = {
    "yes": "fits", "depends on scratch": "depends on scratch", "depends on free memory": "depends on free memory",
    "no": "does not fit",
}  # fmt: skip
"""The answers of the table, as the legend has them with their counts."""


def devices_that_fit(result: DeviceCheck) -> Chart:
    """Each device's seconds of a round over its memory for tensors; devices that don't fit are hollow.

    A panel for each kind, with its peak memory as a line.  A device without memory left stands at the left edge.
    """
    panels = []
    for index, kind in enumerate(dict.fromkeys(row.whose for row in result.rows)):
        rows = [row for row in result.rows if row.whose == kind]
        peak = max(row.peak_memory_bytes for row in rows)
        least = min([peak, *(row.available_memory_bytes for row in rows if row.available_memory_bytes > 0)])
        series = []
        for answer, words in ANSWERS.items():
            mine = [row for row in rows if row.answer == answer]
            if not mine and answer not in ("yes", "no"):
                continue
            series.append(
                Series(
                    f"{words} ({len(mine)})", [max(row.available_memory_bytes, least / 2) / 2**30 for row in mine],
                    [row.virtual_seconds for row in mine], of_kind(index) if answer in ("yes", "no") else QUIET,
                    symbols=[index] * len(mine), written=True, hollow=answer == "no",
                    notes=[row.device if row.available_memory_bytes > 0 else f"{row.device} (0 B)" for row in mine],
                )
            )  # fmt: skip
        panels.append(
            Panel(kind, "points", ChartAxis("memory for tensors, GiB", log=True),
                  ChartAxis("seconds of a round", log=True), series,
                  down=[(peak / 2**30, f"peak {units.show_bytes(peak)}")], legend=True)
        )  # fmt: skip
    across = max(len(panels), 1)
    return Chart(
        "devices", f"{result.scenario}: devices of the library over {result.link}",
        "Seconds of a round over memory for tensors, one mark for each device; those that don't fit are hollow.",
        panels, ["device", "kind", "available_memory_bytes", "virtual_seconds", "answer"],
        [[row.device, row.whose, row.available_memory_bytes, row.virtual_seconds, row.answer] for row in result.rows],
        across=across, size=((2.0 + 4.4 * across) / across, 4.8), headed=True, aligned=True,
    )  # fmt: skip
