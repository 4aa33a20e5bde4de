"""ADVANCE: 5,075 aerial photographs of 13 kinds of scenes, each with ten seconds of sound recorded there (Hu et al.,
ECCV 2020), as published: ``vision/<class>/<name>.jpg`` and ``sound/<class>/<name>.wav``.

Wave as LW-FedMML's AST reads it: 128 mel bins, 1,024 frames, shorter clips are padded with zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from edgefl.data.collection import Collection, FolderRequest, FolderSet
from edgefl.data.folders.pictures import SUFFIXES, read_pictures
from edgefl.data.folders.places import PublishedDataset, PublishedFile, folders, report_left_out
from edgefl.data.folders.sounds import read_sounds

FRAMES, BINS = 1024, 128
"""What LW-FedMML's AST reads: ten seconds are 998 frames of 10 ms, and the rest is padding."""
ADVANCE = PublishedDataset(
    "advance",
    "the folders vision/<class>/*.jpg and sound/<class>/*.wav",
    "https://zenodo.org/records/3828124",
    test="held out",
    forms=(
        (
            PublishedFile("vision/*/*.jpg", "5,075 pictures in 13 folders"),
            PublishedFile("sound/*/*.wav", "5,075 sounds in 13 folders"),
        ),
    ),
)


def build(wanted: FolderRequest) -> Collection:
    """Pictures [n, 3, size, size] and log mel energies [n, 1024, 128] of all photographs with their sound.

    Raises DataError for any other layout.
    """
    root = next((folder for folder in folders(wanted.folder) if _has_both(folder)), None)
    if root is None:
        raise ADVANCE.content_error(wanted.folder)
    vision, sound = (_files(root / side, fits) for side, fits in (("vision", _is_picture), ("sound", _is_sound)))
    keys = sorted(vision.keys() & sound.keys())
    if not keys:
        raise ADVANCE.content_error(wanted.folder, "no picture has a sound of its class and name")
    images, position = read_pictures([vision[key] for key in keys], wanted, ADVANCE.name)
    readable = np.flatnonzero(position >= 0)
    audio, readable_sounds = read_sounds(
        [sound[keys[row]] for row in readable], wanted, ADVANCE.name, FRAMES, BINS, fill=0.0
    )
    complete = readable[readable_sounds]
    unpaired = len(vision.keys() ^ sound.keys())
    counts = {
        "without their picture or sound": unpaired,
        "with a picture that can't be read": len(keys) - len(readable),
        "with a sound that can't be read": len(readable) - len(complete),
    }
    report_left_out(wanted.on_message, ADVANCE.name, counts, len(keys) + unpaired)
    classes = sorted({keys[row][0] for row in complete})
    label = np.array([classes.index(keys[row][0]) for row in complete], np.int64)
    return Collection(tuple(classes), label, np.arange(len(complete)), images, image=position[complete], audio=audio)


def _has_both(folder: Path) -> bool:
    return (folder / "vision").is_dir() and (folder / "sound").is_dir()


def _is_picture(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES


def _is_sound(path: Path) -> bool:
    return path.suffix.lower() == ".wav"


def _files(folder: Path, fits: Callable[[Path], bool]) -> dict[tuple[str, str], Path]:
    """The files in ``folder`` that ``fits`` accepts, by class and name."""
    return {(path.parent.name, path.stem): path for path in sorted(folder.glob("*/*")) if fits(path)}


ADVANCE_SET = FolderSet(build, ADVANCE.find, summary="5,075 aerial photographs with sound, 13 scenes (ADVANCE)")
