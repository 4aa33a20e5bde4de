"""``edgefl figures``: the figures of a run or of a comparison for a paper, and their numbers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from edgefl.commands.draw.opened import opened
from edgefl.commands.progress import OnProgress, public_command, silent
from edgefl.errors import RunError, UnknownName
from edgefl.report import FIGURE_FORMS
from edgefl.report.charts import charts_of, charts_of_comparison, records_of
from edgefl.report.charts.picture import make_folder, write
from edgefl.runs import Run, is_comparison


@public_command
def write_figures(
    run: str | os.PathLike[str] | Run,
    output: str | os.PathLike[str] | None = None,
    *,
    formats: Sequence[str] = ("pdf",),
    on_progress: OnProgress = silent,
) -> list[Path]:
    """Draw the figures of a run or of a comparison for a paper, and write the numbers of each as CSV beside it.

    Args:
        run: The run, finished or not, or its folder.
        output: The folder; by default ``figures`` in the run's folder.  Figures of a comparison are in it, those of
            each of its runs in a folder of the run's name.
        formats: Some of ``"pdf"``, ``"svg"``, ``"png"``.
        on_progress: Called with the name of an event and its facts.

    Returns:
        The files, CSV files included.

    Raises:
        RunError: There is no run in the folder, its files can't be read, it has no round yet, or the folder can't be
            written.
        UnknownName: A format is unknown.
    """
    formats = list(dict.fromkeys(name.strip().lower().removeprefix(".") for name in formats))
    for name in formats:
        if name not in FIGURE_FORMS:
            raise UnknownName("format", name, FIGURE_FORMS)
    if not formats:
        raise RunError(f"name a format: {', '.join(FIGURE_FORMS)}")
    given = opened(run)
    folder = Path(output) if output is not None else given.path / "figures"
    if is_comparison(given.path):
        records = {label: records_of(member, label) for label, member in given.runs.items()}
        charts = [(folder, chart) for chart in charts_of_comparison(given, list(records.values()))]
        for label, member in given.runs.items():
            charts += [(folder / member.path.name, chart) for chart in charts_of(member, records[label])]
    else:
        charts = [(folder, chart) for chart in charts_of(given, records_of(given))]
    if not charts:
        raise RunError(f"the run at {given.path} has no round yet, so there is nothing to draw")
    files = []
    for index, (where, chart) in enumerate(charts):
        on_progress("prepare", {"what": f"drawing {where / chart.name} ({index + 1} of {len(charts)})"})
        make_folder(where)
        files += write(chart, where, formats)
    on_progress("done", {"folder": str(folder)})
    return files
