"""Figure of a profile: costs of a client's round by stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from edgefl.commands.profile.answer import ProfileRow, Tables
from edgefl.drawing.charts.chart import Chart, ChartAxis, Panel, Series
from edgefl.drawing.charts.palette import of_kind


def stages_chart(profiles: Mapping[str, Tables], memory: str = "peak_memory_bytes") -> Chart:
    """Peak memory (a row's field ``memory``), MACs and traffic of a client's round over the stages.

    ``profiles`` are given by label (a scenario's combinations).  Each label is a column of panels, each client kind a
    line; what has one stage only is a dashed line over all stages.
    """
    curves: tuple[tuple[str, Callable[[ProfileRow], float]], ...] = (
        ("peak memory, MiB", lambda row: getattr(row, memory) / 2**20),
        ("GMACs a sample", lambda row: row.fvcore_macs_per_sample / 1e9),
        ("traffic a round, MiB", lambda row: (row.download_bytes + row.upload_bytes) / 2**20),
    )
    last = max((row.stage for profile in profiles.values() for row in profile.rows), default=1)
    kinds = list(dict.fromkeys(row.whose for profile in profiles.values() for row in profile.rows))
    panels, table = [], []
    for index, (title, value) in enumerate(curves):
        for label, profile in profiles.items():
            series = []
            for number, kind in enumerate(kinds):
                points = [(row.stage, value(row)) for row in profile.rows if row.whose == kind]
                table += [[label, kind, stage, title, y] for stage, y in points]
                alone = [stage for stage, _ in points] == [1] and last > 1
                x, y = ([1, last], [points[0][1]] * 2) if alone else ([p[0] for p in points], [p[1] for p in points])
                series.append(Series(kind, x, y, of_kind(number), symbols=[number] * len(x), dashed=alone))
            panels.append(
                Panel("" if index else label, "lines", ChartAxis("stage"), ChartAxis(title, bottom=0.0), series)
            )
    return Chart(
        "stages", "Costs of a client's round by stage", "One line for each kind of client.", panels,
        ["combination", "kind", "stage", "cost", "value"], table, across=max(len(profiles), 1),
        size=((1.6 + 2.6 * len(profiles)) / max(len(profiles), 1), 2.13), aligned=True,
    )  # fmt: skip
