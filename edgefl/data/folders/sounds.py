"""Sounds of a folder as log mel energies in a memory map, so that a set may be larger than memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from edgefl.data.audio import Spectrogram, log_mel, pad_or_cut, read_wav, resample
from edgefl.data.collection import FolderRequest
from edgefl.errors import DataError
from edgefl.models.preprocessing import SILENCE

TOLD_EVERY = 500
"""Sounds between two messages: some seconds."""


def read_sounds(
    paths: Sequence[Path], wanted: FolderRequest, name: str, frames: int, bins: int, fill: float = SILENCE
) -> tuple[Spectrogram, list[int]]:
    """Spectrograms [m, frames, bins] of the readable WAV files, at 16,000 samples a second, and the indices of these.

    Shorter ones are padded with ``fill``.  Raises DataError if none can be read.
    """
    shape = len(paths), frames, bins
    energies: Spectrogram = np.lib.format.open_memmap(
        wanted.scratch / "sound.npy", mode="w+", dtype=np.float32, shape=shape
    )
    readable: list[int] = []
    errors: list[str] = []
    for index, path in enumerate(paths):
        if index % TOLD_EVERY == 0:
            wanted.on_message(f"{name}: sounds: {index:,} of {len(paths):,}")
        try:
            wave = resample(*read_wav(path))
        except DataError as error:
            errors.append(str(error))
            continue
        energies[len(readable)] = pad_or_cut(log_mel(wave, bins=bins), frames, fill)
        readable.append(index)
    if not readable:
        raise DataError(f"{name}: none of {len(paths):,} sounds can be read: {errors[0]}")
    if errors:
        wanted.on_message(f"{name}: {errors[0]}")
    return energies[: len(readable)], readable
