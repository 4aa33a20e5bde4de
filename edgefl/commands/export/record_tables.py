"""A run's records as CSV or Parquet: a file for each table of ``read_run``, and one with a row for each run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from edgefl.drawing.text_tables import csv_cell
from edgefl.errors import RunError, install_hint
from edgefl.files import replacing
from edgefl.records.rounds import PLANNED
from edgefl.records.run import FinalSummary
from edgefl.runs import Run
from edgefl.runs.changed import raise_run_errors
from edgefl.runs.durable import writing

if TYPE_CHECKING:
    import pandas as pd

EXPORTED = ("rounds", "clients", "client_evaluations", "client_metrics", "eligibility", "scratch", "host", "nodes")
"""Tables that are exported, if they have columns, and ``nodes`` if it has rows; ``runs`` with a row for each run is
beside them."""


def check_pyarrow() -> None:
    """Raise RunError, with the command that installs it, if Parquet's package is missing."""
    from importlib.util import find_spec

    if find_spec("pyarrow") is None:
        raise RunError(f"parquet needs a package that isn't installed: pip install pyarrow (or, {install_hint('hub')})")


@raise_run_errors
def write_tables(folder: Run, members: Mapping[str, Run], target: Path, form: str) -> list[str]:
    """Write each table that has columns; return the files."""
    import pandas as pd

    frames = {name: getattr(folder, name) for name in EXPORTED}
    frames["runs"] = pd.DataFrame([_summary(label, member) for label, member in members.items()])
    with writing(target):
        target.mkdir(parents=True, exist_ok=True)
    files = []
    for name, frame in frames.items():
        path = target / f"{name}.{form}"
        if not len(frame.columns) or (name == "nodes" and frame.empty):
            continue
        frame = _flat_cells(frame)
        with writing(path), replacing(path, durable=False) as partial:
            if form == "csv":
                _for_spreadsheets(frame).to_csv(partial, index=False, errors="backslashreplace")
            else:
                frame.to_parquet(partial, index=False)
        files.append(str(path))
    return files


def _summary(label: str, run: Run) -> dict[str, object]:
    """One run as a row: its names, whether it is finished, its final metrics and totals."""
    settings, result = run.settings, run.read_file(FinalSummary)
    row: dict[str, object] = {
        "run": label, "folder": str(run.path), "finished": run.is_finished, "method": settings.method.name,
        "schedule": settings.schedule.name, "seed": settings.seed, "rounds": None, "virtual_seconds": None,
    }  # fmt: skip
    if result is None:
        return row
    row |= {"rounds": result.rounds, "virtual_seconds": result.virtual_seconds}
    row |= {"metrics_split": settings.evaluation.final}
    if (reported := settings.evaluation.reported) is not None:
        row["metrics_best_of_last_rounds"] = reported.last
    row |= {f"metrics.{kind}.{name}": value for kind, of in result.metrics.items() for name, value in of.items()}
    totals = result.totals.to_data().items()
    return row | {f"{'planned' if name in PLANNED else 'totals'}.{name}": value for name, value in totals}


def _flat_cells(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with lists and mappings in cells as JSON text."""
    for name in frame.columns:
        if frame[name].map(lambda cell: isinstance(cell, list | dict)).any():
            frame[name] = frame[name].map(lambda cell: json.dumps(cell) if isinstance(cell, list | dict) else cell)
    return frame


def _for_spreadsheets(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame without formulas: neither a name nor the title of a column is one."""
    import pandas as pd

    return pd.DataFrame(
        {csv_cell(name): column if column.dtype.kind in "biufmM" else
         pd.Series([csv_cell(cell) for cell in column], index=frame.index, dtype=object)
         for name, column in frame.items()}
    )  # fmt: skip
