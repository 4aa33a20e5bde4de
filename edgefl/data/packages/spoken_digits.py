"""Spoken digits: 1,797 synthesised English number words, paired with the handwritten digits of ``digits``.

Every picture of a digit has a clip of the same digit.  90 voices (6 accents, 15 timbres of eSpeak NG) say each digit
twice or more, each time at another speed and pitch.  A voice is the ``group`` that is held out and the ``owner`` of
its samples, so that test voices don't occur in training.
"""

from __future__ import annotations

import numpy as np

from edgefl import seeds
from edgefl.data.audio import log_mel, pad_or_cut, resample
from edgefl.data.collection import Collection, DataSet, OnMessage
from edgefl.data.packages import digits
from edgefl.data.packages.espeak import Utterance, speak

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
ACCENTS = ("en-us", "en", "en-gb-scotland", "en-gb-x-rp", "en-gb-x-gbclan", "en-029")
# without breathy voices, whose noise differs on every call
TIMBRES = ("m1", "m2", "m3", "m4", "m5", "m6", "m7", "m8", "f1", "f4", "klatt", "klatt3", "croak", "linda", "steph")
VOICES = tuple(f"{accent}+{timbre}" for accent in ACCENTS for timbre in TIMBRES)
FRAMES, BINS = 80, 64
"""80 frames are 0.8 seconds: the longest clip has 76.  64 bins are a choice, not measured, half of ADVANCE's."""


def build(size: int | None, on_message: OnMessage) -> Collection:
    """Pictures [1797, 1, 8, 8] and log mel energies [1797, 80, 64]."""
    pictures = digits.build(size, on_message)
    label, voice = pictures.label, np.zeros(len(pictures.label), np.int64)
    for digit in range(len(WORDS)):
        rows = np.flatnonzero(label == digit)
        voice[rows] = np.arange(len(rows)) % len(VOICES)
    draw = seeds.generator(0, "spoken digits")
    speed, pitch = draw.integers(130, 221, len(label)), draw.integers(25, 76, len(label))
    on_message(f"speaking {len(label)} digits with eSpeak NG")
    order = np.argsort(voice, kind="stable")  # changing the voice takes as long as a word
    waves, rate = speak(
        [
            Utterance(WORDS[d], VOICES[v], s, p)
            for d, v, s, p in np.stack([label, voice, speed, pitch], 1)[order].tolist()
        ]
    )
    audio = np.empty((len(label), FRAMES, BINS), np.float32)
    for row, wave in zip(order, waves, strict=True):
        audio[row] = pad_or_cut(log_mel(resample(wave, rate), bins=BINS), FRAMES)
    return Collection(digits.CLASSES, label, voice, pictures.images, audio=audio, owner=voice)


SPOKEN_DIGITS = DataSet(build, ("espeakng-loader", "scikit-learn"),
    summary="the pictures of digits, and digits spoken by a synthesiser",
)  # fmt: skip
