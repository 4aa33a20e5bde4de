"""Pictures of a folder, decoded and resized into a memory map: a set may be larger than memory."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgefl.data.collection import IntArray, Wanted
from edgefl.errors import DataError

SIZE = 224
"""Height and width of photographs unless ``data.size`` says otherwise."""

CHUNK = 256
SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})

Pixels = npt.NDArray[np.uint8]
Source = Path | bytes


def read_pictures(sources: Sequence[Source], wanted: Wanted, name: str) -> tuple[Pixels, IntArray]:
    """The pictures [m, 3, size, size] that can be read, and for each source which of them it is, -1 for none.

    A picture is scaled to a square (bilinear), whatever its form.  Missing files and pictures that can't be decoded
    are counted and told.  Raises DataError if none is left, or the disk hasn't the room.
    """
    size = wanted.size or SIZE
    place = np.full(len(sources), -1, np.int64)
    made = _room(wanted, (len(sources), 3, size, size), name)
    wrong: dict[str, list[str]] = {"missing": [], "unreadable": []}
    kept = 0
    for at, found in _mapped(lambda source: _decoded(source, size), sources, wanted, f"{name}: pictures"):
        if isinstance(found, str):
            source = sources[at]
            wrong[found].append(str(source) if isinstance(source, Path) else f"number {at}")
        else:
            made[kept], place[at] = found, kept
            kept += 1
    told = [f"{len(paths):,} {what} (first: {paths[0]})" for what, paths in wrong.items() if paths]
    if not kept:
        raise DataError(f"{name}: none of {len(sources):,} pictures can be read: {', '.join(told) or 'there are none'}")
    if told:
        wanted.on_message(
            f"{name}: of {len(sources):,} pictures: {', '.join(told)}; samples that need them are left out"
        )
    return made[:kept], place


def scaled(images: Pixels, wanted: Wanted, name: str) -> Pixels:
    """``images`` [n, channels, height, width] at ``wanted.size`` (bilinear), in a memory map if that changes them."""
    size = wanted.size
    if size is None or images.shape[2:] == (size, size):
        return images
    made = _room(wanted, (*images.shape[:2], size, size), name)
    for at, found in _mapped(lambda picture: _resized(picture, size), images, wanted, f"{name}: pictures"):
        made[at] = found
    return made


def _room(wanted: Wanted, shape: tuple[int, ...], name: str) -> Pixels:
    """An array on disk.  It is copied when it is kept, so twice its size must be free."""
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


def _mapped(work: Callable[[Any], Any], items: Any, wanted: Wanted, what: str) -> Iterator[tuple[int, Any]]:
    """``work`` of every item in order, by threads (decoding runs beside Python), a bounded number at a time."""
    total = len(items)
    told = step = max(total // 20, 4 * CHUNK)
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for start in range(0, total, CHUNK):
            yield from enumerate(pool.map(work, items[start : start + CHUNK]), start)
            if start + CHUNK >= told:
                wanted.on_message(f"{what}: {min(start + CHUNK, total):,} of {total:,}")
                told += step


def _decoded(source: Source, size: int) -> Pixels | str:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as picture:
            colours = picture.convert("RGB").resize((size, size), Image.Resampling.BILINEAR)
        return np.asarray(colours).transpose(2, 0, 1)
    except FileNotFoundError:
        return "missing"
    except Exception:  # what a decoder raises for a broken file depends on the format and on where it breaks
        return "unreadable"


def _resized(picture: Pixels, size: int) -> Pixels:
    from PIL import Image

    channels = [Image.fromarray(channel).resize((size, size), Image.Resampling.BILINEAR) for channel in picture]
    return np.stack([np.asarray(channel) for channel in channels])
