"""``edgefl report``: a run or a comparison as one HTML page."""

from __future__ import annotations

import os
from pathlib import Path

from edgefl.commands.progress import OnProgress, public_command, silent
from edgefl.errors import RunError
from edgefl.report import check_figure
from edgefl.report.page import REPORT_FORMS, write_page
from edgefl.runs import Run, read_run


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
    opened = opened_run(run)
    path = Path(output) if output is not None else opened.path / "report.html"
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
