"""``edgefl export``: a run's records as CSV, Parquet, TensorBoard's event files or an MLflow store."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgefl.commands.history.trackers import MLFLOW, MlflowLog, TensorBoardLog, check_installed
from edgefl.commands.progress import OnProgress, public_command, silent
from edgefl.errors import RunError, install_hint, suggestion
from edgefl.files import replacing
from edgefl.report.facts import damage
from edgefl.runs import Run, is_comparison, read_run
from edgefl.runs.durable import writing

if TYPE_CHECKING:
    import pandas as pd

FORMS = ("csv", "parquet", "tensorboard", "mlflow")
EXPORTED = ("rounds", "clients", "client_evaluations", "client_metrics", "eligibility", "scratch", "host")
"""Tables that are exported, if they have columns; ``runs`` with a row for each run is beside them."""


@public_command
def export(
    run: str | os.PathLike[str],
    to: str,
    output: str | os.PathLike[str],
    *,
    on_progress: OnProgress = silent,
) -> dict[str, Any]:
    """Write the records of a run or of a comparison for another program.

    ``csv`` and ``parquet`` write a file for each table of ``read_run`` and one, ``runs``, with a row for each run.
    ``tensorboard`` writes a folder of event files for each run, ``mlflow`` the SQLite store ``mlflow.db``.  A metric
    is called as in the records; MLflow takes neither @ nor brackets, so ``r@1`` is ``r_at_1`` there.

    Args:
        run: The folder of a run or of a comparison, finished or not.
        to: ``csv``, ``parquet``, ``tensorboard`` or ``mlflow``.
        output: The folder to write to; it may exist.  Files of an earlier export are replaced.
        on_progress: Called with the name of an event and its facts.

    Returns:
        Plain data: ``to``, ``output``, ``files`` and ``runs`` (labels).

    Raises:
        RunError: There is no such run, its records were changed, a package is missing, or the folder can't be written.
    """
    if to not in FORMS:
        allowed, hint = f"; allowed: {', '.join(FORMS)}", suggestion(to, FORMS)
        raise RunError(f"can't export to {to!r}{allowed}{hint if hint != allowed else ''}")
    folder, target = read_run(run), Path(output)
    if target.exists() and not target.is_dir():
        raise RunError(f"can't write to {target}: it is a file, not a folder")
    if to == "parquet":
        _check_pyarrow()
    check_installed(to)
    members = folder.runs if is_comparison(folder.path) else {str(folder.scenario.get("name")): folder}
    if not members:
        raise RunError(f"no run of {folder.path} has begun")
    with writing(target):
        target.mkdir(parents=True, exist_ok=True)
    on_progress("prepare", {"what": f"exporting {folder.path} to {to}"})
    try:
        if to in ("csv", "parquet"):
            files = _tables(folder, members, target, to)
        else:
            files = [_log(member, label, target, to, len(members) > 1) for label, member in members.items()]
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise RunError(damage(next(iter(members.values())), error)) from error
    on_progress("done", {"folder": str(target)})
    return {"to": to, "output": str(target), "files": list(dict.fromkeys(files)), "runs": list(members)}


def _check_pyarrow() -> None:
    from importlib.util import find_spec

    if find_spec("pyarrow") is None:
        raise RunError(f"parquet needs a package that isn't installed: pip install pyarrow (or, {install_hint('hub')})")


def _tables(folder: Run, members: Mapping[str, Run], target: Path, form: str) -> list[str]:
    """Write each table that has rows; return the files."""
    import pandas as pd

    frames = {name: getattr(folder, name) for name in EXPORTED}
    frames["runs"] = pd.DataFrame([_summary(label, member) for label, member in members.items()])
    files = []
    for name, frame in frames.items():
        path = target / f"{name}.{form}"
        if not len(frame.columns):
            continue
        frame = _flat_cells(frame)
        with writing(path), replacing(path, durable=False) as partial:
            frame.to_csv(partial, index=False) if form == "csv" else frame.to_parquet(partial, index=False)
        files.append(str(path))
    return files


def _summary(label: str, run: Run) -> dict[str, Any]:
    """One run as a row: its names, whether it is finished, its final metrics and totals."""
    row: dict[str, Any] = {"run": label, "folder": str(run.path), "finished": run.finished}
    for name in ("method", "schedule"):
        row[name] = run.scenario[name]["name"]
    row["seed"] = run.scenario["seed"]
    result = run.result
    for name in ("rounds", "virtual_seconds"):
        row[name] = result.get(name)
    row |= {f"metrics.{k}.{n}": value for k, each in result.get("metrics", {}).items() for n, value in each.items()}
    return row | {f"totals.{name}": value for name, value in result.get("totals", {}).items()}


def _flat_cells(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with lists and mappings in cells as JSON text."""
    for name in frame.columns:
        if frame[name].map(lambda cell: isinstance(cell, list | dict)).any():
            frame[name] = frame[name].map(lambda cell: json.dumps(cell) if isinstance(cell, list | dict) else cell)
    return frame


def _log(run: Run, label: str, target: Path, to: str, several: bool) -> str:
    """Write one run's log; return its file or folder."""
    scenario = run.scenario
    if to == "tensorboard":
        place = target / run.path.name if several else target
        log: TensorBoardLog | MlflowLog = TensorBoardLog(place, label, scenario)
    else:
        place = target / MLFLOW
        log = MlflowLog(place, label, scenario)
    for record in run.each("rounds"):
        log.round(record)
    log.close(finished=run.finished)
    return str(place)
