"""Photographs with several captions each: functions for such data sets, and Flickr30k.

Flickr30k's pictures are one folder; its captions are read from the first of these files that exists:

- ``train.csv`` and ``test.csv`` in the form of results.csv: FedCola's split (10,000 and 5,000 pictures)
- ``dataset_flickr30k.json`` or ``flickr_annotations_30k.csv``: Karpathy's split (29,000, 1,014 and 1,000)
- ``results_20130124.token``, ``results.csv`` or ``captions.txt``: no split
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from edgefl.data.collection import Collection, FolderRequest, FolderSet
from edgefl.data.folders.pictures import read_pictures
from edgefl.data.folders.places import (
    PublishedDataset,
    PublishedFile,
    folder_with_all,
    folder_with_most,
    report_left_out,
)
from edgefl.data.folders.rows import lines, named_rows, number_by_appearance, read_json, rows
from edgefl.errors import DataError

PICTURES = PublishedFile("*.jpg", "31,783 pictures")
FLICKR30K = PublishedDataset(
    "flickr30k",
    "a folder of pictures, and train.csv with test.csv, dataset_flickr30k.json, flickr_annotations_30k.csv, "
    "results_20130124.token, results.csv or captions.txt",
    "https://shannon.cs.illinois.edu/DenotationGraph (asks for your name), or https://huggingface.co/datasets/nlphuji/"
    "flickr30k; FedCola's split: data/flickr30k in https://github.com/imguangyu/FedCola",
    test="depends on the captions",
    licence="research only",
    forms=tuple(
        (PICTURES, *captions)
        for captions in (
            (
                PublishedFile("train.csv", "50,000 captions of 10,000 pictures"),
                PublishedFile("test.csv", "25,000 captions of 5,000 pictures"),
            ),
            (PublishedFile("dataset_flickr30k.json", "captions of 31,014 pictures"),),
            (PublishedFile("flickr_annotations_30k.csv", "captions of 31,014 pictures"),),
            *(
                (PublishedFile(name, "158,915 captions"),)
                for name in ("results_20130124.token", "results.csv", "captions.txt")
            ),
        )
    ),
)
KARPATHY = {"train": 0, "restval": 0, "val": 1, "validation": 1, "test": 2}

Caption = tuple[str, str, int]
"""Name of the picture, caption, official split (-1 for none)."""


def caption_collection(captions: Iterable[tuple[Path, str, int]], wanted: FolderRequest, name: str) -> Collection:
    """A collection of captions; each picture is read once.  Empty, repeated and unreadable samples are left out."""
    counts = {"empty captions": 0, "repeated captions": 0, "captions without their picture": 0}
    split_by_caption: dict[tuple[Path, str], int] = {}
    total = 0
    for path, caption, split in captions:
        total += 1
        caption = caption.strip()
        counts["empty captions"] += not caption
        counts["repeated captions"] += bool(caption) and (path, caption) in split_by_caption
        if caption:
            split_by_caption.setdefault((path, caption), split)
    if not split_by_caption:
        raise DataError(f"{name}: there are no captions in {wanted.folder}")
    picture_of = number_by_appearance([path for path, _ in split_by_caption])
    paths = list(dict.fromkeys(path for path, _ in split_by_caption))
    images, position = read_pictures(paths, wanted, name)
    image = position[picture_of]
    readable = image >= 0
    counts["captions without their picture"] = int((~readable).sum())
    report_left_out(wanted.on_message, name, counts, total)
    texts = tuple(
        text for (_, text), is_readable in zip(split_by_caption, readable.tolist(), strict=True) if is_readable
    )
    split_of = np.array(list(split_by_caption.values()), np.int64)[readable]
    n = len(texts)
    return Collection(
        classes=(),
        label=np.zeros(n, np.int64),
        group=image[readable],
        images=images,
        image=image[readable],
        text=np.arange(n),
        texts=texts,
        masked=texts,
        official=split_of if split_of.min() >= 0 else None,
    )


def flickr30k(wanted: FolderRequest) -> Collection:
    """Flickr30k: 31,783 photographs of people with five captions each."""
    captions = _captions(wanted.folder)
    if not captions:
        raise FLICKR30K.content_error(wanted.folder, "no captions")
    names = list(dict.fromkeys(name for name, _, _ in captions))
    folder = folder_with_most(wanted.folder, names[:: max(len(names) // 50, 1)])
    if folder is None:
        raise FLICKR30K.content_error(wanted.folder, f"no folder has pictures such as {names[0]}")
    return caption_collection(
        ((folder / name, caption, split) for name, caption, split in captions), wanted, FLICKR30K.name
    )


def _captions(folder: Path) -> list[Caption]:
    """The captions of the first supported file; [] if there is none."""
    split_folder = folder_with_all(folder, "train.csv", "test.csv")
    if split_folder is not None:
        return [
            (*row, split) for split, name in ((0, "train.csv"), (2, "test.csv")) for row in _table(split_folder / name)
        ]
    for name, read in READERS.items():
        subfolder = folder_with_all(folder, name)
        if subfolder is not None:
            return list(read(subfolder / name))
    return []


def _table(path: Path) -> Iterator[tuple[str, str]]:
    """Picture and caption of rows ``name| number| caption`` or ``name,number,caption`` or ``name,caption``.

    One row of the usual copy lacks a bar: its caption begins with the number.  A caption may contain commas.
    """
    first = next(lines(path), "")
    bar = "|" in first
    header = [part.strip().lower() for part in first.split("|" if bar else ",")]
    if header[0] not in ("image_name", "image") or header[-1] not in ("comment", "caption"):
        raise DataError(f"{path}:1: expected the columns image_name, comment_number, comment; found {first.strip()!r}")
    columns = len(header)
    table = rows(path, "|" if bar else ",")
    next(table)
    for line, row in table:
        if len(row) == 1:
            raise DataError(f"{path}:{line}: expected a picture and a caption; found {row[0]!r}")
        text = ("|" if bar else ",").join(row[min(columns, len(row)) - 1 :])
        yield row[0].strip(), re.sub(r"^\s*\d+\s\s+", "", text) if len(row) < columns else text


def _token(path: Path) -> Iterator[Caption]:
    """Lines ``name#number<tab>caption``."""
    for number, line in enumerate(lines(path), 1):
        if line.strip():
            name, tab, caption = line.rstrip("\r\n").partition("\t")
            if not tab or "#" not in name:
                raise DataError(f"{path}:{number}: expected picture#number, a tab and a caption; found {line[:60]!r}")
            yield name.rpartition("#")[0].strip(), caption, -1


def _annotations(path: Path) -> Iterator[Caption]:
    """Rows with a list of captions in ``raw``, a ``split`` and a ``filename``."""
    for line, row in named_rows(path, ("raw", "split", "filename")):
        try:
            captions = [str(caption) for caption in json.loads(row["raw"])]
            split = KARPATHY[row["split"].strip()]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise DataError(
                f"{path}:{line}: raw must be a JSON list of captions, and split one of {', '.join(KARPATHY)}"
            ) from None
        yield from ((row["filename"].strip(), caption, split) for caption in captions)


def _karpathy(path: Path) -> Iterator[Caption]:
    """``{"images": [{"filename", "split", "sentences": [{"raw"}]}]}``."""
    try:
        for image in read_json(path)["images"]:
            for sentence in image["sentences"]:
                yield str(image["filename"]), str(sentence["raw"]), KARPATHY[image["split"]]
    except (KeyError, TypeError) as error:
        raise DataError(f"{path}: expected images with filename, split and sentences ({error!r})") from error


def _unsplit(path: Path) -> Iterator[Caption]:
    return ((name, caption, -1) for name, caption in _table(path))


READERS: dict[str, Callable[[Path], Iterator[Caption]]] = {
    "dataset_flickr30k.json": _karpathy,
    "flickr_annotations_30k.csv": _annotations,
    "results_20130124.token": _token,
    "results.csv": _unsplit,
    "captions.txt": _unsplit,
}


def entries(content: Any, key: str, fields: tuple[str, ...], path: Path) -> list[tuple[Any, ...]]:
    """``fields`` of every entry of the list under ``key``.  Raises DataError if the list or a field is missing."""
    try:
        return [tuple(entry[field] for field in fields) for entry in content[key]]
    except (KeyError, TypeError, IndexError):
        raise DataError(f"{path}: expected a list {key!r} of entries with {', '.join(fields)}") from None


FLICKR30K_SET = FolderSet(flickr30k, FLICKR30K.find, summary="31,783 photographs with five captions each")
