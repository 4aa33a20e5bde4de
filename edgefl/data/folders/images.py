"""A user's own pictures: a folder for each class (``images``)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from edgefl.data.collection import Collection, FolderSet, Wanted
from edgefl.data.folders.pictures import SUFFIXES, read_pictures
from edgefl.data.folders.places import SPLITS, Published, left_out

IMAGES = Published(
    "images",
    "a subfolder of pictures for each class, or train, validation and test with such subfolders",
    "your own pictures",
)


def images(wanted: Wanted) -> Collection:
    """Pictures whose class is the name of their folder; grey ones become colour ones, as all must be alike."""
    subfolders = _subfolders(wanted.folder)
    parts = {name: _subfolders(path) for name, path in subfolders.items() if name.lower() in SPLITS}
    split = bool(parts) and len(parts) == len(subfolders) and any(parts.values())
    tops = [(SPLITS[name.lower()], inner) for name, inner in parts.items()] if split else [(0, subfolders)]
    classes = tuple(sorted({name for _, inner in tops for name in inner}))
    if len(classes) < 2:
        raise IMAGES.wrong(
            wanted.folder, f"{len(classes)} class folder{'s' * (len(classes) != 1)}; at least 2 are needed"
        )
    paths, label, official, other = [], [], [], 0
    for which, inner in tops:
        for name in sorted(inner):
            files = sorted(path for path in inner[name].iterdir() if path.is_file() and not path.name.startswith("."))
            pictures = [path for path in files if path.suffix.lower() in SUFFIXES]
            other += len(files) - len(pictures)
            paths += pictures
            label += [classes.index(name)] * len(pictures)
            official += [which] * len(pictures)
    if not paths:
        raise IMAGES.wrong(wanted.folder, f"no file in the class folders ends in {', '.join(sorted(SUFFIXES))}")
    left_out(wanted.on_message, IMAGES.name, {"files that are no pictures": other}, len(paths) + other)
    pixels, place = read_pictures(paths, wanted, IMAGES.name)
    kept = place >= 0
    return Collection(
        classes,
        np.array(label)[kept],
        np.arange(int(kept.sum())),
        pixels,
        official=np.array(official)[kept] if split else None,
    )


def _subfolders(folder: Path) -> dict[str, Path]:
    return {path.name: path for path in sorted(folder.iterdir()) if path.is_dir() and not path.name.startswith(".")}


IMAGES_SET = FolderSet(images, IMAGES.find)
