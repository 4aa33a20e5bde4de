"""The search for the folder of a data set, and the errors about missing files."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgefl.arrays import Integers
from edgefl.errors import DataError

SHOWN = 6
"""Maximum names of a folder's content in an error: a choice, so that the error stays one line or two."""

SPLITS = {"train": 0, "training": 0, "val": 1, "valid": 1, "validation": 1, "dev": 1, "test": 2, "testing": 2}
"""Official split (0 train, 1 validation, 2 test) by its name in folders and tables."""


@dataclass(frozen=True)
class PublishedFile:
    """A file, or the files, that a data set is published as."""

    name: str
    """Its name, or a pattern of names (``train2017/*.jpg``), in the folder or in a subfolder."""
    holds: str
    """What is in it, as published: 10,000 pictures."""
    size: int | None = None
    """Bytes, where they are known."""

    def __str__(self) -> str:
        size = "" if self.size is None else f", {self.size:,} bytes"
        return f"{self.name} ({self.holds}{size})"


Form = tuple[PublishedFile, ...]
"""All files of one of the forms in which a set is published."""


@dataclass(frozen=True)
class PublishedDataset:
    """A published data set, and the search for its folder."""

    name: str
    """What it is called here."""
    files: str
    """A description of its files."""
    source: str
    """Where to get them."""
    beside: str = ""
    """The set whose folder it may share."""
    more: tuple[str, ...] = ()
    """Folders of other programs that may have it."""
    file: bool = False
    """Whether a single file may be given instead of a folder."""
    test: str = "published"
    """Where its test samples come from."""
    licence: str = "not stated"
    """Under which terms it is published."""
    forms: tuple[Form, ...] = ()
    """The files of each form that is read."""

    def places(self, given: Path | None) -> list[Path]:
        """The folder ``given``, else $EDGEFL_DATA/<name>, data/<name> and ``more``, with those of ``beside``."""
        if given is not None:
            return [given.expanduser()]
        data_root = os.environ.get("EDGEFL_DATA")
        names = dict.fromkeys(filter(None, (self.name, self.beside)))
        roots = [*([Path(data_root).expanduser()] if data_root else []), Path("data")]
        return [folder / name for folder in roots for name in names] + [Path(path).expanduser() for path in self.more]

    def closest_form(self, folder: Path | None) -> tuple[Form, Form]:
        """The files of the form of which a folder (None: there is none) lacks least, and those that it lacks.

        Only names are looked at.  Both are empty for a set of the user's own, and the second for a single file.
        """
        if folder is None or folder.is_file() or not self.forms:
            form = next(iter(self.forms), ())
            return form, form if folder is None else ()
        inside = list(folders(folder))
        found = {
            file for file in set().union(*self.forms) if any(next(place.glob(file.name), None) for place in inside)
        }
        lacking = [tuple(file for file in form if file not in found) for form in self.forms]
        least = min(range(len(lacking)), key=lambda index: len(lacking[index]))
        return self.forms[least], lacking[least]

    def find(self, given: Path | None) -> Path:
        """The first of ``places`` that exists.  Raises DataError with every folder tried."""
        paths = self.places(given)
        for path in paths:
            if self._fits(path):
                return path.absolute()
        as_published = f"; as published: {', '.join(map(str, self.forms[0]))}" if self.forms else ""
        if given is not None:
            problem = "is a file, not a folder" if paths[0].is_file() else "is not there"
            raise DataError(
                f"{self.name}: {paths[0]}, which data.folders names, {problem}; it should hold {self.files}"
                + as_published
            )
        tried = ", ".join(str(path.absolute()) for path in paths)
        unset = "" if os.environ.get("EDGEFL_DATA") else " (EDGEFL_DATA is not set)"
        raise DataError(
            f"{self.name} is read from a local folder with {self.files}{as_published}; found none: tried {tried}"
            f"{unset}; name one with data.folders: {{{self.name}: PATH}}, or get it from {self.source}"
        )

    def _fits(self, path: Path) -> bool:
        return path.is_dir() or (self.file and path.is_file())

    def content_error(self, folder: Path, reason: str = "") -> DataError:
        """The error about a folder with other content: what is missing in it, or the reason."""
        lacking = ", ".join(map(str, self.closest_form(folder)[1]))
        detail = "".join(f": {part}" for part in (reason, f"missing {lacking}" if lacking else "") if part)
        return DataError(
            f"{self.name}: looked for {self.files} in {folder} and its subfolders; found {content(folder)}{detail}; "
            f"get it from {self.source}"
        )


def content(folder: Path) -> str:
    """The first few names in a folder, for an error."""
    if folder.is_file():
        return f"the file {folder.name}"
    names = sorted(path.name + ("/" if path.is_dir() else "") for path in folder.iterdir())
    remaining = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return (", ".join(names[:SHOWN]) + remaining) if names else "nothing"


def folders(folder: Path, depth: int = 2) -> Iterator[Path]:
    """The folder, then its subfolders level by level, sorted by name, without hidden ones."""
    level = [folder]
    for depth_left in range(depth, -1, -1):
        yield from level
        if depth_left:
            level = sorted(
                Path(entry.path)
                for parent in level
                for entry in os.scandir(parent)
                if entry.is_dir() and not entry.name.startswith(".")
            )


def folder_with_all(folder: Path, *names: str) -> Path | None:
    """The first of the folder and its subfolders with files of all these names; None if there is none."""
    return next(
        (subfolder for subfolder in folders(folder) if all(map(os.path.isfile, _inside(subfolder, names)))), None
    )


def _inside(folder: Path, names: Iterable[str]) -> Iterator[str]:
    """Their paths in the folder, for ``os.path.isfile``, which is false of names that no file can have."""
    return (os.path.join(folder, name) for name in names)


def folder_with_most(folder: Path, names: Iterable[str]) -> Path | None:
    """The folder or subfolder with the most of these files (the first among equals); None if none has any."""
    wanted = list(names)
    counts = [(sum(map(os.path.isfile, _inside(subfolder, wanted))), subfolder) for subfolder in folders(folder, 3)]
    best = max(counts, key=lambda pair: pair[0])
    return best[1] if best[0] else None


def report_left_out(on_message: Callable[[str], None], name: str, counts: dict[str, int], of: int) -> None:
    """Report the samples left out, by reason, if there are any; ``of`` is the total."""
    reasons = [f"{count:,} {reason}" for reason, count in counts.items() if count]
    if reasons:
        on_message(f"{name}: of {of:,} samples, left out: {', '.join(reasons)}")


def check_names(names: Iterable[str], what: str, where: Path, on_message: Callable[[str], None]) -> None:
    """Raise DataError if two names are one in another Unicode form, or one number (0, 0.0); report those that differ in
    case or spaces only.  ``what`` they are: label, client."""
    alike: dict[str, str] = {}
    similar: dict[str, str] = {}
    for name in sorted(set(names)):
        form = unicodedata.normalize("NFC", name)
        form = form.rstrip("0").rstrip(".") if re.fullmatch(r"-?\d+\.\d*", form) else form
        if (other := alike.setdefault(form, name)) != name:
            raise DataError(
                f"{where}: the {what}s {other!a} and {name!a} are two, but seem to be one in another Unicode form or "
                "another form of a number; write them alike"
            )
        if (other := similar.setdefault(" ".join(form.casefold().split()), name)) != name:
            on_message(f"{where.name}: the {what}s {other!r} and {name!r} count as two; they differ in case or spaces")


def report_copies(on_message: Callable[[str], None], name: str, group: Integers, official: Integers) -> None:
    """Report samples of given validation and test sets whose ``group`` [n] stands in the training set too."""
    held_out = group[official > 0]
    if copies := int(np.isin(held_out, group[official == 0]).sum()):
        on_message(
            f"{name}: {copies:,} of {len(held_out):,} validation and test samples have the picture, text or group of a "
            "training sample, so that their scores are too good"
        )
