"""Runs that are finished, or have ended: read from their folders, and checked against the rules of conservation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from edgefl.runs import Run, is_comparison, is_run, read_run
from edgefl.runs.folders import check_finished, is_cut_short, tidy

if TYPE_CHECKING:
    from edgefl.console.options import Place
    from edgefl.records.verified import Verified


class CheckedRun(Run):
    """A run whose records were checked.

    ``verified`` says which rules they keep, ``is_only_checked`` whether the run was finished before.
    """

    def __init__(self, path: Path, verified: Verified, *, is_only_checked: bool):
        super().__init__(path)
        self.verified, self.is_only_checked = verified, is_only_checked


def with_check(run: Run, *, verify: bool, is_only_checked: bool = False) -> Run:
    """The run, with ``verify`` as a ``CheckedRun``."""
    if not verify:
        return run
    from edgefl.results.verify import verify as verify_records

    return CheckedRun(run.path, verify_records(run.path), is_only_checked=is_only_checked)


def finished_run(folder: Place, *, verify: bool) -> Run | None:
    """The run in this folder if it is finished, otherwise None; with ``verify`` as a ``CheckedRun``.

    Raises RunError if its files have changed, which is a broken rule with ``verify``, or the scenario of a comparison.
    """
    if not verify and is_comparison(folder):
        from edgefl.cells.resume import reopen_runs  # with torch, without which a run is read

        reopen_runs(Path(folder), ())
    if not verify and Path(folder).is_dir() and is_cut_short(Path(folder)):
        return None  # the start was cut short: resuming begins it, or says that it can't
    run = read_run(folder)
    if not run.is_finished:
        return None
    if verify:
        return with_check(run, verify=True, is_only_checked=True)
    for each in run.runs.values() or (run,):
        check_finished(each.path)
        tidy(each.path)
    if run.runs and not (run.path / "curves.png").is_file():  # interrupted after the last run had ended
        from edgefl.drawing.charts import draw_curves

        draw_curves(run)
    return run


def whole_folder(folder: str | None) -> Path | None:
    """The folder of this run, or of the comparison that it belongs to; None if there is no run yet."""
    if folder is None:
        return None
    path = Path(folder)
    if is_comparison(path.parent):
        return path.parent
    return path if is_run(path) else None
