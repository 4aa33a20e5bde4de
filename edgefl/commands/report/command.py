"""``edgefl report`` as it is typed, and ``edgefl.report`` as it is called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from edgefl.console.derived import OnProgress, command, option, silent
from edgefl.console.options import Place, RunFolder

if TYPE_CHECKING:
    from edgefl.commands.report.answer import RunReport


@command(
    "edgefl report runs/mine", "edgefl report runs/mine -o mine.html",
    answer="edgefl.commands.report.answer:RunReport", forms={"table": "edgefl.commands.report.answer:file_of"},
)  # fmt: skip
def report(
    run: RunFolder,
    out: Annotated[
        Place | None, option("The page, .html; default: report.html in the run's folder.", "FILE", "--out", "-o")
    ] = None,
    *,
    on_progress: OnProgress = silent,
) -> RunReport:
    """A run as one HTML page.

    It opens without a network: figures, tables and what draws them are in it.

    Returns:
        ``file``, the page.

    Raises:
        RunError: There is no run in the folder, its files can't be read, or the file can't be written.

    Examples:
        >>> import edgefl
        >>> edgefl.report("runs/small", "small.html").file
        'small.html'
    """
    from pathlib import Path

    from edgefl.commands.report.answer import RunReport
    from edgefl.drawing.figures import PAGE_FORMS, check_figure
    from edgefl.drawing.page import write_page
    from edgefl.runs import read_run

    opened = read_run(run)
    path = Path(out) if out is not None else opened.path / "report.html"
    check_figure(path, PAGE_FORMS)
    on_progress("prepare", {"what": f"drawing {opened.path}"})
    write_page(opened, path)
    on_progress("done", {"folder": str(path)})
    return RunReport(file=str(path))
