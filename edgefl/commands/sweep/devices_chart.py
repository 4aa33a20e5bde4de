"""Figures of devices: which fit a scenario, and predictions beside published measurements."""

from __future__ import annotations

from edgefl import units
from edgefl.drawing.charts.chart import Chart, ChartAxis, Panel, Series
from edgefl.drawing.charts.palette import QUIET, of_kind, of_run
from edgefl.records.devices import DeviceCheck
from edgefl.records.published import PublishedAgreement

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


def agreement_chart(result: PublishedAgreement) -> Chart:
    """Predicted over measured seconds of a step on logarithmic axes, by fits that haven't seen the row.

    Each class of processors has a colour and a mark.
    """
    rows = [(row, row.foretold.unseen_model) for row in result.rows if row.quantity == "seconds" and row.foretold]
    series = []
    for index, name in enumerate(dict.fromkeys(row.processor for row, _ in rows)):
        mine = [(row, predicted) for row, predicted in rows if row.processor == name]
        series.append(
            Series(
                f"{name} ({len(mine)})", [row.measured for row, _ in mine], [predicted for _, predicted in mine],
                of_run(index), symbols=[index] * len(mine),
            )
        )  # fmt: skip
    every = [value for row, predicted in rows for value in (row.measured, predicted)]
    ends = [min(every, default=1.0) / 1.5, max(every, default=1.0) * 1.5]
    for factor, words in ((1.0, "equal"), (0.5, "half"), (2.0, "double")):
        series.append(Series(words, ends, [factor * end for end in ends], QUIET, dashed=factor != 1.0, form="lines"))
    measured, foretold = (
        ChartAxis(title, log=True, bottom=ends[0], top=ends[1])
        for title in ("published seconds of a training step", "predicted seconds; dotted: half and double")
    )
    return Chart(
        "published", "Seconds of a training step: predictions beside published measurements",
        "One mark for each measurement, predicted by a fit to the other half of models by device.",
        [Panel("", "points", measured, foretold, series, legend=True)],
        ["device", "model", "class", "half", "measured_seconds", "predicted_seconds"],
        [[row.device, row.model, row.processor, row.half, row.measured, predicted] for row, predicted in rows],
        size=(6.4, 5.6),
    )  # fmt: skip
