"""Audio: WAV files, resampling, and Kaldi's log mel filter bank, the input of the audio spectrogram transformer.

A wave is float32 ``[n]`` in -1..1; a spectrogram is float32 ``[frames, bins]``, the logarithm of mel energies.
"""

from __future__ import annotations

import math
import struct
import warnings
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from edgefl.arrays import AnyArray, Floats
from edgefl.errors import DataError
from edgefl.models.preprocessing import FLOOR, SILENCE

Wave = npt.NDArray[np.float32]
Spectrogram = npt.NDArray[np.float32]

RATE = 16_000
"""Sample rate of spectrograms in Hz: that of AST's pre-training.  Another one makes another filter bank."""


def read_wav(path: Path) -> tuple[Wave, int]:
    """Read a WAV file: the wave, averaged over channels, and its sample rate in Hz.

    Raises DataError for an invalid file and for a file without samples.
    """
    from scipy.io import wavfile

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", wavfile.WavFileWarning)  # chunks other than audio
            rate, samples = wavfile.read(path)
    except (OSError, ValueError, EOFError, struct.error) as error:
        raise DataError(f"{path} can't be read as a WAV file: {error}") from error
    if not samples.size:
        raise DataError(f"{path} has no samples")
    wave = _to_float(samples)
    return (wave if wave.ndim == 1 else np.asarray(wave.mean(1), np.float32)), int(rate)


def _to_float(samples: AnyArray) -> Wave:
    """Samples of any WAV type as float32 in -1..1."""
    if samples.dtype.kind == "f":
        return samples.astype(np.float32)
    if samples.dtype.kind == "u":  # only 8-bit samples are unsigned
        return np.asarray((samples.astype(np.float32) - 128) / 128, np.float32)
    return np.asarray(samples / -float(np.iinfo(samples.dtype).min), np.float32)


def resample(wave: Wave, rate: int, to: int = RATE) -> Wave:
    """The wave at sample rate ``to``, resampled by a polyphase filter; unchanged if the rates are equal."""
    if rate == to:
        return wave
    from scipy.signal import resample_poly

    common = math.gcd(rate, to)
    up, down = to // common, rate // common
    return np.asarray(resample_poly(wave, up, down, window=_low_pass(max(up, down))), np.float32)


@cache
def _low_pass(steps: int) -> Floats:
    """SciPy's default filter for ``resample_poly``, cached because SciPy computes it on every call."""
    from scipy.signal import firwin

    return np.asarray(firwin(20 * steps + 1, 1 / steps, window=("kaiser", 5.0)))


def mel(frequency: Floats) -> Floats:
    """Kaldi's (and HTK's) mel scale: 1127 ln(1 + f / 700)."""
    return 1127.0 * np.log1p(frequency / 700.0)


@cache
def mel_filters(rate: int, points: int, bins: int) -> Tensor:
    """``[points / 2 + 1, bins]``: triangular filters of equal width in mel, from 20 Hz to half the rate."""
    least, most = mel(np.array([20.0, rate / 2])).tolist()
    edges = np.linspace(least, most, bins + 2)
    mels = mel(np.arange(points // 2 + 1) * rate / points)[:, None]
    left, centre, right = edges[:-2], edges[1:-1], edges[2:]
    triangles = np.minimum((mels - left) / (centre - left), (right - mels) / (right - centre)).clip(0)
    return torch.from_numpy(triangles.astype(np.float32))


def log_mel(wave: Wave, rate: int = RATE, *, bins: int = 128) -> Spectrogram:
    """Kaldi's filter bank ``[frames, bins]`` of 25 ms every 10 ms; a wave shorter than a frame has none.

    Each frame: its mean removed, pre-emphasis 0.97, Hann window, power spectrum of the next power of two, triangles,
    and the natural logarithm.  No dither, no energy, frames within the wave only: AST's front end (Gong et al., 2021).
    """
    length, shift = rate * 25 // 1000, rate // 100
    if len(wave) < length:
        return np.zeros((0, bins), np.float32)
    frames = torch.from_numpy(np.ascontiguousarray(wave, np.float32)).unfold(0, length, shift)
    frames = frames - frames.mean(1, keepdim=True)
    frames = frames - 0.97 * torch.cat([frames[:, :1], frames[:, :-1]], 1)
    points = 1 << (length - 1).bit_length()
    power = torch.fft.rfft(frames * torch.hann_window(length, periodic=False), n=points).abs().square()
    energies = power @ mel_filters(rate, points, bins)
    return np.asarray(energies.clamp_min(FLOOR).log())


def pad_or_cut(spectrogram: Spectrogram, frames: int, fill: float = SILENCE) -> Spectrogram:
    """The spectrogram cut to ``frames`` frames, or padded at the end with ``fill``."""
    out = np.full((frames, spectrogram.shape[1]), fill, np.float32)
    out[: len(spectrogram)] = spectrogram[:frames]
    return out
