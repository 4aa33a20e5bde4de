"""``edgefl report`` and ``edgefl figures``: a run or a comparison as one HTML page, and as figures for a paper."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from edgefl.drawing.charts import charts_of, charts_of_comparison, groups_of, records_of
from edgefl.drawing.charts.picture import make_folder, write
from edgefl.drawing.figures import FIGURE_FORMS, check_figure
from edgefl.drawing.page import REPORT_FORMS, write_page
from edgefl.errors import RunError, UnknownName
from edgefl.runs import Run, is_comparison, read_run
from edgefl.runs.progress import OnProgress, silent
from edgefl.setup.progress import public_command


@public_command
def write_report(
    run: str | os.PathLike[str] | Run, out: str | os.PathLike[str] | None = None, *, on_progress: OnProgress = silent
) -> Path:
    """Write a run or a comparison, finished or not, as one HTML page that opens without a network.

    Args:
        run: The run, or its folder.
        out: The file, ending in .html; by default ``report.html`` in the run's folder.
        on_progress: Called with the name of an event and its facts.

    Returns:
        The file.

    Raises:
        RunError: There is no run in the folder, its files can't be read, or the file can't be written.
    """
    opened = opened_run(run)
    path = Path(out) if out is not None else opened.path / "report.html"
    check_figure(path, REPORT_FORMS)
    on_progress("prepare", {"what": f"drawing {opened.path}"})
    write_page(opened, path)
    on_progress("done", {"folder": str(path)})
    return path


def opened_run(run: str | os.PathLike[str] | Run) -> Run:
    """The run as it is now.  Raises RunError where there is no run."""
    if isinstance(run, Run):
        return read_run(run.path)
    path = Path(run)
    if path.is_file() or (not path.exists() and path.suffix in (".yaml", ".yml")):
        raise RunError(f"{path} isn't the folder of a run: run a scenario first, with edgefl run")
    return read_run(path)


@public_command
def write_figures(
    run: str | os.PathLike[str] | Run,
    out: str | os.PathLike[str] | None = None,
    *,
    formats: Sequence[str] = ("pdf",),
    only: Sequence[str] = (),
    on_progress: OnProgress = silent,
) -> list[Path]:
    """Draw the figures of a run or of a comparison for a paper, and write the numbers of each as CSV beside it.

    Args:
        run: The run, finished or not, or its folder.
        out: The folder; by default ``figures`` in the run's folder.  Figures of a comparison are in it, those of
            each of its runs in a folder of the run's name.
        formats: Some of ``"pdf"``, ``"svg"``, ``"png"``.
        only: Names of figures, such as ``"fleet"``, ``"runs-costs"``; by default all are drawn.
        on_progress: Called with the name of an event and its facts.

    Returns:
        The files, CSV files included.

    Raises:
        RunError: There is no run in the folder, its files can't be read, it has no round yet, or the folder can't be
            written.
        UnknownName: A format is unknown, or the run has no figure of a name.
    """
    formats = list(dict.fromkeys(name.strip().lower().removeprefix(".") for name in formats))
    for name in formats:
        if name not in FIGURE_FORMS:
            raise UnknownName("format", name, FIGURE_FORMS)
    if not formats:
        raise RunError(f"name a format: {', '.join(FIGURE_FORMS)}")
    opened = opened_run(run)
    folder = Path(out) if out is not None else opened.path / "figures"
    if is_comparison(opened.path):
        records = {label: records_of(member, label) for label, member in opened.runs.items()}
        begun = groups_of(opened, [each for each in records.values() if each.rounds])
        charts = [(folder, chart) for chart in charts_of_comparison(begun)]
        for label, member in opened.runs.items():
            charts += [(folder / member.path.name, chart) for chart in charts_of(member, records[label])]
    else:
        charts = [(folder, chart) for chart in charts_of(opened, records_of(opened))]
    if not charts:
        raise RunError(f"the run at {opened.path} has no round yet, so there is nothing to draw")
    for name in only:
        if name not in (names := {chart.name: chart for _, chart in charts}):
            raise UnknownName("figure", name, names)
    charts = [(where, chart) for where, chart in charts if not only or chart.name in only]
    files = []
    for index, (where, chart) in enumerate(charts):
        on_progress("prepare", {"what": f"drawing {where / chart.name} ({index + 1} of {len(charts)})"})
        make_folder(where)
        files += write(chart, where, formats)
    on_progress("done", {"folder": str(folder)})
    return files
