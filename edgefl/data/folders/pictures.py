"""Pictures of a folder, decoded and resized into a memory map, so that a set may be larger than memory."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgefl.arrays import Integers
from edgefl.data.collection import FolderRequest
from edgefl.data.folders.rows import number_by_appearance
from edgefl.errors import DataError
from edgefl.files import read_regular

SIZE = 224
"""Height and width of photographs unless ``data.size`` says otherwise: what ViT and the papers' towers read."""

CHUNK = 256
"""Pictures that threads decode before the first is written: it bounds those in memory, 37 MiB of 224 x 224 pixels."""
SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})

Pixels = npt.NDArray[np.uint8]
Source = Path | bytes


def read_pictures(sources: Sequence[Source], wanted: FolderRequest, name: str) -> tuple[Pixels, Integers]:
    """The readable pictures [m, 3, size, size], and the index of each source's picture, -1 for none.

    Pictures of any shape are scaled to a square (bilinear).  Missing and undecodable files are counted in a message.
    Raises DataError if no picture can be read, or if the disk has too little space.
    """
    size = wanted.size or SIZE
    position = np.full(len(sources), -1, np.int64)
    pixels = _allocate_pixels(wanted, (len(sources), 3, size, size), name)
    failures: dict[str, list[str]] = {"missing": [], "unreadable": []}
    count = 0
    for index, result in _map_in_threads(
        lambda source: _decode_picture(source, size), sources, wanted, f"{name}: pictures"
    ):
        if isinstance(result, str):
            source = sources[index]
            failures[result].append(str(source) if isinstance(source, Path) else f"number {index}")
        else:
            pixels[count], position[index] = result, count
            count += 1
    summary = [f"{len(paths):,} {reason} (first: {paths[0]})" for reason, paths in failures.items() if paths]
    if not count:
        raise DataError(
            f"{name}: none of {len(sources):,} pictures can be read: {', '.join(summary) or 'there are none'}"
        )
    if summary:
        wanted.on_message(
            f"{name}: of {len(sources):,} pictures: {', '.join(summary)}; samples that need them are left out"
        )
    return pixels[:count], position


def groups_of_copies(pixels: Pixels) -> Integers:
    """A number [m] for each picture, in order of appearance; copies have one, so that they are held out together."""
    return number_by_appearance([hashlib.blake2b(picture.tobytes(), digest_size=16).digest() for picture in pixels])


def scale_pictures(images: Pixels, wanted: FolderRequest, name: str) -> Pixels:
    """``images`` [n, channels, height, width] at ``wanted.size`` (bilinear), in a memory map if that changes them."""
    size = wanted.size
    if size is None or images.shape[2:] == (size, size):
        return images
    pixels = _allocate_pixels(wanted, (*images.shape[:2], size, size), name)
    for index, result in _map_in_threads(
        lambda picture: _resize_picture(picture, size), images, wanted, f"{name}: pictures"
    ):
        pixels[index] = result
    return pixels


def _allocate_pixels(wanted: FolderRequest, shape: tuple[int, ...], name: str) -> Pixels:
    """A memory map on disk.  It is copied into the cache, so twice its size must be free."""
    need, free = int(np.prod(shape)), shutil.disk_usage(wanted.scratch).free
    if 2 * need > free:
        raise DataError(
            f"{name}: {shape[0]:,} pictures of {shape[-1]} x {shape[-1]} pixels take {need / 2**30:.1f} GiB, twice "
            f"while they are built; {free / 2**30:.1f} GiB are free at {wanted.scratch}: set a smaller data.size, or "
            "name another folder in EDGEFL_CACHE"
        )
    if not need:
        return np.zeros(shape, np.uint8)
    file = wanted.scratch / f"pictures-{len(list(wanted.scratch.iterdir()))}.npy"
    return np.lib.format.open_memmap(file, mode="w+", dtype=np.uint8, shape=shape)


def _map_in_threads(
    work: Callable[[Any], Any], items: Any, wanted: FolderRequest, what: str
) -> Iterator[tuple[int, Any]]:
    """Yield the index and ``work(item)`` of every item in order, from threads, ``CHUNK`` items at a time."""
    total = len(items)
    next_message = step = max(total // 20, 4 * CHUNK)
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for start in range(0, total, CHUNK):
            yield from enumerate(pool.map(work, items[start : start + CHUNK]), start)
            if start + CHUNK >= next_message:
                wanted.on_message(f"{what}: {min(start + CHUNK, total):,} of {total:,}")
                next_message += step


def _decode_picture(source: Source, size: int) -> Pixels | str:
    from PIL import Image

    try:
        content = source if isinstance(source, bytes) else read_regular(source)
        with Image.open(io.BytesIO(content)) as picture:
            colours = picture.convert("RGB").resize((size, size), Image.Resampling.BILINEAR)
        return np.asarray(colours).transpose(2, 0, 1)
    except FileNotFoundError:
        return "missing"
    except Exception:  # the exception for a broken file depends on the decoder
        return "unreadable"


def _resize_picture(picture: Pixels, size: int) -> Pixels:
    from PIL import Image

    channels = [Image.fromarray(channel).resize((size, size), Image.Resampling.BILINEAR) for channel in picture]
    return np.stack([np.asarray(channel) for channel in channels])
