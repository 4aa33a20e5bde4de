"""The figure of predictions beside published measurements."""

from __future__ import annotations

from edgefl.drawing.charts.chart import Chart, ChartAxis, Panel, Series
from edgefl.drawing.charts.palette import QUIET, of_run
from tools.published_steps.answer import PublishedAgreement


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
