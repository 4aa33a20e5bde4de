"""Photographs with several captions each: what is common to such sets, and Flickr30k.

Flickr30k's pictures are one folder; its captions are read from whichever usual copy lies there, in this order:

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

from edgefl.data.collection import Collection, FolderSet, Wanted
from edgefl.data.folders.pictures import read_pictures
from edgefl.data.folders.places import Published, holding, left_out, located
from edgefl.data.folders.rows import lines, named_rows, numbered_in_order, read_json, rows
from edgefl.errors import DataError

FLICKR30K = Published(
    "flickr30k",
    "a folder of pictures, and train.csv with test.csv, dataset_flickr30k.json, flickr_annotations_30k.csv, "
    "results_20130124.token, results.csv or captions.txt",
    "https://shannon.cs.illinois.edu/DenotationGraph (asks for your name), or https://huggingface.co/datasets/nlphuji/"
    "flickr30k; FedCola's split: data/flickr30k in https://github.com/imguangyu/FedCola",
)
KARPATHY = {"train": 0, "restval": 0, "val": 1, "validation": 1, "test": 2}

Caption = tuple[str, str, int]
"""Picture, caption, official split (-1 for none)."""


def captioned(found: Iterable[tuple[Path, str, int]], wanted: Wanted, name: str) -> Collection:
    """The collection of these captions: pictures are read once each; what lacks one or is empty is left out."""
    counts = {"empty captions": 0, "repeated captions": 0, "captions without their picture": 0}
    kept: dict[tuple[Path, str], int] = {}
    total = 0
    for path, caption, split in found:
        total += 1
        caption = caption.strip()
        counts["empty captions"] += not caption
        counts["repeated captions"] += bool(caption) and (path, caption) in kept
        if caption:
            kept.setdefault((path, caption), split)
    if not kept:
        raise DataError(f"{name}: there are no captions in {wanted.folder}")
    of = numbered_in_order([path for path, _ in kept])
    paths = list(dict.fromkeys(path for path, _ in kept))
    images, place = read_pictures(paths, wanted, name)
    image = place[of]
    there = image >= 0
    counts["captions without their picture"] = int((~there).sum())
    left_out(wanted.on_message, name, counts, total)
    texts = tuple(text for (_, text), is_there in zip(kept, there.tolist(), strict=True) if is_there)
    split_of = np.array(list(kept.values()), np.int64)[there]
    n = len(texts)
    return Collection(
        classes=(),
        label=np.zeros(n, np.int64),
        group=image[there],
        images=images,
        image=image[there],
        text=np.arange(n),
        texts=texts,
        masked=texts,
        official=split_of if split_of.min() >= 0 else None,
    )


def flickr30k(wanted: Wanted) -> Collection:
    """31,783 photographs of people, five captions each."""
    found = _captions(wanted.folder)
    if not found:
        raise FLICKR30K.wrong(wanted.folder, "no captions")
    names = list(dict.fromkeys(name for name, _, _ in found))
    place = holding(wanted.folder, names[:: max(len(names) // 50, 1)])
    if place is None:
        raise FLICKR30K.wrong(wanted.folder, f"no folder has pictures such as {names[0]}")
    return captioned(((place / name, caption, split) for name, caption, split in found), wanted, FLICKR30K.name)


def _captions(folder: Path) -> list[Caption]:
    """The captions of the first kind of file that is there."""
    own = located(folder, "train.csv", "test.csv")
    if own is not None:
        return [(*row, split) for split, name in ((0, "train.csv"), (2, "test.csv")) for row in _table(own / name)]
    for name, read in READERS.items():
        place = located(folder, name)
        if place is not None:
            return list(read(place / name))
    return []


def _table(path: Path) -> Iterator[tuple[str, str]]:
    """Picture and caption of rows ``name| number| caption`` or ``name,number,caption`` or ``name,caption``.

    One row of the usual copy lacks a bar: its caption begins with the number.  A caption may have commas of its own.
    """
    first = next(lines(path), "")
    bar = "|" in first
    header = [part.strip().lower() for part in first.split("|" if bar else ",")]
    if header[0] not in ("image_name", "image") or header[-1] not in ("comment", "caption"):
        raise DataError(
            f"{path}:1: expected are the columns image_name, comment_number, comment; found {first.strip()!r}"
        )
    places = len(header)
    table = rows(path, "|" if bar else ",")
    next(table)
    for line, row in table:
        if len(row) == 1:
            raise DataError(f"{path}:{line}: a picture and a caption are expected; found {row[0]!r}")
        text = ("|" if bar else ",").join(row[min(places, len(row)) - 1 :])
        yield row[0].strip(), re.sub(r"^\s*\d+\s\s+", "", text) if len(row) < places else text


def _token(path: Path) -> Iterator[Caption]:
    """Lines ``name#number<tab>caption``."""
    for number, line in enumerate(lines(path), 1):
        if line.strip():
            name, tab, caption = line.rstrip("\r\n").partition("\t")
            if not tab or "#" not in name:
                raise DataError(
                    f"{path}:{number}: expected is picture#number, a tab and a caption; found {line[:60]!r}"
                )
            yield name.rpartition("#")[0].strip(), caption, -1


def _annotations(path: Path) -> Iterator[Caption]:
    """Rows with a list of captions in ``raw``, a ``split`` and a ``filename``."""
    for line, row in named_rows(path, ("raw", "split", "filename")):
        try:
            captions = [str(caption) for caption in json.loads(row["raw"])]
            split = KARPATHY[row["split"].strip()]
        except (ValueError, KeyError, TypeError):
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
        raise DataError(f"{path}: expected are images with filename, split and sentences ({error!r})") from error


def _unsplit(path: Path) -> Iterator[Caption]:
    return ((name, caption, -1) for name, caption in _table(path))


READERS: dict[str, Callable[[Path], Iterator[Caption]]] = {
    "dataset_flickr30k.json": _karpathy,
    "flickr_annotations_30k.csv": _annotations,
    "results_20130124.token": _token,
    "results.csv": _unsplit,
    "captions.txt": _unsplit,
}


def entries(found: Any, key: str, fields: tuple[str, ...], path: Path) -> list[tuple[Any, ...]]:
    """``fields`` of every entry of the list under ``key``.  Raises DataError if they aren't there."""
    try:
        return [tuple(each[field] for field in fields) for each in found[key]]
    except (KeyError, TypeError, IndexError):
        raise DataError(f"{path}: expected is a list {key!r} of entries with {', '.join(fields)}") from None


FLICKR30K_SET = FolderSet(flickr30k, FLICKR30K.find)
