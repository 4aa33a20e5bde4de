"""A user's own pictures: a folder for each class (``images``)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from edgefl.data.collection import Collection, FolderRequest, FolderSet
from edgefl.data.folders.pictures import SUFFIXES, groups_of_copies, read_pictures
from edgefl.data.folders.places import SPLITS, PublishedDataset, check_names, report_copies, report_left_out
from edgefl.errors import DataError

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
    check_names(classes, "class folder", wanted.folder, wanted.on_message)
    paths, label, official, skipped = [], [], [], 0
    for split_index, inner in class_folders:
        for name in sorted(inner):
            files = sorted(path for path in inner[name].iterdir() if path.is_file() and not path.name.startswith("."))
            pictures = [path for path in files if path.suffix.lower() in SUFFIXES]
            skipped += len(files) - len(pictures)
            paths += pictures
            label += [classes.index(name)] * len(pictures)
            official += [split_index] * len(pictures)
    _check_classes(classes, label, wanted.folder)
    report_left_out(wanted.on_message, IMAGES.name, {"files that are not pictures": skipped}, len(paths) + skipped)
    pixels, position = read_pictures(paths, wanted, IMAGES.name)
    readable = position >= 0
    labels, split, group = np.array(label)[readable], np.array(official)[readable], groups_of_copies(pixels)
    _check_classes(classes, labels.tolist(), wanted.folder)
    if is_split:
        report_copies(wanted.on_message, IMAGES.name, group, split)
    return Collection(classes, labels, group, pixels, official=split if is_split else None)


def _check_classes(classes: Sequence[str], labels: Iterable[int], folder: Path) -> None:
    """Raise DataError for a class without pictures, as torchvision's ImageFolder does."""
    if empty := set(range(len(classes))).difference(labels):
        raise DataError(
            f"{IMAGES.name}: the class folder {classes[min(empty)]} in {folder} holds no picture that can be read "
            f"({', '.join(sorted(SUFFIXES))}); remove it, or put its pictures into it, not into subfolders"
        )


def _subfolders(folder: Path) -> dict[str, Path]:
    return {path.name: path for path in sorted(folder.iterdir()) if path.is_dir() and not path.name.startswith(".")}


IMAGES_SET = FolderSet(images, IMAGES.find, revision=2, summary="your pictures, a folder for each class")
