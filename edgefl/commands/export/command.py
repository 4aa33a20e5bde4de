"""``edgefl export``: a run's records as CSV, Parquet, TensorBoard's event files or an MLflow store, and its towers as
folders of transformers and PEFT."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from edgefl.commands.explain.answer import Exported
from edgefl.drawing.text_tables import csv_cell
from edgefl.errors import MethodError, RunError, install_hint, suggestion
from edgefl.files import replacing
from edgefl.records.rounds import PLANNED, Round
from edgefl.records.run import FinalSummary
from edgefl.runs import Run, is_comparison, read_run
from edgefl.runs.changed import raise_run_errors
from edgefl.runs.contents import read_bytes, read_json
from edgefl.runs.durable import writing
from edgefl.runs.progress import OnProgress, silent
from edgefl.runs.trackers import MLFLOW, MlflowLog, TensorBoardLog, check_tracker
from edgefl.setup.progress import public_command

if TYPE_CHECKING:
    import pandas as pd

FORMS = ("csv", "parquet", "tensorboard", "mlflow", "transformers", "peft")
EXPORTED = ("rounds", "clients", "client_evaluations", "client_metrics", "eligibility", "scratch", "host")
"""Tables that are exported, if they have columns; ``runs`` with a row for each run is beside them."""


@public_command
def export(
    run: str | os.PathLike[str], to: str, out: str | os.PathLike[str], *, on_progress: OnProgress = silent
) -> Exported:
    """Write the records of a run or of a comparison, or a run's trained towers, for another program.

    ``csv`` and ``parquet`` write a file for each table of ``read_run`` and one, ``runs``, with a row for each run.
    ``tensorboard`` writes a folder of event files for each run, ``mlflow`` the SQLite store ``mlflow.db``.  A number is
    called as in the records, with its split in the name of a metric: ``metrics.test.image.accuracy``.  MLflow takes
    neither @ nor brackets, so ``r@1`` is ``r_at_1`` there.

    ``transformers`` writes each tower of a finished run that is one of transformers as a folder for
    ``from_pretrained``, ``peft`` its LoRA as an adapter of PEFT: in ``out`` if the run has one such tower, else in
    ``out/KIND/MODALITY``.  What a task adds to a tower is in ``read_out.safetensors``.

    Args:
        run: The folder of a run or of a comparison, finished or not; for towers of one finished run.
        to: ``csv``, ``parquet``, ``tensorboard``, ``mlflow``, ``transformers`` or ``peft``.
        out: The folder to write to; it may exist.  Files of an earlier export are replaced.
        on_progress: Called with the name of an event and its facts.

    Returns:
        ``to``, ``out``, ``files`` and ``runs`` (labels).

    Raises:
        RunError: There is no such run, its records were changed, a package is missing, or the folder can't be written.
        MethodError: No tower is one of transformers, or PEFT can't hold what the run trained.
    """
    if to not in FORMS:
        allowed, hint = f"; allowed: {', '.join(FORMS)}", suggestion(to, FORMS)
        raise RunError(f"can't export to {to!r}{allowed}{hint if hint != allowed else ''}")
    folder, target = read_run(run), Path(out)
    if target.exists() and not target.is_dir():
        raise RunError(f"can't write to {target}: it is a file, not a folder")
    if to == "parquet":
        _check_pyarrow()
    check_tracker(to, target)
    members = folder.runs if is_comparison(folder.path) else {folder.name: folder}
    if not members:
        raise RunError(f"no run of {folder.path} has begun")
    with writing(target):
        target.mkdir(parents=True, exist_ok=True)
    on_progress("prepare", {"what": f"exporting {folder.path} to {to}"})
    if to in ("csv", "parquet"):
        files = _tables(folder, members, target, to)
    elif to in ("transformers", "peft"):
        files = _towers(folder, target, to)
    else:
        files = [_log(member, label, target, to, len(members) > 1) for label, member in members.items()]
    on_progress("done", {"folder": str(target)})
    return Exported(to=to, output=str(target), files=list(dict.fromkeys(files)), runs=list(members))


@raise_run_errors
def _towers(run: Run, target: Path, to: str) -> list[str]:
    """Write the towers of a finished run that are models of transformers; return the files."""
    from safetensors import SafetensorError

    from edgefl.models import peft_folder

    weights, moved = run.weights(), run.scenario.get("pretrain") or {}
    if run.scenario.get("adapter", {}).get("weights"):  # whose layers may have changed what doesn't train here
        moved = dict.fromkeys(run.scenario["model"], True)
    found = [
        (kind, modality)
        for kind, model in run.models.items()
        for modality, tower in model["towers"].items()
        if peft_folder.of_transformers(tower) is not None
    ]
    if not found:
        names = {str(t.get("tower", m)) for model in run.models.values() for m, t in model["towers"].items()}
        raise MethodError(f"no tower of {run.path} is a model of transformers: it has {', '.join(sorted(names))}")
    files = []
    for kind, modality in found:
        if to == "peft" and any(name.startswith(f"export/{kind}/") for name in weights):
            raise MethodError(
                f"the method of {run.path} gives {kind} other weights than its adapter's: --to transformers"
            )
        place = target if len(found) == 1 else target / kind / modality
        model: Any = run.model(kind, merged=to == "transformers")
        with writing(place):
            place.mkdir(parents=True, exist_ok=True)
            with TemporaryDirectory(dir=place, prefix=".partial-") as partial:
                try:
                    if to == "transformers":
                        peft_folder.write_model(model, modality, Path(partial))
                    else:
                        source = None if moved.get(modality) else run.scenario["model"][modality].get("weights")
                        peft_folder.write_adapter(model, modality, Path(partial), source)
                    if modality == "text" and run.tokenizer_path is not None:
                        tokens = run.models[kind]["towers"][modality]["tokens"]
                        _write_tokenizer(run.tokenizer_path, tokens, Path(partial))
                except SafetensorError as error:  # of a full disk, too
                    raise RunError(f"can't write {place}: {error}") from error
                for file in sorted(path for path in Path(partial).rglob("*") if path.is_file()):
                    final = place / file.relative_to(partial)
                    final.parent.mkdir(exist_ok=True)
                    os.replace(file, final)
                    files.append(str(final))
    return files


def _write_tokenizer(file: Path, tokens: int, folder: Path) -> None:
    """Write a run's tokenizer for ``AutoTokenizer``, which with ``padding="max_length"`` gives what the run read."""
    padding = read_json(file).get("padding") or {}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": tokens}
    (folder / "tokenizer.json").write_bytes(read_bytes(file))
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"pad_token": padding.get("pad_token")}))


def _check_pyarrow() -> None:
    from importlib.util import find_spec

    if find_spec("pyarrow") is None:
        raise RunError(f"parquet needs a package that isn't installed: pip install pyarrow (or, {install_hint('hub')})")


@raise_run_errors
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


@raise_run_errors
def _log(run: Run, label: str, target: Path, to: str, several: bool) -> str:
    """Write one run's log; return its file or folder."""
    scenario = run.scenario
    if to == "tensorboard":
        place = target / run.path.name if several else target
        log: TensorBoardLog | MlflowLog = TensorBoardLog(place, label, scenario)
    else:
        place = target / MLFLOW
        log = MlflowLog(place, label, scenario)
    for record in run.read(Round):
        log.round(record)
    log.close(finished=run.is_finished)
    return str(place)
