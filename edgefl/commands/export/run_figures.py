"""The figures of a run or of a comparison for a paper, with the numbers of each as CSV beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from edgefl.drawing.charts import charts_of, charts_of_comparison, groups_of, records_of
from edgefl.drawing.charts.picture import make_folder, write
from edgefl.drawing.figures import FIGURE_FORMS
from edgefl.errors import RunError, UnknownName
from edgefl.runs import Run, is_comparison
from edgefl.runs.progress import OnProgress


def write_figures(
    run: Run, folder: Path, formats: Sequence[str], only: Sequence[str], on_progress: OnProgress
) -> list[str]:
    """Draw the figures, or ``only`` those of these names, in each of the formats; return the files.

    A format may be several with commas between them.
    """
    formats = [name.strip().lower().removeprefix(".") for several in formats for name in several.split(",")]
    for name in formats:
        if name not in FIGURE_FORMS:
            raise UnknownName("format", name, FIGURE_FORMS)
    if not formats:
        raise RunError(f"name a format: {', '.join(FIGURE_FORMS)}")
    if is_comparison(run.path):
        records = {label: records_of(member, label) for label, member in run.runs.items()}
        begun = groups_of(run, [each for each in records.values() if each.rounds])
        charts = [(folder, chart) for chart in charts_of_comparison(begun)]
        for label, member in run.runs.items():
            charts += [(folder / member.path.name, chart) for chart in charts_of(member, records[label])]
    else:
        charts = [(folder, chart) for chart in charts_of(run, records_of(run))]
    if not charts:
        raise RunError(f"the run at {run.path} has no round yet, so there is nothing to draw")
    names = {chart.name for _, chart in charts}
    for name in only:
        if name not in names:
            raise UnknownName("figure", name, names)
    charts = [(where, chart) for where, chart in charts if not only or chart.name in only]
    files = []
    for index, (where, chart) in enumerate(charts):
        on_progress("prepare", {"what": f"drawing {where / chart.name} ({index + 1} of {len(charts)})"})
        make_folder(where)
        files += write(chart, where, list(dict.fromkeys(formats)))
    return [str(file) for file in files]
