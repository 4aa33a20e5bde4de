"""MedMNIST: medical pictures in one .npz for each set, as medmnist.com publishes them and its package downloads them.

The files contain no class names; those of the organ sets are defined here.
"""

from __future__ import annotations

import tokenize
import zipfile
import zlib
from functools import partial
from pathlib import Path

import numpy as np

from edgefl.arrays import AnyArray, Integers
from edgefl.data.collection import Collection, FolderRequest, FolderSet
from edgefl.data.folders.pictures import Pixels, scale_pictures
from edgefl.data.folders.places import PublishedDataset, PublishedFile, folders
from edgefl.errors import DataError
from edgefl.files import open_regular

ORGANS = ("bladder", "femur-left", "femur-right", "heart", "kidney-left", "kidney-right", "liver", "lung-left",
          "lung-right", "pancreas", "spleen")  # fmt: skip
SPLITS = ("train", "val", "test")
HELD = {
    name: (f"{name}*.npz", f"{train:,}, {validation:,} and {test:,} pictures to train, validate and test on")
    for name, train, validation, test in (
        ("organamnist", 34_561, 6_491, 17_778),
        ("organcmnist", 12_975, 2_392, 8_216),
        ("organsmnist", 13_932, 2_452, 8_827),
    )
}
"""Name and pictures of each organ set's file, as of MedMNIST 3 (2 had some more: 58,850 of organamnist)."""


def _describe_set(name: str) -> PublishedDataset:
    file = f"{name}.npz" if name != "medmnist" else "one .npz of a MedMNIST set"
    command = (
        f"python -c \"from medmnist import {name[:5].title()}{name[5:6].upper()}MNIST as s; s('train', download=True)\""
    )
    alternative = f", or {command}" if name != "medmnist" else ""
    default_folders = ("~/.medmnist",) if name != "medmnist" else ()
    return PublishedDataset(
        name,
        file,
        f"https://medmnist.com (zenodo.org/records/10519652){alternative}",
        more=default_folders,
        file=True,
        test="published, and a validation set",
        licence="CC BY 4.0" + (", DermaMNIST CC BY-NC 4.0" if name == "medmnist" else ""),
        forms=((PublishedFile(*HELD.get(name, ("*.npz", "pictures and labels"))),),),
    )


def build(published: PublishedDataset, wanted: FolderRequest) -> Collection:
    """Grey or colour pictures of one label each, in their published splits.

    Of several resolutions the smallest that has ``size`` pixels is read, else the largest.
    """
    path = _find_archive(published, wanted)
    images, label, official = _arrays(path)
    classes = ORGANS if path.name.startswith("organ") else tuple(f"class {i}" for i in range(int(label.max()) + 1))
    if label.max() >= len(classes):
        raise DataError(f"{path}: a label is {label.max()}; classes are 0..{len(classes) - 1}")
    return Collection(
        classes, label, np.arange(len(label)), scale_pictures(images, wanted, published.name), official=official
    )


def _find_archive(published: PublishedDataset, wanted: FolderRequest) -> Path:
    if wanted.folder.is_file():
        return wanted.folder
    pattern = "*.npz" if published.name == "medmnist" else f"{published.name}*.npz"
    archives = next((files for folder in folders(wanted.folder, 1) if (files := sorted(folder.glob(pattern)))), [])
    if not archives:
        raise published.content_error(wanted.folder)
    stems = {path.stem.partition("_")[0] for path in archives}
    if len(stems) > 1:
        raise DataError(
            f"{published.name}: {archives[0].parent} holds several sets, {', '.join(sorted(stems))}: name one file"
        )

    def pixels(path: Path) -> int:
        size = path.stem.rpartition("_")[2]
        return int(size) if size.isdecimal() else 28

    archives.sort(key=pixels)
    return next((path for path in archives if pixels(path) >= (wanted.size or 0)), archives[-1])


def _arrays(path: Path) -> tuple[Pixels, Integers, Integers]:
    """Pictures [n, channels, size, size], labels [n] and splits [n]."""
    images: list[AnyArray] = []
    labels: list[AnyArray] = []
    official: list[int] = []
    try:
        with open_regular(path) as opened, np.load(opened, allow_pickle=False) as file:
            for split, name in enumerate(SPLITS):
                for part, into in (("images", images), ("labels", labels)):
                    if f"{name}_{part}" not in file:
                        raise DataError(
                            f"{path}: there is no {name}_{part}; found {', '.join(file.files) or 'nothing'}"
                        )
                    into.append(file[f"{name}_{part}"])
                official += [split] * len(labels[-1])
    except (
        ValueError,
        OSError,
        EOFError,
        zipfile.BadZipFile,
        zlib.error,
        tokenize.TokenError,
        SyntaxError,
        AttributeError,
        TypeError,
    ) as error:
        raise DataError(f"{path}: it can't be read as .npz of plain arrays ({str(error).splitlines()[0]})") from error
    shape = images[0].shape[1:]
    for picture, label, name in zip(images, labels, SPLITS, strict=True):
        square = len(shape) == 2 or (len(shape) == 3 and shape[2] == 3)
        if picture.dtype != np.uint8 or picture.shape[1:] != shape or not square or shape[0] != shape[1]:
            raise DataError(
                f"{path}: {name}_images is {picture.dtype} {list(picture.shape)}; expected bytes [n, size, size] "
                "or [n, size, size, 3], one size for all (volumes are not supported)"
            )
        if label.ndim not in (1, 2) or (label.ndim == 2 and label.shape[1] != 1) or label.dtype.kind not in "ui":
            raise DataError(
                f"{path}: {name}_labels is {label.dtype} {list(label.shape)}; expected one class per picture, [n, 1] "
                "(several labels per picture, as in chestmnist, are not supported)"
            )
        if len(label) != len(picture):
            raise DataError(f"{path}: {len(picture)} {name}_images, but {len(label)} {name}_labels")
    pixels = np.concatenate(images)
    pixels = pixels[:, None] if pixels.ndim == 3 else np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))
    return pixels, np.concatenate([label.reshape(-1) for label in labels]).astype(np.int64), np.array(official)


ORGANAMNIST, ORGANCMNIST, ORGANSMNIST, ANY = (
    FolderSet(partial(build, published := _describe_set(name)), published.find, summary=summary)
    for name, summary in (
        ("organamnist", "axial CT slices, 11 organs (OrganAMNIST)"),
        ("organcmnist", "coronal CT slices, 11 organs (OrganCMNIST)"),
        ("organsmnist", "sagittal CT slices, 11 organs (OrganSMNIST)"),
        ("medmnist", "any other MedMNIST set of flat pictures with one label each"),
    )
)
