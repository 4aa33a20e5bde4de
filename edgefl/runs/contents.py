"""What a run's folder may hold, and reading it without trust: the folder may come from somebody else.

A run's folder holds plain files and folders only.  A link, a pipe or a device in it is refused before any file is
opened, so that reading or resuming a run touches nothing outside its folder.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

from edgefl.errors import RunError
from edgefl.files import read_regular

CHECKPOINTS, KEPT, UNFINISHED = "checkpoints", "kept", "unfinished"
"""The only folders in a run's folder that edgefl reads and writes files in: its checkpoints, what clients keep, and the
round under way."""
BEST_FILE = "best.safetensors"
"""The weights of the best round, if the run follows a metric."""
PREPROCESSING = "preprocessing.json"
"""The file that says how raw samples become the inputs of each kind's model."""

_SUFFIXES = (".json", ".jsonl", ".yaml", ".safetensors", ".png", ".lock", ".bin")


def check_contents(folder: Path) -> None:
    """Raise RunError if ``folder`` or the folders in it hold anything but plain files and folders."""
    for path in (folder, *(each for name in (CHECKPOINTS, KEPT, UNFINISHED) for each in _folders(folder / name))):
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    _check_entry(Path(entry.path), entry.stat(follow_symlinks=False).st_mode)
                    if entry.is_dir(follow_symlinks=False) and Path(entry.path).suffix in _SUFFIXES:
                        raise RunError(f"{entry.path} is a folder where edgefl has a file; remove it")
        except FileNotFoundError:  # the run is being written: this checkpoint is gone
            continue
        except OSError as error:
            raise RunError(f"can't read {path}: {error.strerror or error}") from error


def _folders(folder: Path) -> list[Path]:
    """A folder and those in it, without following links; none if it isn't there."""
    if not folder.is_dir() or folder.is_symlink():
        return []
    with os.scandir(folder) as entries:
        return [folder, *(Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False))]


def _check_entry(path: Path, mode: int) -> None:
    if stat.S_ISLNK(mode):
        try:
            target = f" to {os.readlink(path)!r}"
        except OSError:
            target = ""
        raise RunError(f"{path} is a link{target}; a run's folder may hold plain files and folders only: remove it")
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise RunError(f"{path} is neither a file nor a folder; remove it from the run's folder")


def check_folder_name(name: Any, where: Path) -> str:
    """``name`` if it names a folder directly in ``where``.

    Raises RunError for an absolute path, a path of several parts, ``..`` and a link.
    """
    plain = isinstance(name, str) and name not in ("", ".", "..") and not set(name) & set("/\\\0:")
    if not plain:
        raise RunError(f"{where / 'compare.json'} names {name!r:.80}; runs must be in folders beside compare.json")
    if (where / name).is_symlink():
        raise RunError(f"{where / name} is a link; the runs of a comparison must be plain folders")
    return str(name)


def read_bytes(path: Path) -> bytes:
    """What this file holds.  Raises RunError if it can't be read."""
    try:
        return read_regular(path)
    except OSError as error:
        raise RunError(f"can't read {path}: {error}") from error


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in this file.  Raises RunError if it can't be read or holds something else."""
    try:
        value = json.loads(read_bytes(path))
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise RunError(f"can't read {path}: {reason}") from error
    if not isinstance(value, dict):
        raise RunError(f"can't read {path}: it holds a {type(value).__name__}, not an object")
    return value


def not_following(path: str, flags: int) -> int:
    """An opener for ``open``: refuses a link as the last part of the path with OSError, where the system can."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)
