"""Where the folder of a data set is looked for, and what is said if its files aren't there."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from edgefl.errors import DataError

SHOWN = 6
"""Names of a folder's content that an error shows."""

SPLITS = {"train": 0, "training": 0, "val": 1, "valid": 1, "validation": 1, "dev": 1, "test": 2, "testing": 2}
"""The names of splits in folders and tables, as the official split that each stands for: train, validation, test."""


@dataclass(frozen=True)
class Published:
    """A data set as it is published: its ``name`` here, its ``files`` in words, and the ``source`` they come from.

    ``beside`` is the set whose folder it may share, ``more`` are places where another program may have put it; ``file``
    says that a file may stand for the folder.
    """

    name: str
    files: str
    source: str
    beside: str = ""
    more: tuple[str, ...] = ()
    file: bool = False

    def find(self, given: Path | None) -> Path:
        """The folder ``given``, else the first that is there of $EDGEFL_DATA/<name>, data/<name> and ``more``.

        Raises DataError with every place tried.
        """
        if given is not None:
            if self._fits(place := given.expanduser()):
                return place.absolute()
            wrong = "is a file, not a folder" if place.is_file() else "is not there"
            raise DataError(f"{self.name}: {place}, which data.folders names, {wrong}; it should hold {self.files}")
        root = os.environ.get("EDGEFL_DATA")
        names = dict.fromkeys(filter(None, (self.name, self.beside)))
        roots = [*([Path(root).expanduser()] if root else []), Path("data")]
        places = [each / name for each in roots for name in names] + [Path(place).expanduser() for place in self.more]
        for place in places:
            if self._fits(place):
                return place.absolute()
        tried = ", ".join(str(place.absolute()) for place in places)
        unset = "" if root else " (EDGEFL_DATA is not set)"
        raise DataError(
            f"{self.name} is read from a folder of yours with {self.files}; there is none: tried {tried}{unset}; name "
            f"another with data.folders: {{{self.name}: PATH}}, or get it from {self.source}"
        )

    def _fits(self, place: Path) -> bool:
        return place.is_dir() or (self.file and place.is_file())

    def wrong(self, folder: Path, why: str = "") -> DataError:
        """The error for a folder that holds something else."""
        more = f": {why}" if why else ""
        return DataError(
            f"{self.name}: looked for {self.files} in {folder} and its subfolders; found {content(folder)}{more}; "
            f"get it from {self.source}"
        )


def content(folder: Path) -> str:
    """The first few names in a folder, for an error."""
    if folder.is_file():
        return f"the file {folder.name}"
    names = sorted(path.name + ("/" if path.is_dir() else "") for path in folder.iterdir())
    left = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return (", ".join(names[:SHOWN]) + left) if names else "nothing"


def folders(folder: Path, depth: int = 2) -> Iterator[Path]:
    """The folder, then its subfolders, level by level, in order of the alphabet; hidden ones are left out."""
    level = [folder]
    for left in range(depth, -1, -1):
        yield from level
        if left:
            level = sorted(
                Path(entry.path)
                for above in level
                for entry in os.scandir(above)
                if entry.is_dir() and not entry.name.startswith(".")
            )


def located(folder: Path, *names: str) -> Path | None:
    """The first folder, from the top, that holds files of all these names."""
    return next((place for place in folders(folder) if all((place / name).is_file() for name in names)), None)


def holding(folder: Path, names: Iterable[str]) -> Path | None:
    """The folder, of this and its subfolders, that holds the most of these files (the first of equals), if any does."""
    wanted = list(names)
    found = [(sum((place / name).is_file() for name in wanted), place) for place in folders(folder, 3)]
    most = max(found, key=lambda pair: pair[0])
    return most[1] if most[0] else None


def left_out(on_message: Callable[[str], None], name: str, counts: dict[str, int], of: int) -> None:
    """Tell what was left out of ``of`` samples, by reason, if anything was."""
    told = [f"{count:,} {reason}" for reason, count in counts.items() if count]
    if told:
        on_message(f"{name}: of {of:,} samples, left out: {', '.join(told)}")
