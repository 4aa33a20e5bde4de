"""CIFAR-10 and CIFAR-100: the binary version as published, or the hub's parquet and arrow files.

The python version is a pickle, which can run code: it is recognised but never read.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from edgefl.arrays import Integers
from edgefl.data.collection import Collection, FolderRequest, FolderSet
from edgefl.data.folders.arrow import hub_tables
from edgefl.data.folders.pictures import Pixels, read_pictures, scale_pictures
from edgefl.data.folders.places import PublishedDataset, PublishedFile, folder_with_all
from edgefl.data.folders.rows import lines
from edgefl.errors import DataError

PIXELS = 3 * 32 * 32
"""Bytes of a picture: three colours of 32 x 32 pixels, as published."""
HOME = "https://www.cs.toronto.edu/~kriz/cifar.html"

HUB = tuple(
    (PublishedFile(f"*train*{form}", "50,000 pictures"), PublishedFile(f"*test*{form}", "10,000 pictures"))
    for form in (".parquet", "/*.arrow")
)
"""The hub's two forms of either."""

CIFAR10 = PublishedDataset(
    "cifar10",
    "data_batch_1.bin ... data_batch_5.bin, test_batch.bin and batches.meta.txt (the binary version), or parquet files",
    f"{HOME} (cifar-10-binary.tar.gz)",
    test="published, 10,000",
    forms=(
        tuple(
            PublishedFile(name, "10,000 pictures", 10_000 * (1 + PIXELS))
            for name in (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")
        ),
        *HUB,
    ),
)
CIFAR100 = PublishedDataset(
    "cifar100",
    "train.bin, test.bin and fine_label_names.txt (the binary version), or parquet files",
    f"{HOME} (cifar-100-binary.tar.gz)",
    test="published, 10,000",
    forms=(
        (
            PublishedFile("train.bin", "50,000 pictures", 50_000 * (2 + PIXELS)),
            PublishedFile("test.bin", "10,000 pictures", 10_000 * (2 + PIXELS)),
        ),
        *HUB,
    ),
)


def build(published: PublishedDataset, wanted: FolderRequest) -> Collection:
    """60,000 colour pictures of 32 x 32 pixels, 50,000 of them to train on; CIFAR-100 by its fine labels."""
    is_cifar100 = published is CIFAR100
    train = ["train.bin"] if is_cifar100 else [f"data_batch_{i}.bin" for i in range(1, 6)]
    test, names = ("test.bin", "fine_label_names.txt") if is_cifar100 else ("test_batch.bin", "batches.meta.txt")
    folder = folder_with_all(wanted.folder, *train, test)
    if folder is None:
        return _from_hub(published, wanted)
    classes = _names(folder / names, 100 if is_cifar100 else 10)
    parts = [_records(folder / name, 1 + is_cifar100, len(classes)) for name in (*train, test)]
    label, images = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    official = np.repeat([0, 2], [len(label) - len(parts[-1][0]), len(parts[-1][0])])
    return Collection(
        classes, label, np.arange(len(label)), scale_pictures(images, wanted, published.name), official=official
    )


def _names(path: Path, number: int) -> tuple[str, ...]:
    if not path.is_file():
        return tuple(f"class {i}" for i in range(number))
    names = tuple(line.strip() for line in lines(path) if line.strip())
    if not 2 <= len(names) <= number or len(set(names)) < len(names):
        raise DataError(f"{path}: {len(names)} names; expected {number} different ones, one per line")
    return names


def _records(path: Path, head: int, classes: int) -> tuple[Integers, Pixels]:
    """Labels [n] and pictures [n, 3, 32, 32]: a record is ``head`` bytes, the last its class, and the pixels."""
    data = np.fromfile(path, np.uint8)
    if not len(data) or len(data) % (head + PIXELS):
        raise DataError(f"{path}: {len(data):,} bytes are not a number of records of {head + PIXELS:,} bytes")
    records = data.reshape(-1, head + PIXELS)
    label = records[:, head - 1].astype(np.int64)
    if label.max() >= classes:
        raise DataError(f"{path}: a picture has class {label.max()}; classes are 0..{classes - 1}")
    return label, records[:, head:].reshape(-1, 3, 32, 32)


def _from_hub(published: PublishedDataset, wanted: FolderRequest) -> Collection:
    tables = hub_tables(wanted.folder, published.name)
    if not tables:
        pickled = ("train", "test", "meta") if published is CIFAR100 else ("data_batch_1", "test_batch")
        reason = (
            "this is the python version, pickles, which are never read"
            if folder_with_all(wanted.folder, *pickled)
            else ""
        )
        raise published.content_error(wanted.folder, reason)
    label: list[int] = []
    sources: list[bytes] = []
    official: list[int] = []
    classes: tuple[str, ...] = ()
    for split, table in tables.items():
        fine = "fine_label" if published is CIFAR100 else "label"
        pictures = table.column("img" if "img" in table.table.column_names else "image")
        label += table.column(fine)
        sources += [_bytes(picture, table.files) for picture in pictures]
        official += [split] * len(pictures)
        classes = classes or table.classes(fine)
    classes = classes or tuple(f"class {i}" for i in range(100 if published is CIFAR100 else 10))
    size = wanted.size or 32
    images, position = read_pictures(
        sources, FolderRequest(size, wanted.folder, wanted.on_message, wanted.scratch, wanted.columns), published.name
    )
    readable = position >= 0
    labels = np.array(label, np.int64)[readable]
    if labels.min() < 0 or labels.max() >= len(classes):
        raise DataError(f"{wanted.folder}: labels are {labels.min()}..{labels.max()}; there are {len(classes)} classes")
    return Collection(classes, labels, np.arange(len(labels)), images, official=np.array(official)[readable])


def _bytes(picture: object, files: Sequence[Path]) -> bytes:
    """The encoded bytes of a picture, which the hub stores as {bytes, path}."""
    data = picture.get("bytes") if isinstance(picture, dict) else picture
    if not isinstance(data, bytes):
        raise DataError(f"{files[0]}: expected pictures as {{bytes, path}} with the bytes of a PNG")
    return data


CIFAR_10 = FolderSet(partial(build, CIFAR10), CIFAR10.find, summary="60,000 colour pictures of 32x32, 10 classes")
CIFAR_100 = FolderSet(partial(build, CIFAR100), CIFAR100.find, summary="60,000 colour pictures of 32x32, 100 classes")
