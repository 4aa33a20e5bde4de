"""A run's rounds as TensorBoard's event files, or in an MLflow store."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from edgefl.records.rounds import Round
from edgefl.runs import Run
from edgefl.runs.changed import raise_run_errors
from edgefl.runs.trackers import MLFLOW, MlflowLog, TensorBoardLog


def write_logs(members: Mapping[str, Run], target: Path, tracker: str) -> list[str]:
    """Write the log of each run by its label; return the folders of event files, or the store that the runs share."""
    places = dict[str, None]()
    for label, run in members.items():
        folder = target / run.path.name if tracker == "tensorboard" and len(members) > 1 else target
        places[_write_log(run, label, folder, tracker)] = None
    return [*places]


@raise_run_errors
def _write_log(run: Run, label: str, folder: Path, tracker: str) -> str:
    log: TensorBoardLog | MlflowLog
    if tracker == "tensorboard":
        place, log = folder, TensorBoardLog(folder, label, run.scenario)
    else:
        place, log = folder / MLFLOW, MlflowLog(folder / MLFLOW, label, run.scenario)
    for record in run.read(Round):
        log.round(record)
    log.close(finished=run.is_finished)
    return str(place)


def hint(tracker: str, target: Path) -> str:
    """How the logs in this folder are shown."""
    how = {"tensorboard": f"tensorboard --logdir {target}",
           "mlflow": f"mlflow ui --backend-store-uri sqlite:///{target / MLFLOW}"}  # fmt: skip
    return f"show it with: {how[tracker]}"
