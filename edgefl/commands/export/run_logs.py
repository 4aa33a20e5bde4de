"""A run's rounds as TensorBoard's event files, or in an MLflow store."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from edgefl.records.rounds import Round
from edgefl.runs import Run
from edgefl.runs.changed import raise_run_errors
from edgefl.runs.trackers import MLFLOW, MlflowLog, TensorBoardLog


@raise_run_errors
def write_logs(members: Mapping[str, Run], target: Path, tracker: str) -> list[str]:
    """Write the log of each run by its label; return the folders of event files, or the store that the runs share."""
    places = []
    for label, run in members.items():
        if tracker == "tensorboard":
            places.append(target / run.path.name if len(members) > 1 else target)
            log: TensorBoardLog | MlflowLog = TensorBoardLog(places[-1], label, run.scenario)
        else:
            places.append(target / MLFLOW)
            log = MlflowLog(places[-1], label, run.scenario)
        for record in run.read(Round):
            log.round(record)
        log.close(finished=run.is_finished)
    return [str(place) for place in dict.fromkeys(places)]


def hint(tracker: str, target: Path) -> str:
    """How the logs in this folder are shown."""
    how = {"tensorboard": f"tensorboard --logdir {target}",
           "mlflow": f"mlflow ui --backend-store-uri sqlite:///{target / MLFLOW}"}  # fmt: skip
    return f"show it with: {how[tracker]}"
