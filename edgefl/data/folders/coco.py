"""COCO's photographs with their captions, five or more each, as cocodataset.org publishes them (2017 or 2014).

The published validation set is the test set here: the captions of COCO's own test set are secret.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from edgefl.data.collection import Collection, FolderSet, Wanted
from edgefl.data.folders.captions import captioned, entries
from edgefl.data.folders.places import Published, folders, holding, located
from edgefl.data.folders.rows import read_json
from edgefl.errors import DataError

SOURCE = "https://cocodataset.org/#download (train, val and annotations of one year)"
COCO = Published(
    "coco", "annotations/captions_train2017.json, captions_val2017.json (or 2014) and the pictures' folders", SOURCE
)
COCO_50K = Published(
    "coco-50k",
    "annotations/captions_train2014.json, captions_val2014.json (or 2017), the pictures' folders and, for the "
    "papers' choice, coco_train_ids.npy with coco_test_ids.npy",
    SOURCE + "; the two lists come with the public code of PCME and of CreamFL",
    beside="coco",
)
FEW = 50_000
"""Captions of the smaller set."""
TESTED = 5_000
"""Pictures that the smaller set is tested on."""

Found = tuple[Path, str, int, int]
"""Picture, caption, number of the caption, number of the picture."""


def build(published: Published, wanted: Wanted) -> Collection:
    """All captions, or the smaller set: the first 50,000 of the list of the papers, and 5,000 pictures to test on.

    Without that list they are the captions of the first pictures in the order of the file.
    """
    few = published is COCO_50K
    for year in ("2014", "2017") if few else ("2017", "2014"):
        names = [f"captions_{part}{year}.json" for part in ("train", "val")]
        place = located(wanted.folder, *names)
        if place is not None:
            break
    else:
        raise published.wrong(wanted.folder)
    train, test = (_read(place / name, wanted.folder, published) for name in names)
    if few:
        train, test = (
            _chosen(train, wanted.folder, "coco_train_ids.npy"),
            _chosen(test, wanted.folder, "coco_test_ids.npy"),
        )
        train = train[:FEW]
        shown = list(dict.fromkeys(number for *_, number in test))[:TESTED]
        allowed = set(shown)
        test = [each for each in test if each[-1] in allowed]
    found = ((path, text, split) for split, part in ((0, train), (2, test)) for path, text, *_ in part)
    return captioned(found, wanted, published.name)


def _read(path: Path, folder: Path, published: Published) -> list[Found]:
    """The captions of one file, picture after picture in its order, with where each picture lies."""
    content: Any = read_json(path)
    files = dict(entries(content, "images", ("id", "file_name"), path))
    order = {number: place for place, number in enumerate(files)}
    captions = entries(content, "annotations", ("image_id", "id", "caption"), path)
    known = sorted((each for each in captions if each[0] in files), key=lambda each: (order[each[0]], each[1]))
    if not known:
        raise DataError(f"{path}: no caption is of a picture that it lists")
    names = [str(files[number]) for number, *_ in known]
    place = holding(folder, names[:: max(len(names) // 50, 1)])
    if place is None:
        raise published.wrong(folder, f"no folder has pictures such as {names[0]}")
    return [
        (place / name, str(text), int(own), int(number)) for name, (number, own, text) in zip(names, known, strict=True)
    ]


def _chosen(found: list[Found], folder: Path, name: str) -> list[Found]:
    """The captions whose numbers a list has, in its order; all of them if there is no list."""
    path = next((place / name for place in folders(folder) if (place / name).is_file()), None)
    if path is None:
        return found
    try:
        numbers = np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise DataError(f"{path}: it can't be read as .npy of plain numbers ({error})") from error
    if numbers.dtype.kind not in "uif" or numbers.ndim != 1:
        raise DataError(f"{path}: {numbers.dtype} {list(numbers.shape)}; expected is a list of numbers of captions")
    by_number = {each[2]: each for each in found}
    chosen = [by_number[number] for number in map(int, numbers.tolist()) if number in by_number]
    if not chosen:
        raise DataError(
            f"{path}: none of its {len(numbers):,} captions is in the annotations: are they of another year?"
        )
    return chosen


COCO_SET, COCO_50K_SET = (FolderSet(partial(build, each), each.find) for each in (COCO, COCO_50K))
