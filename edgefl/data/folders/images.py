"""A user's own pictures: a folder for each class (``images``)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from edgefl.data.collection import Collection, FolderRequest, FolderSet
from edgefl.data.folders.pictures import SUFFIXES, read_pictures
from edgefl.data.folders.places import SPLITS, PublishedDataset, report_left_out

IMAGES = PublishedDataset(
    "images",
    "a subfolder of pictures for each class, or train, validation and test with such subfolders",
    "your own pictures",
    test="those folders, else held out",
    licence="your own",
)


def images(wanted: FolderRequest) -> Collection:
    """Pictures with their folder's name as class; grey pictures are converted to colour."""
    subfolders = _subfolders(wanted.folder)
    split_folders = {name: _subfolders(path) for name, path in subfolders.items() if name.lower() in SPLITS}
    is_split = bool(split_folders) and len(split_folders) == len(subfolders) and any(split_folders.values())
    class_folders = (
        [(SPLITS[name.lower()], inner) for name, inner in split_folders.items()] if is_split else [(0, subfolders)]
    )
    classes = tuple(sorted({name for _, inner in class_folders for name in inner}))
    if len(classes) < 2:
        raise IMAGES.content_error(
            wanted.folder, f"{len(classes)} class folder{'s' * (len(classes) != 1)}; at least 2 are needed"
        )
    paths, label, official, skipped = [], [], [], 0
    for split_index, inner in class_folders:
        for name in sorted(inner):
            files = sorted(path for path in inner[name].iterdir() if path.is_file() and not path.name.startswith("."))
            pictures = [path for path in files if path.suffix.lower() in SUFFIXES]
            skipped += len(files) - len(pictures)
            paths += pictures
            label += [classes.index(name)] * len(pictures)
            official += [split_index] * len(pictures)
    if not paths:
        raise IMAGES.content_error(wanted.folder, f"no file in the class folders ends in {', '.join(sorted(SUFFIXES))}")
    report_left_out(wanted.on_message, IMAGES.name, {"files that are not pictures": skipped}, len(paths) + skipped)
    pixels, position = read_pictures(paths, wanted, IMAGES.name)
    readable = position >= 0
    return Collection(
        classes,
        np.array(label)[readable],
        np.arange(int(readable.sum())),
        pixels,
        official=np.array(official)[readable] if is_split else None,
    )


def _subfolders(folder: Path) -> dict[str, Path]:
    return {path.name: path for path in sorted(folder.iterdir()) if path.is_dir() and not path.name.startswith(".")}


IMAGES_SET = FolderSet(images, IMAGES.find, summary="your pictures, a folder for each class")
