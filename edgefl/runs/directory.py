"""A run's folder while it is written: create, append, checkpoint, finish; and open again to resume.

::

    scenario.yaml        resolved: every default is there
    environment.json     versions and hardware
    models.json          {kind: description for edgefl.models.build}
    evaluation.json      samples of each split of the server by client kind, and what guessing reaches
    tokenizer.json       if text is trained
    rounds.jsonl clients.jsonl eligibility.jsonl
    host.jsonl           wall time, memory of the process, process ids: outside every equality
    checkpoints/round-000012/{state.safetensors,state.json}
    weights.safetensors  {address: tensor}, at the end
    result.json          last of all: its presence means that the run is finished
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
    """The one writer of a run's folder.  Made by ``create`` or ``open``; usable in a ``with`` statement."""

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
        """Begin a run in a folder that doesn't exist yet or is empty.

        Raises RunError if there is something in it or it can't be written; nothing that was there is changed.
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
        """Open a run to continue it: ``latest`` says from where, ``rewind`` takes the records back to there.

        Raises RunError if it isn't a run's folder, or another process is writing it.
        """
        path = Path(path)
        check_run_folder(path)
        run = cls(path)
        for table in TABLES:
            tables.mend(run.table(table))
        return run

    def table(self, name: Table) -> Path:
        """The file of a table."""
        if name not in TABLES:
            raise ValueError(f"unknown table {name!r}; allowed: {', '.join(TABLES)}")
        return self.path / f"{name}.jsonl"

    @property
    def tokenizer_path(self) -> Path:
        """Where the tokenizer is kept, if there is one."""
        return self.path / "tokenizer.json"

    @property
    def scenario_yaml(self) -> str:
        """The resolved scenario as it was given to ``create``."""
        return (self.path / "scenario.yaml").read_text(encoding="utf-8")

    @property
    def models(self) -> dict[str, Any]:
        """``{kind: description}`` as given to ``create``."""
        models: dict[str, Any] = json.loads((self.path / "models.json").read_bytes())
        return models

    def write_evaluation(
        self, samples: Mapping[str, Mapping[str, int]], chance: Mapping[str, Mapping[str, Mapping[str, float]]]
    ) -> None:
        """Write what the server evaluates on, so that a run can be shown without its data.

        ``samples`` is ``{split: {kind: samples}}``, ``chance`` ``{split: {kind: {metric: what guessing reaches}}}``.
        Raises RunError if it can't be written.
        """
        replace_file(self.path / "evaluation.json", _text(tables.plain({"samples": samples, "chance": chance})))

    @property
    def finished(self) -> bool:
        """Whether ``finish`` was done."""
        return (self.path / "result.json").exists()

    def append(self, table: Table, records: Iterable[Mapping[str, Any]]) -> None:
        """Add records, each with its ``round``; numpy values are welcome, infinite ones become null.

        Raises RunError if it can't be written, ValueError without a round, TypeError for what JSON doesn't have.
        """
        tables.append(self.table(table), records)

    def append_lines(self, table: Table, lines: Sequence[bytes]) -> None:
        """Add records that are text already: each JSON with its ``round`` and the end of the line.

        Raises RunError if it can't be written.
        """
        tables.append_lines(self.table(table), lines)

    def checkpoint(self, round: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Keep everything that the next round needs; ``state`` is plain JSON (a tuple comes back as a list).

        The records so far reach the disk first: a checkpoint never promises rounds whose records are lost.
        Raises RunError if it can't be written, TypeError for a state that JSON would change.
        """
        for table in TABLES:
            with writing(self.table(table)):
                self.table(table).touch()
                sync(self.table(table))
        checkpoints.write(self.path / "checkpoints", round, tensors, state)

    def latest(self) -> tuple[int, dict[str, Tensor], dict[str, Any]] | None:
        """``(round, tensors, state)`` of the newest whole checkpoint (tensors on the CPU), or None without any.

        A damaged one is passed over with a RuntimeWarning.  Raises RunError if all are damaged.
        """
        return checkpoints.latest(self.path / "checkpoints")

    def rewind(self, round: int) -> None:
        """Make the run what it was after ``round``: later records, half-written lines, later checkpoints, the end.

        Raises RunError for a table that is damaged elsewhere than at its end.
        """
        with writing(self.path):
            (self.path / "result.json").unlink(missing_ok=True)
            (self.path / "weights.safetensors").unlink(missing_ok=True)
        for table in TABLES:
            tables.rewind(self.table(table), round)
        checkpoints.drop_after(self.path / "checkpoints", round)

    def finish(self, tensors: Mapping[str, Tensor], result: Mapping[str, Any]) -> None:
        """Write the final weights, ``{address: tensor}``, then the result.  Raises RunError, TypeError."""
        text = _text(tables.plain(result))
        # the file must hold every address, so that other tools can read it: what is shared is written out
        weights = {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}
        checkpoints.write_tensors(self.path / "weights.safetensors", weights)
        with writing(self.path):
            for table in TABLES:
                sync(self.table(table))
        replace_file(self.path / "result.json", text)

    def close(self) -> None:
        """Let another process write this run."""
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

    ``runs`` is ``{label: what it sets}``, in the order to show.  Returns ``{label: folder}``; the folders are for
    ``RunDirectory.create``.  Raises RunError as that does.
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
    listed = [{"label": label, "folder": folders[label], "sets": plain} for label, plain in runs.items()]
    replace_file(path / "compare.json", _text({"format": 1, "runs": listed}))
    return {label: path / folder for label, folder in folders.items()}


def is_comparison(path: str | os.PathLike[str]) -> bool:
    """Whether this folder is a comparison rather than one run."""
    return (Path(path) / "compare.json").is_file()


def comparison(path: str | os.PathLike[str]) -> dict[str, Path]:
    """``{label: folder}`` of a comparison; a folder may not have been begun yet.  Raises RunError."""
    try:
        listed = json.loads((Path(path) / "compare.json").read_bytes())["runs"]
        return {run["label"]: Path(path) / run["folder"] for run in listed}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path} is not a comparison's folder: compare.json can't be read ({error})") from error


def new_folder(path: str | os.PathLike[str]) -> Path:
    """Make a folder for a new run; an empty one will do.  Raises RunError and changes nothing if it's taken."""
    path = Path(path)
    try:
        if path.exists() and not path.is_dir():
            raise RunError(f"{path} is a file; a run needs a folder that is new or empty")
        if path.is_dir() and any(path.iterdir()):
            known = begun(path) or is_comparison(path)
            hint = f"continue it with --resume {path}, or choose another folder" if known else "choose another folder"
            raise RunError(f"{path} already holds {'a run' if known else 'files'}; {hint}")
        path.mkdir(parents=True, exist_ok=True)
        # a folder may exist and still refuse: better said now than after the first round
        probe = path / ".partial-probe"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise RunError(f"can't write a run to {path}: {error.strerror or error}") from error
    return path


def begun(path: str | os.PathLike[str]) -> bool:
    """Whether a run was begun here and can be opened."""
    return all((Path(path) / name).is_file() for name in _FIRST)


def discard_unbegun(path: str | os.PathLike[str]) -> None:
    """Clear a folder whose ``create`` was cut short, so that it can be created again; anything else is left alone."""
    path = Path(path)
    ours = {*_FIRST, "writer.lock", *(f"{table}.jsonl" for table in TABLES)}
    if path.is_dir() and not begun(path):
        entries = list(path.iterdir())
        if all(entry.name in ours or entry.name.startswith(".partial-") for entry in entries):
            with writing(path):
                shutil.rmtree(path)


def check_run_folder(path: Path) -> None:
    """Raise RunError, saying why, unless ``path`` is one run's folder."""
    if not path.exists():
        raise RunError(f"there is no run at {path}")
    if is_comparison(path):
        labels = ", ".join(folder.name for folder in comparison(path).values())
        raise RunError(f"{path} holds several runs ({labels}); name one of them")
    missing = [name for name in _FIRST if not (path / name).is_file()]
    if missing:
        raise RunError(f"{path} is not a run's folder: it has no {' and no '.join(missing)}")


def _text(value: Any) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()


def _lock(path: Path) -> IO[bytes] | None:
    """Keep a second writer out.  The system lets go when this process ends, however it ends."""
    try:
        import fcntl
    except ImportError:  # not on this system
        return None
    with writing(path):
        file = (path / "writer.lock").open("ab")
    try:
        # of the kind that a forked worker doesn't inherit: one that outlives a killed run must not block its resume
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        if error.errno in (errno.EACCES, errno.EAGAIN):
            raise RunError(f"another process is writing the run at {path}") from error
        return None  # a file system without locks
    return file
