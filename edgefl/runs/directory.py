"""Writing a run's folder: create, append records, write checkpoints, finish; and open it again to resume.

::

    scenario.yaml        the resolved scenario, with all defaults
    environment.json     versions and hardware
    models.json          {kind: description for edgefl.models.build}
    evaluation.json      samples of each server split by client kind, and the chance level of each metric
    tokenizer.json       if text is trained
    rounds.jsonl clients.jsonl eligibility.jsonl
    host.jsonl           wall time, memory and ids of processes: differ between equal runs
    checkpoints/round-000012/{state.safetensors,state.json}
    weights.safetensors  {address: tensor}, written at the end
    result.json          written last: if it exists, the run is finished
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal

from torch import Tensor

from edgefl.errors import RunError
from edgefl.files import sync
from edgefl.runs import checkpoints, tables
from edgefl.runs.durable import replace_file, writing

Table = Literal["rounds", "clients", "eligibility", "host"]
TABLES: tuple[Table, ...] = ("rounds", "clients", "eligibility", "host")
_FIRST = ("scenario.yaml", "environment.json", "models.json")


class RunDirectory:
    """Writes a run's folder; only one process at a time may have it open.

    ``create`` and ``open`` return one.  It is a context manager that closes itself.
    """

    def __init__(self, path: Path):
        self.path = path
        self._lock = _lock(path)

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        *,
        scenario_yaml: str,
        environment: Mapping[str, Any],
        models: Mapping[str, Any],
    ) -> RunDirectory:
        """Begin a run in a folder that doesn't exist or is empty.

        Raises RunError if the folder isn't empty or can't be written; existing files aren't changed.
        """
        path = new_folder(path)
        run = cls(path)
        replace_file(path / "scenario.yaml", scenario_yaml.encode())
        replace_file(path / "environment.json", _text(environment))
        for table in TABLES:
            with writing(path):
                run.table(table).touch()
        replace_file(path / "models.json", _text(models))
        return run

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> RunDirectory:
        """Open a run to continue it: ``latest`` returns the newest checkpoint, ``rewind`` drops later records.

        Raises RunError if it isn't a run's folder, or if another process is writing it.
        """
        path = Path(path)
        check_run_folder(path)
        run = cls(path)
        for table in TABLES:
            tables.mend(run.table(table))
        return run

    def table(self, name: Table) -> Path:
        """The path of a table's file.  Raises ValueError for an unknown table."""
        if name not in TABLES:
            raise ValueError(f"unknown table {name!r}; allowed: {', '.join(TABLES)}")
        return self.path / f"{name}.jsonl"

    @property
    def tokenizer_path(self) -> Path:
        """The path of the tokenizer's file, which may not exist."""
        return self.path / "tokenizer.json"

    @property
    def scenario_yaml(self) -> str:
        """The resolved scenario as YAML text, as given to ``create``."""
        return (self.path / "scenario.yaml").read_text(encoding="utf-8")

    @property
    def models(self) -> dict[str, Any]:
        """``{kind: description}`` as given to ``create``."""
        models: dict[str, Any] = json.loads((self.path / "models.json").read_bytes())
        return models

    def write_evaluation(
        self, samples: Mapping[str, Mapping[str, int]], chance: Mapping[str, Mapping[str, Mapping[str, float]]]
    ) -> None:
        """Write the number of evaluation samples and the chance levels, which tables show when the data are absent.

        ``samples`` is ``{split: {kind: samples}}``, ``chance`` is ``{split: {kind: {metric: chance level}}}``.
        Raises RunError if the file can't be written.
        """
        replace_file(self.path / "evaluation.json", _text(tables.plain({"samples": samples, "chance": chance})))

    @property
    def finished(self) -> bool:
        """Whether ``finish`` has completed."""
        return (self.path / "result.json").exists()

    def append(self, table: Table, records: Iterable[Mapping[str, Any]]) -> None:
        """Append records to a table.  Each needs a ``round``; values may be numpy's, infinite ones become null.

        Raises RunError if the file can't be written, ValueError for a record without a round, and TypeError for a value
        that JSON can't represent.
        """
        tables.append(self.table(table), records)

    def append_lines(self, table: Table, lines: Sequence[bytes]) -> None:
        """Append records that are encoded already: each a line of JSON with its ``round`` and a final newline.

        Raises RunError if the file can't be written.
        """
        tables.append_lines(self.table(table), lines)

    def checkpoint(self, round: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Write a checkpoint with everything that the next round needs.

        ``state`` is JSON data; tuples are read back as lists.  Records are synced to the disk first, so that no record
        of a checkpoint's rounds can be lost.  Raises RunError if the checkpoint can't be written, TypeError for a state
        that JSON can't represent.
        """
        for table in TABLES:
            with writing(self.table(table)):
                self.table(table).touch()
                sync(self.table(table))
        checkpoints.write(self.path / "checkpoints", round, tensors, state)

    def latest(self) -> tuple[int, dict[str, Tensor], dict[str, Any]] | None:
        """``(round, tensors, state)`` of the newest undamaged checkpoint, or None if there is none.

        Tensors are on the CPU.  Damaged checkpoints are skipped with a RuntimeWarning.  Raises RunError if all are
        damaged.
        """
        return checkpoints.latest(self.path / "checkpoints")

    def rewind(self, round: int) -> None:
        """Restore the folder to its state after ``round``.

        Removes later records, incomplete last lines, later checkpoints, the final weights and the result.  Raises
        RunError for a table that is damaged before its last line.
        """
        with writing(self.path):
            (self.path / "result.json").unlink(missing_ok=True)
            (self.path / "weights.safetensors").unlink(missing_ok=True)
        for table in TABLES:
            tables.rewind(self.table(table), round)
        checkpoints.drop_after(self.path / "checkpoints", round)

    def finish(self, tensors: Mapping[str, Tensor], result: Mapping[str, Any]) -> None:
        """Write the final weights, ``{address: tensor}``, then the result, which marks the run as finished.

        Raises RunError if a file can't be written, TypeError for a result that JSON can't represent.
        """
        text = _text(tables.plain(result))
        # clones prevent aliases: the file must hold every address, so that other tools can read it
        weights = {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}
        checkpoints.write_tensors(self.path / "weights.safetensors", weights)
        with writing(self.path):
            for table in TABLES:
                sync(self.table(table))
        replace_file(self.path / "result.json", text)

    def close(self) -> None:
        """Release the lock, so that another process can open the run."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_lock", None) is not None:
            self.close()


def create_comparison(
    path: str | os.PathLike[str], *, scenario_yaml: str, runs: Mapping[str, Mapping[str, Any]]
) -> dict[str, Path]:
    """Begin a comparison: a folder with ``compare.json`` and one run folder per label.

    ``runs`` is ``{label: overrides}``, in display order.  Returns ``{label: folder}``; pass the folders to
    ``RunDirectory.create``.  Raises RunError if the folder isn't empty or can't be written.
    """
    path = new_folder(path)
    folders: dict[str, str] = {}
    for label in runs:
        slug = re.sub(r"[^A-Za-z0-9._=-]+", "-", label).strip("-.") or "run"
        folder, number = slug, 2
        while folder.lower() in {taken.lower() for taken in folders.values()}:
            folder, number = f"{slug}-{number}", number + 1
        folders[label] = folder
    replace_file(path / "scenario.yaml", scenario_yaml.encode())
    entries = [{"label": label, "folder": folders[label], "sets": overrides} for label, overrides in runs.items()]
    replace_file(path / "compare.json", _text({"format": 1, "runs": entries}))
    return {label: path / folder for label, folder in folders.items()}


def is_comparison(path: str | os.PathLike[str]) -> bool:
    """Whether this folder is a comparison of several runs."""
    return (Path(path) / "compare.json").is_file()


def comparison(path: str | os.PathLike[str]) -> dict[str, Path]:
    """``{label: folder}`` of a comparison; folders of runs that haven't begun may not exist.

    Raises RunError if ``compare.json`` can't be read.
    """
    try:
        entries = json.loads((Path(path) / "compare.json").read_bytes())["runs"]
        return {run["label"]: Path(path) / run["folder"] for run in entries}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path} is not the folder of a comparison: can't read compare.json ({error})") from error


def new_folder(path: str | os.PathLike[str]) -> Path:
    """Create the folder of a new run; an empty folder is accepted.

    Raises RunError if the folder isn't empty or can't be written; existing files aren't changed.
    """
    path = Path(path)
    try:
        if path.exists() and not path.is_dir():
            raise RunError(f"{path} is a file; a run needs a new or empty folder")
        if path.is_dir() and any(path.iterdir()):
            is_run = begun(path) or is_comparison(path)
            hint = f"continue it with --resume {path}, or choose another folder" if is_run else "choose another folder"
            raise RunError(f"{path} already holds {'a run' if is_run else 'files'}; {hint}")
        path.mkdir(parents=True, exist_ok=True)
        # write a file now, so that a read-only folder is reported before the first round
        probe = path / ".partial-probe"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise RunError(f"can't write a run to {path}: {error.strerror or error}") from error
    return path


def begun(path: str | os.PathLike[str]) -> bool:
    """Whether this folder holds a run that ``RunDirectory.open`` can open."""
    return all((Path(path) / name).is_file() for name in _FIRST)


def discard_unbegun(path: str | os.PathLike[str]) -> None:
    """Remove the folder of a run whose ``create`` was interrupted, so that it can be created again.

    Folders that hold a run or any other file are left unchanged.  Raises RunError if the folder can't be removed.
    """
    path = Path(path)
    run_files = {*_FIRST, "writer.lock", *(f"{table}.jsonl" for table in TABLES)}
    if path.is_dir() and not begun(path):
        entries = list(path.iterdir())
        if all(entry.name in run_files or entry.name.startswith(".partial-") for entry in entries):
            with writing(path):
                shutil.rmtree(path)


def check_run_folder(path: Path) -> None:
    """Raise RunError unless ``path`` is the folder of one run; the message gives the reason."""
    if not path.exists():
        raise RunError(f"there is no run at {path}")
    if is_comparison(path):
        labels = ", ".join(folder.name for folder in comparison(path).values())
        raise RunError(f"{path} holds several runs ({labels}); give the folder of one of them")
    missing = [name for name in _FIRST if not (path / name).is_file()]
    if missing:
        raise RunError(f"{path} is not the folder of a run: it has no {' and no '.join(missing)}")


def _text(value: Any) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()


def _lock(path: Path) -> IO[bytes] | None:
    """Lock the run against a second writer.  The system releases the lock when this process ends.

    Returns the locked file, or None if the system or file system has no locks.  Raises RunError if another process
    holds the lock.
    """
    try:
        import fcntl
    except ImportError:  # Windows has no fcntl
        return None
    with writing(path):
        file = (path / "writer.lock").open("ab")
    try:
        # Forked workers don't inherit a POSIX record lock (lockf).  A worker that outlives a killed run therefore can't
        # block its resume.
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        if error.errno in (errno.EACCES, errno.EAGAIN):
            raise RunError(f"another process is writing the run at {path}") from error
        return None  # a file system without locks
    return file
