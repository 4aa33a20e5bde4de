"""Folders of runs and of comparisons: what is in them, whether a run has begun, and a new folder for one."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count, takewhile
from pathlib import Path
from typing import Any, Literal

from edgefl import RUN_FORMAT
from edgefl.errors import RunError
from edgefl.files import replacing
from edgefl.records.clients import FlightRecord, ScoredClient
from edgefl.records.eligibility import VerdictRecord
from edgefl.records.host import HostWork, NodeFlight, Scratch
from edgefl.records.reading import decode
from edgefl.records.record import Record, part_of
from edgefl.records.rounds import Round
from edgefl.records.run import Comparison, ComparisonMember, Environment
from edgefl.runs import digests
from edgefl.runs.contents import (
    BEST_FILE,
    CHECKPOINTS,
    KEPT,
    UNFINISHED,
    check_contents,
    check_folder_name,
    read_bytes,
    read_json,
)
from edgefl.runs.durable import LOCK, Lock, lock_folder, replace_file, writing
from edgefl.runs.kept import is_file

Table = Literal["rounds", "clients", "scored", "eligibility", "scratch", "host", "nodes"]
RECORDS: Mapping[type[Record], Table] = {
    Round: "rounds", FlightRecord: "clients", ScoredClient: "scored", VerdictRecord: "eligibility", Scratch: "scratch",
    HostWork: "host", NodeFlight: "nodes",
}  # fmt: skip
"""The table of each class of record."""
TABLES = tuple(RECORDS.values())
OF_EVERY_RUN = tuple(table for table in TABLES if table != "nodes")
"""The tables that every run has, with records or without; only a run on real devices has the other."""
FIRST = ("scenario.yaml", "environment.json", "models.json")

NEXT_FILE = "best-next.safetensors"
"""The name of the best weights' file before a checkpoint counts it."""
FILES = (
    *FIRST, "begun.json", "evaluation.json", "preprocessing.json", "tokenizer.json", "partition.png", "curves.png",
    "pretrained.safetensors", "pretrained.json", *(f"{table}.jsonl" for table in TABLES),
    "weights.safetensors", BEST_FILE,
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
    new = None if shared else new_folder(path, scenario_yaml.encode())
    path = _shared_folder(path) if new is None else new.path
    files = _comparison_files(scenario_yaml, runs, {})
    for name, content in files.items():
        if not shared:
            replace_file(path / name, content)
        elif not (path / name).exists():  # each process has a temporary file of its own
            with writing(path / name), replacing(path / name) as partial:
                partial.write_bytes(content)
    for name, content in files.items():
        if (path / name).read_bytes() != content:
            raise RunError(f"{path} holds the comparison of another scenario ({name} differs); choose another folder")
    if new is not None:
        new.close()
    return comparison(path)


def change_comparison(path: Path, *, scenario_yaml: str, runs: Mapping[str, Mapping[str, object]]) -> dict[str, Path]:
    """Give a comparison another scenario and these runs, as ``create_comparison`` does; known ones keep their folder.

    Raises RunError if it can't be written.
    """
    known = {label: folder.name for label, folder in comparison(path).items()}
    for name, content in _comparison_files(scenario_yaml, runs, known).items():
        replace_file(path / name, content)
    return comparison(path)


def _comparison_files(
    scenario_yaml: str, runs: Mapping[str, Mapping[str, object]], known: Mapping[str, str]
) -> dict[str, bytes]:
    """What a comparison of these runs begins with; ``known`` has folders by label."""
    folders: dict[str, str] = {label: known[label] for label in runs if label in known}
    for label in runs:
        if label in folders:
            continue
        slug = re.sub(r"[^A-Za-z0-9._=-]+", "-", label).strip("-.") or "run"
        folder, number = slug, 2
        while folder.lower() in {taken.lower() for taken in folders.values()}:
            folder, number = f"{slug}-{number}", number + 1
        folders[label] = folder
    entries = [ComparisonMember(label=label, folder=folders[label], sets=sets) for label, sets in runs.items()]
    return {"scenario.yaml": scenario_yaml.encode(), "compare.json": json_text(Comparison(runs=entries).to_data())}


def _shared_folder(path: str | os.PathLike[str]) -> Path:
    """The folder of a comparison that other processes may have begun.  Raises RunError if it holds anything else."""
    path = Path(path)
    if not is_comparison(path):
        if path.is_dir() and any(_whole_name(each.name) not in _BEGINNING for each in path.iterdir()):
            _check_new(path)
        _make_folders(path)
    return path


_BEGINNING = ("scenario.yaml", "compare.json", LOCK)


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


def _members(path: Path) -> Sequence[ComparisonMember]:
    file = path / "compare.json"
    return decode(Comparison, read_bytes(file), file).runs


def comparison_sets(path: str | os.PathLike[str]) -> dict[str, dict[str, object]]:
    """``{label: {path: value}}`` of a comparison: the fields that it varies.  Raises RunError as ``comparison``."""
    comparison(path)
    return {run.label: dict(run.sets) for run in _members(Path(path))}


class NewFolder:
    """A folder that this process alone begins a run or a comparison in, until it is closed.

    ``made`` are the folders that were made for it, the innermost first.
    """

    def __init__(self, path: Path, made: Sequence[Path], lock: Lock | None):
        self.path, self.made, self._lock = path, made, lock
        self._closed = False

    def clear(self) -> None:
        """Remove what a run made in the folder, and the folders that were made for it; other files stay.

        After ``close`` a folder that another process writes stays as it is.
        """
        if self._closed:
            try:
                self._lock = lock_folder(self.path)
            except RunError:
                return
        with suppress(OSError):  # what can't be removed stays
            _remove_files(self.path)
            (self.path / LOCK).unlink(missing_ok=True)  # only now: who comes later finds the folder empty or not at all
            for path in self.made:
                path.rmdir()
        self.close()

    def close(self) -> None:
        """Let other processes write the folder; a second call does nothing."""
        self._closed = True
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def new_folder(path: str | os.PathLike[str], scenario_yaml: bytes | None = None) -> NewFolder:
    """Make the folder of a new run and lock it.  One that is empty is taken, or where a start was cut short.

    Such a start may have been of the same ``scenario_yaml`` only; None: of any.  Raises RunError if the folder holds
    anything else, if another process writes it, or if it can't be written; existing files aren't changed.
    """
    path = Path(path)
    if os.path.lexists(path) and not path.is_dir():
        what = "a link that leads to no folder" if path.is_symlink() else "a file"
        raise RunError(f"{path} is {what}; a run needs a new or empty folder")
    for last in (*[False] * 9, True):
        made = _make_folders(path)
        try:
            _check_new(path, scenario_yaml)  # before anything is written there
            lock = lock_folder(path)
            break
        except RunError:  # or is it gone, with the run of another process that failed?
            if last or path.is_dir():
                raise
    try:
        _check_new(path, scenario_yaml)  # another process may have begun a run, and ended, in between
    except RunError:
        if lock is not None:
            lock.close()
        raise
    return NewFolder(path, made, lock)


def free_folder(name: str) -> NewFolder:
    """Make ``runs/<name>``, or the first of ``runs/<name>-2``, ... that doesn't exist, and lock it.

    Slashes and control characters of the name become ``_``, so that no name leads elsewhere.  No other process gets the
    same folder.  Raises RunError if it can't be made.
    """
    runs = Path("runs")
    name = re.sub(r"[/\\\x00-\x1f]|^\.+$", "_", name)
    for number in count(1):
        folder = runs / (name if number == 1 else f"{name}-{number}")
        made = _make_folders(runs)
        try:
            with _beginning(folder):
                folder.mkdir()
        except FileExistsError:
            continue
        try:
            return NewFolder(folder, (folder, *made), lock_folder(folder))
        except RunError:
            if not (folder / LOCK).exists():
                raise
            continue  # a process that was given this folder was faster
    raise AssertionError


@contextmanager
def _beginning(path: Path) -> Iterator[None]:
    """Turn an OSError of the body into a RunError, but for FileExistsError."""
    try:
        yield
    except FileExistsError:
        raise
    except OSError as error:
        raise RunError(f"can't write a run to {path}: {error.strerror or error}") from error


def _make_folders(path: Path) -> list[Path]:
    """Make a folder and those above it that aren't there; returns those made here, the innermost first."""
    made: list[Path] = []
    with _beginning(path):
        for _ in range(10):  # another process may remove the folders that it made for a run that it doesn't begin
            missing = list(takewhile(lambda each: not each.is_dir(), (path, *path.parents)))
            try:
                for each in reversed(missing):
                    with suppress(FileExistsError):  # another process made it
                        each.mkdir()
                        made.insert(0, each)
            except FileNotFoundError:
                continue
            if path.is_dir():
                return made
        path.mkdir()
    return made


def _check_new(path: Path, scenario_yaml: bytes | None = None) -> None:
    """Raise RunError unless a folder is empty, or holds no more than a start of this scenario that was cut short."""
    with _beginning(path):
        if not any(path.iterdir()):
            return
        if is_run(path) or is_comparison(path):
            check_formats(path)
            raise RunError(f"{path} already holds a run; continue it with --resume {path}, or choose another folder")
        if not is_cut_short(path):
            raise RunError(f"{path} already holds files; choose another folder")
        scenario = path / "scenario.yaml"
        if scenario_yaml is not None and scenario.is_file() and read_bytes(scenario) != scenario_yaml:
            raise RunError(
                f"{path} holds the start of a run with another scenario.yaml; begin that run with --resume {path}, or "
                "choose another folder"
            )


def is_cut_short(path: Path) -> bool:
    """Whether a folder holds what a start has written that ended before the run or the comparison had begun."""
    if not (path / LOCK).is_file() or is_run(path) or is_comparison(path):
        return False
    with os.scandir(path) as entries:
        return all(entry.is_file(follow_symlinks=False) and _of_a_start(entry) for entry in entries)


def _of_a_start(entry: os.DirEntry[str]) -> bool:
    name = _whole_name(entry.name)
    if name in (LOCK, *FIRST, "compare.json"):
        return True
    try:
        return name.removesuffix(".jsonl") in TABLES and not entry.stat().st_size
    except FileNotFoundError:  # a start is under way
        return True


_PARTIAL = re.compile(r"\.partial-(?:[0-9a-f]{32}-)?(.+)")


_OF_SAFETENSORS = ".tmp" + 6 * "[0-9A-Za-z]"
"""What safetensors writes a file to before it takes its name."""


def _whole_name(name: str) -> str:
    """The name that a temporary file (``edgefl.files.replacing``) gets in the end; any other name as it is."""
    found = _PARTIAL.fullmatch(name)
    return name if found is None else found[1]


_OURS = {*FILES, "result.json", "files.json", "compare.json", NEXT_FILE, "mlflow.db"}
_FOLDERS = (CHECKPOINTS, KEPT, UNFINISHED)
_OUR_FOLDERS = {*_FOLDERS, "tensorboard", "mlflow-artifacts"}
"""The files and folders that runs make, in their folder or in their comparison's."""


def _remove_files(path: Path) -> None:
    """Remove what a run or the runs of a comparison made in a folder.  Raises OSError."""
    for member in comparison(path).values() if is_comparison(path) else ():
        if member.is_dir():
            _remove_files(member)
            (member / LOCK).unlink(missing_ok=True)
            with suppress(OSError):  # somebody put a file there
                member.rmdir()
    for entry in path.iterdir():
        if _whole_name(entry.name) in (_OUR_FOLDERS if entry.is_dir() else _OURS):
            _remove(entry)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _leftovers(path: Path) -> list[Path]:
    """What a killed process left half written in a run's folder.

    Temporary files of others aren't among them: ``edgefl report`` may be writing a page beside the run.
    """
    folders = [folder for name in _FOLDERS if (folder := path / name).is_dir()]
    return [
        *(entry for entry in path.glob(".partial-*") if _whole_name(entry.name) in _OURS),
        *(entry for folder in folders for entry in folder.glob(".partial-*")),
        *(entry for folder in (path, *folders) for entry in folder.glob(_OF_SAFETENSORS)),
    ]


def drop_leftovers(path: Path) -> None:
    """Remove what a killed process left half written in a run's folder, which the caller has locked.

    Raises RunError if it can't be removed.
    """
    with writing(path):
        for entry in _leftovers(path):
            _remove(entry)


def tidy(path: Path) -> None:
    """``drop_leftovers`` of a finished run, which stays as it is where another process holds it or it is read-only."""
    if _leftovers(path):
        with suppress(RunError):
            lock = lock_folder(path)
            drop_leftovers(path)
            if lock is not None:
                lock.close()


def is_run(path: str | os.PathLike[str]) -> bool:
    """Whether this folder holds a run that ``RunDirectory.open`` can open."""
    return all((Path(path) / name).is_file() for name in FIRST)


def check_run_folder(path: Path) -> None:
    """Raise RunError unless ``path`` is the folder of one run in this version's format; the message says why not."""
    if path.is_file() or (not path.exists() and path.suffix in (".yaml", ".yml")):
        raise RunError(f"{path} isn't the folder of a run: run a scenario first, with edgefl run")
    if not path.exists():
        near = Path("runs") / path
        raise RunError(f"there is no run at {path}" + (f"; did you mean {near}?" if near.is_dir() else ""))
    if path.is_dir():
        check_contents(path)
    if is_comparison(path):
        labels = ", ".join(folder.name for folder in comparison(path).values())
        raise RunError(f"{path} holds several runs ({labels}); give the folder of one of them")
    if path.is_dir() and is_cut_short(path):
        how = (
            f"--resume {path} begins it" if (path / "scenario.yaml").is_file() else "start it anew, in the same folder"
        )
        raise RunError(f"{path} holds no run yet: its start was cut short; {how}")
    if path.is_dir() and not any(path.iterdir()):
        raise RunError(f"{path} is empty: it holds no run")
    missing = [name for name in FIRST if not (path / name).is_file()]
    if missing:
        raise RunError(f"{path} is not the folder of a run: it has no {' and no '.join(missing)}")
    environment = path / "environment.json"
    written = decode(_Format, read_bytes(environment), environment).run_format
    if written != RUN_FORMAT:
        way = "update edgefl" if written > RUN_FORMAT else "run its scenario again in another folder"
        raise RunError(
            f"{path} has run format {written}, and this version reads format {RUN_FORMAT}: {way}, or use the version "
            f"that wrote it, edgefl {read_json(environment).get('edgefl')!r:.40}"
        )


@part_of(Environment)
class _Format(Record):
    run_format: int


def check_formats(path: Path) -> None:
    """Raise RunError if a run in this folder, or in this comparison, has another format than this version's."""
    for folder in filter(is_run, comparison(path).values() if is_comparison(path) else (path,)):
        check_run_folder(folder)


def finished_differences(path: Path) -> list[str]:
    """How the files of a finished run differ from those that it finished with, a sentence for each file.

    Raises RunError if ``files.json`` can't be read.
    """
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
