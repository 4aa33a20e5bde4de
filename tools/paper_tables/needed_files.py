"""Which files a scenario's data sets are read from, and which of them aren't there, found without opening them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edgefl import registry
from edgefl.data.collection import FolderSet
from edgefl.data.folders.places import Form, PublishedDataset
from edgefl.data.options import DataOptions
from edgefl.errors import DataError


@dataclass(frozen=True)
class NeededFiles:
    """What a data set is read from; only names are looked at, not what is in the files."""

    source: str
    """The data set."""
    tried: tuple[Path, ...]
    """The folders in which it is looked for, the first first; empty for a plug-in's, which looks itself."""
    folder: Path | None
    """The folder that is read, None if there is none."""
    files: Form
    """Its files in the form of which the folder lacks least; empty for a user's own data and for a plug-in's."""
    missing: Form
    """Those of them that aren't in the folder; all of them if there is no folder."""
    problem: str
    """Why nothing is read, "" if there is a folder."""


def needed_files(options: DataOptions) -> list[NeededFiles]:
    """The files of each data set that these options read from a folder, in the order of ``options.sources``.

    A set that is made from installed packages has none.  Raises UnknownName for a set that isn't registered.
    """
    needed = []
    for name in options.sources:
        dataset = registry.get("data set", name)
        if not isinstance(dataset, FolderSet):
            continue
        given = options.folders.get(name)
        folder, problem = None, ""
        try:
            folder = dataset.find(given.expanduser() if given is not None else None)
        except DataError as error:
            problem = str(error)
        published = getattr(dataset.find, "__self__", None)
        tried: tuple[Path, ...] = ()
        files: Form = ()
        missing: Form = ()
        if isinstance(published, PublishedDataset):
            tried = tuple(path.absolute() for path in published.places(given))
            files, missing = published.closest_form(folder)
        needed.append(NeededFiles(name, tried, folder, files, missing, problem))
    return needed
