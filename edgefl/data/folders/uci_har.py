"""UCI HAR: 2.56 seconds of a phone's motion at the waist of 30 people, who do one of six things (Anguita et al. 2013).

The files of a split have a line for each window of 128 readings, nine of them one of the signals.  A client is a
person; those of the published test set are others.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from edgefl.arrays import Integers
from edgefl.data.collection import Collection, FolderRequest, FolderSet
from edgefl.data.folders.places import PublishedDataset, PublishedFile, folder_with_all
from edgefl.data.folders.rows import lines
from edgefl.errors import DataError

READINGS = 128
"""Readings of a window, at 50 Hz; windows of a person overlap by half."""
CHANNELS = tuple(f"{of}_{axis}" for of in ("body_acc", "body_gyro", "total_acc") for axis in "xyz")
ACTIVITIES = ("walking", "walking upstairs", "walking downstairs", "sitting", "standing", "laying")
"""The classes, 1 to 6 in the files."""
SPLITS = {"train": 0, "test": 2}
UCI_HAR = PublishedDataset(
    "uci-har",
    "train and test with Inertial Signals/*.txt, y_*.txt and subject_*.txt",
    "https://archive.ics.uci.edu/dataset/240 (58 MiB; unpack the UCI HAR Dataset.zip)",
    test="published, 2,947 of 9 people",
    licence="CC BY 4.0 at UCI; the files' README forbids commercial use",
    forms=(
        tuple(
            PublishedFile(f"{split}/{name}_{split}.txt", f"{n:,} {what}")
            for split, n in (("train", 7_352), ("test", 2_947))
            for name, what in (("Inertial Signals/*", "windows in each"), ("y", "classes"), ("subject", "people"))
        ),
    ),
)


def build(wanted: FolderRequest) -> Collection:
    """Windows [n, 128, 9] and what was done; an owner is a person, whose windows are held out together.

    Raises DataError for files that are missing or of another shape.
    """
    root = folder_with_all(wanted.folder, *(f"{name}/{of}_{name}.txt" for name in SPLITS for of in ("y", "subject")))
    if root is None:
        raise UCI_HAR.content_error(wanted.folder)
    motion, label, owner = list[npt.NDArray[np.float32]](), list[Integers](), list[Integers]()
    for split in SPLITS:
        classes, people = (_numbers(root / split / f"{of}_{split}.txt").reshape(-1) for of in ("y", "subject"))
        if len(people) != len(classes) or not np.isin(classes, range(1, len(ACTIVITIES) + 1)).all():
            raise DataError(f"{root / split}: {len(classes)} classes, which must be 1..6, and {len(people)} people")
        label.append(classes.astype(np.int64) - 1)
        owner.append(people.astype(np.int64))
        motion.append(np.zeros((len(classes), READINGS, len(CHANNELS)), np.float32))
        for channel, name in enumerate(CHANNELS):
            path = root / split / "Inertial Signals" / f"{name}_{split}.txt"
            values = _numbers(path)
            if values.shape != (shape := motion[-1].shape[:2]):
                raise DataError(f"{path}: {list(values.shape)} numbers; expected {list(shape)}, as of classes")
            motion[-1][:, :, channel] = values
    person = np.concatenate(owner)
    return Collection(
        ACTIVITIES, np.concatenate(label), person, motion=np.concatenate(motion), owner=person,
        official=np.repeat([*SPLITS.values()], [*map(len, label)]),
    )  # fmt: skip


def _numbers(path: Path) -> npt.NDArray[np.float32]:
    """The numbers of a file, a row for each line.  Raises DataError for what can't be read as such."""
    try:
        return np.loadtxt(lines(path), np.float32, ndmin=2)
    except ValueError as error:
        raise DataError(f"{path}: {error}") from error


UCI_HAR_SET = FolderSet(
    build, UCI_HAR.find, summary="10,299 windows of 30 people's motion, 6 activities (UCI HAR)", natural=build
)
