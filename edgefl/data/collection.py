"""A collection: all samples of a data set in memory, before they are split and partitioned."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from math import prod
from pathlib import Path

import numpy as np
import numpy.typing as npt
import psutil

from edgefl.arrays import AnyArray, Integers, JoinedArray
from edgefl.errors import DataError, install_hint
from edgefl.memo import library_version
from edgefl.modalities import MODALITIES, SIGNALS

OnMessage = Callable[[str], None]
"""Called with a line of text about the progress of a build."""


OFFICIAL = ("train", "validation", "test")
"""The splits that a data set may be published with."""


BITS = {modality: 1 << index for index, modality in enumerate(MODALITIES)}
"""A bit for each modality."""

_ARRAYS: dict[str, tuple[type[np.generic], tuple[str, ...]]] = {
    "label": (np.integer, ("n",)),
    "group": (np.integer, ("n",)),
    "images": (np.uint8, ("m", "channels", "size", "size")),
    "text": (np.integer, ("n",)),
    "image": (np.integer, ("n",)),
    **{name: (np.floating, ("n", *MODALITIES[name].shape)) for name in SIGNALS},
    "answer": (np.integer, ("n", "answers")),
    "score": (np.floating, ("n", "answers")),
    "owner": (np.integer, ("n",)),
    "official": (np.integer, ("n",)),
}
"""Type and shape of the arrays of a collection."""
_SAID = {np.integer: "integers", np.uint8: "bytes (uint8)", np.floating: "floats"}


@dataclass(frozen=True)
class Collection:
    """All n samples of a set in memory.

    edgefl holds out test samples, deals the others to clients, normalises them and makes batches.  At least one of
    ``images``, ``text``, ``audio`` and ``motion`` is needed.  Arrays that don't fit together raise DataError.
    """

    classes: tuple[str, ...]
    """Names of the classes."""
    label: Integers
    """`[n]`, an index into ``classes``; ``len(classes)`` marks a sample without a class, for retrieval only."""
    group: Integers
    """`[n]`, the unit that is held out: samples of one group are always in the same split."""
    images: npt.NDArray[np.uint8] | None = None
    """Pictures `[m, channels, size, size]` of bytes, one for each sample, or as ``image`` says."""
    text: Integers | None = None
    """`[n]`: which of the ``texts`` and ``masked`` a sample has; -1 for none, if it has an image."""
    texts: tuple[str, ...] = ()
    """Whole texts, for retrieval."""
    masked: tuple[str, ...] = ()
    """The same without the words that name the class, for classification; ``""`` if nothing is left."""
    image: Integers | None = None
    """`[n]`: which of the ``images`` a sample has, -1 for none; a picture with several captions is stored once."""
    audio: npt.NDArray[np.float32] | None = None
    """Log mel energies `[n, frames, bins]`."""
    motion: npt.NDArray[np.float32] | None = None
    """Windows of readings of sensors `[n, readings, channels]`, one after the other in time."""
    answer: Integers | None = None
    """Soft targets `[n, answers]`: classes, -1 for none; ``label`` has the one with the highest score."""
    score: npt.NDArray[np.float32] | None = None
    """Score of each answer `[n, answers]`."""
    owner: Integers | None = None
    """`[n]`, the client that the data say owns a sample, for ``partition: natural``."""
    official: Integers | None = None
    """`[n]`, the published split: 0 train, 1 validation, 2 test."""

    def __post_init__(self) -> None:
        for name, (dtype, shape) in _ARRAYS.items():
            array = getattr(self, name)
            if array is not None and (
                not isinstance(array, np.ndarray | JoinedArray)
                or array.ndim != len(shape)
                or not np.issubdtype(array.dtype, dtype)
            ):
                found = f"{array.dtype} {[*array.shape]}" if isinstance(array, np.ndarray) else type(array).__name__
                raise DataError(f"{name} must be an array of {_SAID[dtype]} [{', '.join(shape)}], not {found}")
        n = len(self.label)
        for name in ("group", "text", "image", *SIGNALS, "answer", "score", "owner", "official"):
            array = getattr(self, name)
            if array is not None and len(array) != n:
                raise DataError(f"{name} has {len(array)} entries for {n} labels")
        if self.images is not None and self.image is None and len(self.images) != n:
            raise DataError(f"images has {len(self.images)} entries for {n} labels")
        if not n or self.label.min() < 0 or self.label.max() > len(self.classes):
            raise DataError(f"labels must be 0..{len(self.classes)} (the last for no class), one for each sample")
        if not self.modalities:
            raise DataError("a collection needs images, texts, audio or motion")
        if self.image is not None and (
            self.images is None or not -1 <= self.image.min() <= self.image.max() < len(self.images)
        ):
            raise DataError("image must be an index into images for each sample, or -1 for none")
        if len(self.texts) != len(self.masked):
            raise DataError(
                f"{len(self.texts)} texts, but {len(self.masked)} masked texts: masked are the same texts without the "
                "words that name the class, or the texts themselves"
            )
        if self.text is not None and not -1 <= self.text.min() <= self.text.max() < len(self.texts):
            raise DataError(f"text must be an index into the {len(self.texts)} texts for each sample")
        if (self.answer is None) != (self.score is None):
            raise DataError("answer and score must be given together: the classes of soft targets and their scores")
        if self.official is not None and not 0 <= self.official.min() <= self.official.max() < len(OFFICIAL):
            raise DataError(f"official must be 0..{len(OFFICIAL) - 1}: {', '.join(OFFICIAL)}")

    @property
    def modality_bits(self) -> Integers:
        """Which modalities each sample has: `[n]`, as a sum of image 1, text 2, audio 4 and motion 8."""
        filled = np.full(len(self.label), sum(BITS[modality] for modality in self.modalities))
        for modality, index in (("image", self.image), ("text", self.text)):
            if index is not None:
                filled -= BITS[modality] * (index < 0)
        return filled

    @property
    def modalities(self) -> frozenset[str]:
        """The modalities of its samples."""
        arrays = {"image": self.images, "text": self.text, **{name: getattr(self, name) for name in SIGNALS}}
        return frozenset(modality for modality, array in arrays.items() if array is not None)

    def arrays(self) -> dict[str, AnyArray]:
        """All arrays that are set, by name (not texts and classes)."""
        return {name: array for name in _ARRAYS if (array := getattr(self, name)) is not None}


@dataclass(frozen=True)
class FolderRequest:
    """What ``FolderSet.build`` is to read."""

    size: int | None
    """Height and width of pictures; None: the set's own."""
    folder: Path
    """The folder."""
    on_message: OnMessage
    """Call it with a line of text to report progress."""
    scratch: Path
    """An empty folder for arrays that are too large for memory: the collection may contain memory maps in it.  It is
    deleted once the collection is cached."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """What the columns of a user's table are called, by role."""


@dataclass(frozen=True)
class FolderSet:
    """A data set that is read from a folder of the user's: what an entry point in ``edgefl.datasets`` may name.

    The result is kept on disk under (``revision``, the folder's files and their times, size, columns).
    """

    build: Callable[[FolderRequest], Collection]
    """``build(wanted)`` returns a ``Collection``."""
    find: Callable[[Path | None], Path]
    """``find(given)`` returns the folder, where the scenario gives one (or None) or where it is looked for; raises
    DataError with every place tried."""
    revision: int = 1
    """Raise it whenever ``build`` changes what it returns."""
    summary: str = ""
    """What it holds, in one line, for lists of data sets."""
    natural: Callable[[FolderRequest], Collection] | None = None
    """Gives the collection's owners, labels and splits, by ``build`` or in less time.  Its ``partition`` is then
    ``natural`` and its clients are all owners, if the scenario sets none."""
    vocabulary: str | None = None
    """``data.vocabulary`` of its texts, if the scenario sets none."""


@dataclass(frozen=True)
class DataSet:
    """A data set that is made from installed packages: what an entry point in ``edgefl.datasets`` names.

    The result is kept on disk under (``revision``, versions of ``packages``, size).
    """

    build: Callable[[int | None, OnMessage], Collection]
    """``build(size, on_message)`` returns a ``Collection`` with pictures of ``size`` x ``size`` (None: the set's
    own)."""
    packages: tuple[str, ...] = ()
    """Packages that it reads."""
    revision: int = 1
    """Raise it whenever ``build`` changes what it returns."""
    summary: str = ""
    """What it holds, in one line, for lists of data sets."""

    def versions(self) -> dict[str, str]:
        """Installed versions of the packages that it reads; "" for one that is missing."""
        return {package: library_version(package) or "" for package in self.packages}


def check_fits(shape: Sequence[int], what: str, *, bytes_each: int = 1) -> None:
    """Raise DataError if an array of this shape takes more than the machine's memory; ``what`` describes it."""
    need, have = prod(shape) * bytes_each, psutil.virtual_memory().total
    if need > have:
        raise DataError(f"{what} take {need / 2**30:,.1f} GiB of memory, but this machine has {have / 2**30:,.1f} GiB")


def package_folder(module: str, remedy: str = install_hint("data")) -> Path:
    """Folder of an installed package, found without importing it (the import may be slow or fail).

    Raises DataError with the command that installs it.
    """
    spec = find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise DataError(f"this data set is read from the package {module!r}, which is not installed: {remedy}")
    return Path(spec.submodule_search_locations[0])


def remove_words(words: Iterable[str], text: str) -> str:
    """``text`` without the words that spell a class, whatever their case, parts of hyphenated words included."""
    spelled = _word_pattern(tuple(words))
    return " ".join(cleaned for word in text.split() if (cleaned := spelled.sub("", word).strip("-")))


@cache
def _word_pattern(words: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, words))})(?!\w)", re.IGNORECASE)


def number_keys(keys: Sequence[str]) -> Integers:
    """Number the distinct keys in sorted order, independent of the order of the samples."""
    return np.unique(np.asarray(keys, dtype=str), return_inverse=True)[1].astype(np.int64)


def resize_images(images: npt.NDArray[np.uint8], size: int | None) -> npt.NDArray[np.uint8]:
    """``images`` [n, channels, height, width] at another size (bilinear); unchanged if ``size`` is None."""
    if size is None or images.shape[-1] == size:
        return images
    from PIL import Image

    check_fits((*images.shape[:2], size, size), f"{len(images):,} pictures of {size:,} x {size:,} pixels")
    out = np.empty((*images.shape[:2], size, size), np.uint8)
    for sample in range(len(images)):
        for channel in range(images.shape[1]):
            picture = Image.fromarray(images[sample, channel]).resize((size, size), Image.Resampling.BILINEAR)
            out[sample, channel] = np.asarray(picture)
    return out
