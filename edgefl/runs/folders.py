"""Folders of runs and of comparisons: what is in them, whether a run has begun, and a new folder for one."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from edgefl.errors import RunError
from edgefl.files import replacing
from edgefl.records import UNSET, Record, part_of
from edgefl.records.clients import Flight, ScoredClient
from edgefl.records.eligibility import Verdict
from edgefl.records.host import HostWork, Scratch
from edgefl.records.reading import decode
from edgefl.records.rounds import Round
from edgefl.records.run import Comparison, Environment, Member
from edgefl.runs import digests
from edgefl.runs.contents import check_contents, check_folder_name, read_bytes, read_json
from edgefl.runs.durable import replace_file, writing
from edgefl.runs.kept import is_file

Table = Literal["rounds", "clients", "scored", "eligibility", "scratch", "host"]
RECORDS: Mapping[type[Record], Table] = {
    Round: "rounds", Flight: "clients", ScoredClient: "scored", Verdict: "eligibility", Scratch: "scratch",
    HostWork: "host",
}  # fmt: skip
"""The table of each class of record."""
TABLES = tuple(RECORDS.values())
FIRST = ("scenario.yaml", "environment.json", "models.json")

FORMAT = 5
"""Version of a run's folder, ``run_format`` in environment.json; folders without it have version 1.

It rises when a file, a field's meaning or a scenario's default changes, so that no run is continued as another.  Runs
of CONTINUED formats go on in their own: what a run of format 4 has scored on clients stays in clients.jsonl.
"""

CONTINUED = (4, 5)

FILES = (
    *FIRST, "evaluation.json", "preprocessing.json", "tokenizer.json", "partition.png", "curves.png",
    "pretrained.safetensors", "pretrained.json", *(f"{table}.jsonl" for table in TABLES),
    "weights.safetensors", "best.safetensors",
)  # fmt: skip
"""Files that a finished run's ``files.json`` covers, beside ``result.json`` and those of what clients keep."""


def create_comparison(
    path: str | os.PathLike[str], *, scenario_yaml: str, runs: Mapping[str, Mapping[str, object]], shared: bool = False
) -> dict[str, Path]:
    """Begin a comparison: a folder with ``compare.json`` and one run folder per label.

    ``runs`` is ``{label: overrides}``, in display order.  Returns ``{label: folder}``; pass the folders to
    ``RunDirectory.create``.  With ``shared`` other processes may begin the same comparison, before or at the same
    time.  Raises RunError if the folder holds anything else or can't be written.
    """
    path = _shared_folder(path) if shared else new_folder(path)
    folders: dict[str, str] = {}
    for label in runs:
        slug = re.sub(r"[^A-Za-z0-9._=-]+", "-", label).strip("-.") or "run"
        folder, number = slug, 2
        while folder.lower() in {taken.lower() for taken in folders.values()}:
            folder, number = f"{slug}-{number}", number + 1
        folders[label] = folder
    entries = [Member(label=label, folder=folders[label], sets=overrides) for label, overrides in runs.items()]
    text = json_text(Comparison(format=1, runs=entries).as_json())
    files = {"scenario.yaml": scenario_yaml.encode(), "compare.json": text}
    for name, content in files.items():
        if not shared:
            replace_file(path / name, content)
        elif not (path / name).exists():  # each process has a temporary file of its own
            with writing(path / name), replacing(path / name) as partial:
                partial.write_bytes(content)
    for name, content in files.items():
        if (path / name).read_bytes() != content:
            raise RunError(f"{path} holds the comparison of another scenario ({name} differs); choose another folder")
    return {label: path / folder for label, folder in folders.items()}


def _shared_folder(path: str | os.PathLike[str]) -> Path:
    """The folder of a comparison that other processes may have begun.  Raises RunError if it holds anything else."""
    path = Path(path)
    if is_comparison(path):
        return path
    others = [p for p in path.iterdir() if p.name not in _BEGINNING and not p.name.startswith(".partial-")] if (
        path.is_dir()
    ) else []  # fmt: skip
    if others or not path.is_dir():
        return new_folder(path)
    return path


_BEGINNING = ("scenario.yaml", "compare.json")


def is_comparison(path: str | os.PathLike[str]) -> bool:
    """Whether this folder is a comparison of several runs."""
    return (Path(path) / "compare.json").is_file()


def comparison(path: str | os.PathLike[str]) -> dict[str, Path]:
    """``{label: folder}`` of a comparison; folders of runs that haven't begun may not exist.

    Raises RunError if ``compare.json`` can't be read, or if a folder isn't directly in the comparison's.
    """
    path = Path(path)
    check_contents(path)
    return {run.label: path / check_folder_name(run.folder, path) for run in _members(path)}


def _members(path: Path) -> Sequence[Member]:
    file = path / "compare.json"
    return decode(Comparison, read_bytes(file), file).runs


def comparison_sets(path: str | os.PathLike[str]) -> dict[str, dict[str, object]]:
    """``{label: {path: value}}`` of a comparison: the fields that it varies.  Raises RunError as ``comparison``."""
    comparison(path)
    return {run.label: {} if run.sets is UNSET else dict(run.sets) for run in _members(Path(path))}


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


def free_folder(name: str) -> Path:
    """``runs/<name>``, or the first of ``runs/<name>-2``, ... that doesn't exist."""
    folder = Path("runs") / name
    number = 2
    while folder.exists():
        folder = Path("runs") / f"{name}-{number}"
        number += 1
    return folder


def begun(path: str | os.PathLike[str]) -> bool:
    """Whether this folder holds a run that ``RunDirectory.open`` can open."""
    return all((Path(path) / name).is_file() for name in FIRST)


def discard_unbegun(path: str | os.PathLike[str]) -> None:
    """Remove the folder of a run whose ``create`` was interrupted, so that it can be created again.

    Folders that hold a run or any other file are left unchanged.  Raises RunError if the folder can't be removed.
    """
    path = Path(path)
    run_files = {*FIRST, "writer.lock", *(f"{table}.jsonl" for table in TABLES)}
    if path.is_dir() and not begun(path):
        entries = list(path.iterdir())
        if all(entry.name in run_files or entry.name.startswith(".partial-") for entry in entries):
            with writing(path):
                shutil.rmtree(path)


def check_run_folder(path: Path) -> None:
    """Raise RunError unless ``path`` is the folder of one run; the message gives the reason."""
    if not path.exists():
        near = Path("runs") / path
        raise RunError(f"there is no run at {path}" + (f"; did you mean {near}?" if near.is_dir() else ""))
    if path.is_dir():
        check_contents(path)
    if is_comparison(path):
        labels = ", ".join(folder.name for folder in comparison(path).values())
        raise RunError(f"{path} holds several runs ({labels}); give the folder of one of them")
    missing = [name for name in FIRST if not (path / name).is_file()]
    if missing:
        raise RunError(f"{path} is not the folder of a run: it has no {' and no '.join(missing)}")


def check_format(path: Path, *, resume: bool = False) -> None:
    """Raise RunError for the folder of a newer edgefl or, to ``resume``, of another format."""
    written = run_format(path)
    if written <= FORMAT and (written in CONTINUED or not resume):
        return
    edgefl = read_json(path / "environment.json").get("edgefl")
    who = f"{path} has run format {written}, written by edgefl {edgefl!r:.40}; this version"
    if written > FORMAT:
        raise RunError(f"{who} reads formats 1 to {FORMAT}")
    only = f"continues runs of formats {' and '.join(map(str, CONTINUED))} only"
    raise RunError(f"{who} {only}: continue it with that version, or run its scenario.yaml anew")


@part_of(Environment)
class _Format(Record):
    run_format: int = 1


def run_format(path: Path) -> int:
    """The format of a run's folder.  Raises RunError if it can't be read."""
    file = path / "environment.json"
    return decode(_Format, read_bytes(file), file).run_format


def finished_differences(path: Path) -> list[str]:
    """How the files of a finished run differ from those that it finished with, a sentence for each file.

    Folders of format 1 have no digests, and no differences.  Raises RunError if ``files.json`` can't be read.
    """
    if run_format(path) == 1:
        return []
    if not (path / "files.json").is_file():
        return ["files.json is missing"]
    written = read_json(path / "files.json")
    try:
        files = {n: digest for n, digest in written["files"].items() if n in (*FILES, "result.json") or is_file(n)}
        return digests.file_differences(path, files)
    except (TypeError, AttributeError, KeyError, OSError) as error:
        raise RunError(f"can't compare the files of {path} with files.json: {error}") from error


def check_finished(path: Path) -> None:
    """Raise RunError if files of a finished run are missing or have changed."""
    if differences := finished_differences(path):
        raise RunError(
            f"the run at {path} is finished, but {'; '.join(differences)}: restore its files from a copy, or remove "
            "result.json to go on from its last checkpoint"
        )


def json_text(value: Any) -> bytes:
    """``value`` as the content of a JSON file."""
    return (json.dumps(value, indent=2) + "\n").encode()
