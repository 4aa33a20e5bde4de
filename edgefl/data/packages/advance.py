"""ADVANCE: 5,075 aerial photographs of 13 kinds of scenes, each with ten seconds of sound recorded there (Hu et al.,
ECCV 2020), as published: ``vision/<class>/<name>.jpg`` and ``sound/<class>/<name>.wav``.

Sound as LW-FedMML's AST reads it: 128 mel bins, 1,024 frames, zeros behind a clip that is shorter.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edgefl.data.audio import REMEDY, fitted, log_mel, read_wav, resampled
from edgefl.data.collection import Collection, FolderSet, Wanted, package_folder
from edgefl.data.folders.pictures import SUFFIXES, read_pictures
from edgefl.data.folders.places import Published, folders, left_out
from edgefl.errors import DataError

FRAMES, BINS = 1024, 128
ADVANCE = Published(
    "advance", "the folders vision/<class>/*.jpg and sound/<class>/*.wav", "https://zenodo.org/records/3828124"
)
Sound = npt.NDArray[np.float32]


def build(wanted: Wanted) -> Collection:
    """Pictures [n, 3, size, size] and log mel energies [n, 1024, 128] of every photograph that has its sound.

    Raises DataError for another layout.
    """
    package_folder("scipy", REMEDY)
    root = next((place for place in folders(wanted.folder) if _both(place)), None)
    if root is None:
        raise ADVANCE.wrong(wanted.folder)
    vision, sound = (_files(root / side, fits) for side, fits in (("vision", _is_picture), ("sound", _is_sound)))
    keys = sorted(vision.keys() & sound.keys())
    if not keys:
        raise ADVANCE.wrong(wanted.folder, "no picture has a sound of its class and name")
    images, place = read_pictures([vision[key] for key in keys], wanted, ADVANCE.name)
    readable = np.flatnonzero(place >= 0)
    audio, heard = _spectrograms([sound[keys[row]] for row in readable], wanted)
    kept = readable[heard]
    lonely = len(vision.keys() ^ sound.keys())
    counts = {
        "without their picture or sound": lonely,
        "with a picture that can't be read": len(keys) - len(readable),
        "with a sound that can't be read": len(readable) - len(kept),
    }
    left_out(wanted.on_message, ADVANCE.name, counts, len(keys) + lonely)
    classes = sorted({keys[row][0] for row in kept})
    label = np.array([classes.index(keys[row][0]) for row in kept], np.int64)
    return Collection(tuple(classes), label, np.arange(len(kept)), images, image=place[kept], audio=audio)


def _both(place: Path) -> bool:
    return (place / "vision").is_dir() and (place / "sound").is_dir()


def _is_picture(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES


def _is_sound(path: Path) -> bool:
    return path.suffix.lower() == ".wav"


def _files(folder: Path, fits: Callable[[Path], bool]) -> dict[tuple[str, str], Path]:
    """Files by class and name."""
    return {(path.parent.name, path.stem): path for path in sorted(folder.glob("*/*")) if fits(path)}


def _spectrograms(paths: list[Path], wanted: Wanted) -> tuple[Sound, list[int]]:
    """Those that can be read, in a memory map, and which they are."""
    file = wanted.scratch / "sound.npy"
    made: Sound = np.lib.format.open_memmap(file, mode="w+", dtype=np.float32, shape=(len(paths), FRAMES, BINS))
    heard: list[int] = []
    wrong: list[str] = []
    for number, path in enumerate(paths):
        if number % 500 == 0:
            wanted.on_message(f"{ADVANCE.name}: sounds: {number:,} of {len(paths):,}")
        try:
            wave = resampled(*read_wav(path))
        except DataError as error:
            wrong.append(str(error))
            continue
        made[len(heard)] = fitted(log_mel(wave, bins=BINS), FRAMES, fill=0.0)
        heard.append(number)
    if not heard:
        raise DataError(f"{ADVANCE.name}: none of {len(paths):,} sounds can be read: {wrong[0]}")
    if wrong:
        wanted.on_message(f"{ADVANCE.name}: {wrong[0]}")
    return made[: len(heard)], heard


ADVANCE_SET = FolderSet(build, ADVANCE.find)
