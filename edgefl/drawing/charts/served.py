"""How well each group of clients is served: their scores on their own held-out samples."""

from __future__ import annotations

from edgefl.drawing.charts.chart import Chart, ChartAxis, Panel, Series
from edgefl.drawing.charts.palette import QUIET, WORST
from edgefl.drawing.charts.records import Records
from edgefl.records.record import UNSET

METRICS = ("accuracy", "r@1")
"""Metrics that are drawn; the records have all others too."""
PARTS = ("mean", "weighted_mean", "deviation", "worst_decile")


def served_clients_chart(records: Records) -> Chart | None:
    """Mean and worst tenth of each group of clients after the last evaluation on their own samples."""
    facts = records.facts
    if facts.client_metrics is UNSET or not facts.client_metrics:
        return None
    panels, rows = [], []
    for name in METRICS:
        groups = [row for row in facts.client_metrics if name in row.metrics and row.metrics[name].mean is not None]
        if not groups:
            continue
        places = [_place(row.by, row.group) for row in groups]
        of = [row.metrics[name] for row in groups]
        bars = [
            Series("mean of the clients", places, [values.mean for values in of], QUIET),
            Series("mean of their worst tenth", places, [values.worst_decile for values in of], WORST),
        ]
        panels.append(Panel(name, "bars", ChartAxis(""), ChartAxis(name, "share", bottom=0.0), bars))
        rows += [
            [row.by, row.group, row.clients, row.scored, row.too_small, row.without, name,
             *(getattr(values, part) for part in PARTS)]
            for row, values in zip(groups, of, strict=True)
        ]  # fmt: skip
    if not panels:
        return None
    everyone = next(row for row in facts.client_metrics if row.by == "all")
    notes = [f"{everyone.scored} of {everyone.clients} clients were scored."]
    if everyone.too_small:
        notes.append(f"The memory of {everyone.too_small} can't hold the evaluation.")
    if everyone.without:
        notes.append(f"{everyone.without} hold no sample out.")
    return Chart(
        "served", "How well clients are served",
        f"Scores of the clients on their own held-out samples after round {facts.client_metrics_round}, by group.",
        panels, ["by", "group", "clients", "scored", "too_small", "without_samples", "metric", *PARTS], rows,
        notes=notes,
    )  # fmt: skip


def _place(by: str, group: str) -> str:
    return f"{by} {group}" if by in ("kind", "modality") else group
