"""COCO's photographs with their captions, five or more each, as cocodataset.org publishes them (2017 or 2014).

The published validation set is the test set here: the captions of COCO's own test set are secret.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from edgefl.data.collection import Collection, FolderRequest, FolderSet
from edgefl.data.folders.captions import caption_collection, entries
from edgefl.data.folders.places import Form, PublishedDataset, PublishedFile, folder_with_all, folder_with_most, folders
from edgefl.data.folders.rows import read_json
from edgefl.errors import DataError

SOURCE = "https://cocodataset.org/#download (train, val and annotations of one year)"
LICENCE = "captions CC BY 4.0, pictures under Flickr's terms"
PUBLISHED = {
    "2014": {"train": (82_783, 414_113), "val": (40_504, 202_654)},
    "2017": {"train": (118_287, 591_753), "val": (5_000, 25_014)},
}
"""Pictures and captions of the parts of each year."""
LISTS = (
    PublishedFile("coco_train_ids.npy", "ids of the captions of 82,783 pictures"),
    PublishedFile("coco_test_ids.npy", "25,010 ids of captions"),
)


def files_of(year: str) -> Form:
    """The files of a year's captions and pictures."""
    files: list[PublishedFile] = []
    for part, (pictures, captions) in PUBLISHED[year].items():
        files.append(PublishedFile(f"captions_{part}{year}.json", f"{captions:,} captions of {pictures:,} pictures"))
        files.append(PublishedFile(f"{part}{year}/*.jpg", f"{pictures:,} pictures"))
    return tuple(files)


COCO = PublishedDataset(
    "coco",
    "annotations/captions_train2017.json, captions_val2017.json (or 2014) and the pictures' folders",
    SOURCE,
    test="the published validation pictures",
    licence=LICENCE,
    forms=(files_of("2017"), files_of("2014")),
)
COCO_50K, COCO_100K = (
    PublishedDataset(
        name,
        "annotations/captions_train2014.json, captions_val2014.json (or 2017), the pictures' folders and, for the "
        "papers' choice, coco_train_ids.npy with coco_test_ids.npy",
        SOURCE + "; the two lists come with the public code of PCME and of CreamFL",
        beside="coco",
        test="Karpathy's 5,000 pictures, which the list names",
        licence=LICENCE,
        forms=((*files_of("2014"), *LISTS),),
    )
    for name in ("coco-50k", "coco-100k")
)
FEW = {"coco-50k": 50_000, "coco-100k": 100_000}
"""Training captions of the smaller sets: so many of the list's CreamFL takes (Table 4), FedCola the fewer."""
TESTED = 5_000
"""Test pictures of the smaller sets: the usual 5K test of COCO's retrieval."""

Annotation = tuple[Path, str, int, int]
"""Path of the picture, caption, id of the caption, id of the picture."""


def build(published: PublishedDataset, wanted: FolderRequest) -> Collection:
    """All captions, or a smaller set: the first 50,000 or 100,000 of the papers' list, and 5,000 test pictures.

    Without that list, a smaller set has the captions of the first pictures in the order of the file.
    """
    is_small = published.name in FEW
    for year in ("2014", "2017") if is_small else ("2017", "2014"):
        names = [f"captions_{annotations}{year}.json" for annotations in ("train", "val")]
        folder = folder_with_all(wanted.folder, *names)
        if folder is not None:
            break
    else:
        raise published.content_error(wanted.folder)
    train, test = (_read(folder / name, wanted.folder, published) for name in names)
    if is_small:
        train, test = (
            _select_by_ids(train, wanted, "coco_train_ids.npy"),
            _select_by_ids(test, wanted, "coco_test_ids.npy"),
        )
        train = train[: FEW[published.name]]
        tested = list(dict.fromkeys(number for *_, number in test))[:TESTED]
        allowed = set(tested)
        test = [annotation for annotation in test if annotation[-1] in allowed]
    captions = ((path, text, split) for split, annotations in ((0, train), (2, test)) for path, text, *_ in annotations)
    return caption_collection(captions, wanted, published.name)


def _read(path: Path, folder: Path, published: PublishedDataset) -> list[Annotation]:
    """The captions of one file, ordered by picture as in the file, with the paths of the pictures."""
    content: Any = read_json(path)
    files = dict(entries(content, "images", ("id", "file_name"), path))
    order = {image_id: directory for directory, image_id in enumerate(files)}
    captions = entries(content, "annotations", ("image_id", "id", "caption"), path)
    matched = sorted(
        (annotation for annotation in captions if annotation[0] in files),
        key=lambda annotation: (order[annotation[0]], annotation[1]),
    )
    if not matched:
        raise DataError(f"{path}: no caption belongs to a picture in its list")
    names = [str(files[image_id]) for image_id, *_ in matched]
    directory = folder_with_most(folder, names[:: max(len(names) // 50, 1)])
    if directory is None:
        raise published.content_error(folder, f"no folder has pictures such as {names[0]}")
    return [
        (directory / name, str(text), int(caption_id), int(image_id))
        for name, (image_id, caption_id, text) in zip(names, matched, strict=True)
    ]


def _select_by_ids(annotations: list[Annotation], wanted: FolderRequest, name: str) -> list[Annotation]:
    """The captions whose ids are in the file ``name``, in its order; all captions if there is no such file."""
    path = next((subfolder / name for subfolder in folders(wanted.folder) if (subfolder / name).is_file()), None)
    if path is None:
        wanted.on_message(f"{wanted.folder} has no {name}: the first pictures of the file are taken, not the papers'")
        return annotations
    try:
        numbers = np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise DataError(f"{path}: it can't be read as .npy of plain numbers ({error})") from error
    if numbers.dtype.kind not in "uif" or numbers.ndim != 1:
        raise DataError(f"{path}: {numbers.dtype} {list(numbers.shape)}; expected a list of caption ids")
    by_number = {annotation[2]: annotation for annotation in annotations}
    chosen = [by_number[number] for number in map(int, numbers.tolist()) if number in by_number]
    if not chosen:
        raise DataError(
            f"{path}: none of its {len(numbers):,} captions is in the annotations: are they of another year?"
        )
    return chosen


COCO_SET, COCO_50K_SET, COCO_100K_SET = (
    FolderSet(partial(build, published), published.find, summary=summary)
    for published, summary in (
        (COCO, "123,287 photographs with five or more captions each"),
        (COCO_50K, "50,000 captions of COCO, as CreamFL and FedCola choose them"),
        (COCO_100K, "100,000 captions of COCO, the first 50,000 among them"),
    )
)
