"""How raw pictures, texts and spectrograms become the tensors that a model takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, PrivateAttr, model_validator
from torch import Tensor

from edgefl.errors import DataError, RunError
from edgefl.modalities import MODALITIES

TOKENIZER = "tokenizer.json"
"""The file of a run's tokenizer, beside the file of its preprocessing."""
FLOOR = 2.0**-23
"""The least energy of a spectrogram (float32's epsilon, as in Kaldi's port): the logarithm of silence is -15.94."""
SILENCE = math.log(FLOOR)


class _Facts(BaseModel):
    model_config = ConfigDict(frozen=True)  # fields of later versions are ignored


class ImagePreprocessing(_Facts):
    """``(bytes - mean) / deviation`` by channel, of pictures of one size."""

    channels: PositiveInt = Field(description="channels of a picture: 1 is grey, 3 is RGB")
    size: PositiveInt = Field(description="height and width in pixels, to which pictures are scaled (bilinear)")
    mean: tuple[float, ...] = Field(description="mean of each channel's bytes, 0 to 255, in the training samples")
    deviation: tuple[PositiveFloat, ...] = Field(description="standard deviation of each channel's bytes there")

    @model_validator(mode="after")
    def _by_channel(self) -> ImagePreprocessing:
        if not len(self.mean) == len(self.deviation) == self.channels:
            raise ValueError(f"{self.channels} channels need as many means and deviations")
        return self

    def normalise(self, pixels: Tensor) -> Tensor:
        """Bytes ``[n, channels, height, width]`` as float32."""
        mean, deviation = map(torch.from_numpy, self._moments)
        return pixels.to(torch.float32).sub_(mean).div_(deviation)

    @cached_property
    def _moments(self) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Means and deviations ``[channels, 1, 1]``, made once, because each batch took 80 us to make them.

        They are arrays, because tensors would be in the measured peak of the one work that made them.
        """
        mean, deviation = np.array([self.mean, self.deviation], np.float32)[..., None, None]
        return mean, deviation

    def __call__(self, images: Any) -> Tensor:
        """Tensors ``[n, channels, size, size]`` of a picture or of several.

        A picture is an image of PIL, or bytes 0 to 255 as an array or a tensor: ``[channels, height, width]``,
        ``[height, width, channels]``, or ``[height, width]`` where there is one channel.  Raises DataError for others.
        """
        several = isinstance(images, list | tuple) or getattr(images, "ndim", 0) == 4
        pixels = [self._pixels(image) for image in (images if several else (images,))]
        shape = (len(pixels), self.channels, self.size, self.size)
        return self.normalise(torch.from_numpy(np.stack(pixels)) if pixels else torch.zeros(shape))

    def _pixels(self, image: Any) -> npt.NDArray[np.uint8]:
        """A picture's bytes ``[channels, size, size]``."""
        from PIL import Image

        if isinstance(image, Image.Image):
            if self.channels not in (1, 3):
                raise DataError(f"a picture has {self.channels} channels here: give its bytes as an array")
            image = np.asarray(image.convert("L" if self.channels == 1 else "RGB"))
        pixels = np.asarray(image)
        if pixels.dtype != np.uint8:
            raise DataError(f"pictures are images of PIL or bytes from 0 to 255 (uint8), not {pixels.dtype} values")
        pixels = pixels[None] if pixels.ndim == 2 else pixels
        if pixels.ndim == 3 and pixels.shape[0] != self.channels and pixels.shape[2] == self.channels:
            pixels = pixels.transpose(2, 0, 1)
        if pixels.ndim != 3 or pixels.shape[0] != self.channels or not pixels.size:
            raise DataError(f"a picture of {self.channels} channels is expected, not one of shape {np.shape(image)}")
        if pixels.shape[1:] == (self.size, self.size):
            return pixels
        scaled = [Image.fromarray(c).resize((self.size, self.size), Image.Resampling.BILINEAR) for c in pixels]
        return np.stack([np.asarray(channel) for channel in scaled])


class TextPreprocessing(_Facts):
    """Token ids of texts, padded or cut to one length."""

    tokens: PositiveInt = Field(description="tokens of a text: shorter texts are padded, longer ones cut")
    tokenizer: str = Field(default=TOKENIZER, description="the tokenizer's file in the run's folder")
    _folder: Path = PrivateAttr(Path())

    @cached_property
    def _read(self) -> Any:
        from tokenizers import Tokenizer

        path = self._folder / Path(self.tokenizer).name
        try:
            return Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises no narrower class
            raise RunError(f"can't read {path}: {error}") from error

    def __call__(self, texts: str | Sequence[str]) -> Tensor:
        """Token ids ``[n, tokens]`` of a text or of several.  Raises RunError if the tokenizer can't be read."""
        several = [texts] if isinstance(texts, str) else texts
        # one by one: a process that has used the library's threads warns when it forks
        ids = [self._read.encode(text).ids for text in several]
        return torch.tensor(ids, dtype=torch.int64).reshape(len(ids), self.tokens)


class AudioPreprocessing(_Facts):
    """``(energies - mean) / (2 deviation)`` of log mel spectrograms of one length, as AST takes them."""

    bins: PositiveInt = Field(description="frequency bins of a spectrogram")
    frames: PositiveInt = Field(description="points in time: shorter spectrograms are padded with silence, longer cut")
    mean: float = Field(description="mean of the log mel energies in the training samples")
    deviation: PositiveFloat = Field(description="standard deviation of the log mel energies there")

    def normalise(self, energies: Tensor) -> Tensor:
        """Log mel energies ``[n, frames, bins]``, in place."""
        return energies.sub_(self.mean).div_(2 * self.deviation)

    def __call__(self, spectrograms: Any) -> Tensor:
        """Tensors ``[n, frames, bins]`` of a spectrogram ``[frames, bins]`` or of several, such as
        ``edgefl.data.audio.log_mel`` gives.  Raises DataError for another number of bins."""
        several = isinstance(spectrograms, list | tuple) or getattr(spectrograms, "ndim", 0) == 3
        out = np.full((len(spectrograms) if several else 1, self.frames, self.bins), SILENCE, np.float32)
        for row, given in zip(out, spectrograms if several else (spectrograms,), strict=True):
            energies = np.asarray(given, np.float32)
            if energies.ndim != 2 or energies.shape[1] != self.bins:
                raise DataError(f"a spectrogram of [frames, {self.bins} bins] is expected, not one of {energies.shape}")
            row[: len(energies)] = energies[: self.frames]
        return self.normalise(torch.from_numpy(out))


class MotionPreprocessing(_Facts):
    """``(readings - mean) / deviation`` by channel, of windows of one length."""

    readings: PositiveInt = Field(description="points in time of a window")
    mean: tuple[float, ...] = Field(description="mean of each channel in the training samples")
    deviation: tuple[PositiveFloat, ...] = Field(description="standard deviation of each channel there")

    def normalise(self, windows: Tensor) -> Tensor:
        """Windows ``[n, readings, channels]``, in place."""
        return windows.sub_(torch.tensor(self.mean)).div_(torch.tensor(self.deviation))

    def __call__(self, windows: Any) -> Tensor:
        """Tensors ``[n, readings, channels]`` of a window ``[readings, channels]`` or of several.

        Raises DataError for windows of another shape.
        """
        values = np.array(windows, np.float32)
        values, shape = values[None] if values.ndim == 2 else values, (self.readings, len(self.mean))
        if values.ndim != 3 or values.shape[1:] != shape:
            raise DataError(f"windows of {list(shape)} readings and channels are expected, not {list(values.shape)}")
        return self.normalise(torch.from_numpy(values))


class Preprocessing(_Facts):
    """The preprocessing of each modality of a kind's model, and the names of its classes."""

    image: ImagePreprocessing | None = Field(None, description="of pictures, if the model takes them")
    text: TextPreprocessing | None = Field(None, description="of texts, if the model takes them")
    audio: AudioPreprocessing | None = Field(None, description="of spectrograms, if the model takes them")
    motion: MotionPreprocessing | None = Field(None, description="of windows of readings, if the model takes them")
    classes: tuple[str, ...] = Field((), description="names of the classes in the order of the model's scores")

    @property
    def by_modality(
        self,
    ) -> dict[str, ImagePreprocessing | TextPreprocessing | AudioPreprocessing | MotionPreprocessing]:
        """Those of the model's modalities, in the order in which the model takes them."""
        return {modality: part for modality in MODALITIES if (part := getattr(self, modality)) is not None}

    def __call__(self, *raw: Any) -> tuple[Tensor, ...]:
        """The model's inputs of a batch: ``model(*preprocessing(images, texts))``.

        Raises DataError for raw inputs of another number or sort.
        """
        parts = self.by_modality
        if len(raw) != len(parts):
            raise DataError(f"the model takes {' and '.join(parts)}: {len(raw)} inputs were given")
        return tuple(part(each) for part, each in zip(parts.values(), raw, strict=True))

    def beside(self, folder: Path) -> Preprocessing:
        """The same, with a tokenizer that is read from this folder."""
        if self.text is None:
            return self
        text = self.text.model_copy()
        text._folder = folder
        return self.model_copy(update={"text": text})
