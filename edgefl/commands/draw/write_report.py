"""``edgefl report``: a run or a comparison as one HTML page."""

from __future__ import annotations

import os
from pathlib import Path

from edgefl.commands.draw.opened import opened
from edgefl.commands.progress import OnProgress, public_command, silent
from edgefl.report import check_figure
from edgefl.report.page import REPORT_FORMS, write_page
from edgefl.runs import Run


@public_command
def write_report(
    run: str | os.PathLike[str] | Run,
    output: str | os.PathLike[str] | None = None,
    *,
    on_progress: OnProgress = silent,
) -> Path:
    """Write a run or a comparison, finished or not, as one HTML page that opens without a network.

    Args:
        run: The run, or its folder.
        output: The file, ending in .html; by default ``report.html`` in the run's folder.
        on_progress: Called with the name of an event and its facts.

    Returns:
        The file.

    Raises:
        RunError: There is no run in the folder, its files can't be read, or the file can't be written.
    """
    given = opened(run)
    path = Path(output) if output is not None else given.path / "report.html"
    check_figure(path, REPORT_FORMS)
    on_progress("prepare", {"what": f"drawing {given.path}"})
    write_page(given, path)
    on_progress("done", {"folder": str(path)})
    return path
