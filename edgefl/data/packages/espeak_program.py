"""The program that runs eSpeak NG: ``espeak_program.py FOLDER`` with the package's folder.

Reads utterances (text, voice, speed, pitch) as a JSON list; writes the sample rate in Hz, the length of each utterance
(int64) and the samples (int16).  It doesn't import edgefl, which would take longer than the synthesis.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

SYNCHRONOUS, DONT_EXIT, UTF8 = 2, 0x8000, 1
SPEED, PITCH = 1, 3
"""Constants of eSpeak NG's header ``speak_lib.h``."""


def library_in(package: Path) -> ctypes.CDLL:
    """Load the library in the package's folder, under its file name on any system."""
    names = ("libespeak-ng.so", "libespeak-ng.dylib", "espeak-ng.dll")
    for path in (package / name for name in names):
        if path.is_file():
            return ctypes.CDLL(str(path))
    sys.exit(f"{package} has none of {', '.join(names)}")


def synthesise(package: Path, utterances: list[tuple[str, str, int, int]]) -> tuple[int, list[npt.NDArray[np.int16]]]:
    """The sample rate in Hz, and the samples of each utterance."""
    library = library_in(package)
    rate = int(library.espeak_Initialize(SYNCHRONOUS, 0, str(package).encode(), DONT_EXIT))
    if rate <= 0:
        sys.exit(f"there are no voices in {package}")
    chunks: list[npt.NDArray[np.int16]] = []

    def collect(samples: Any, count: int, events: int | None) -> int:
        if samples and count > 0:
            chunks.append(np.ctypeslib.as_array(samples, (count,)).copy())
        return 0

    callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)(collect)
    library.espeak_SetSynthCallback(callback)
    waves: list[npt.NDArray[np.int16]] = []
    current = ""
    for text, voice, speed, pitch in utterances:
        if voice != current and library.espeak_SetVoiceByName(voice.encode()):
            sys.exit(f"there is no voice {voice!r}")
        current = voice
        library.espeak_SetParameter(SPEED, speed, 0)
        library.espeak_SetParameter(PITCH, pitch, 0)
        chunks.clear()
        encoded = text.encode()
        library.espeak_Synth(encoded, ctypes.c_size_t(len(encoded) + 1), 0, 0, 0, UTF8, None, None)
        library.espeak_Synchronize()
        waves.append(np.concatenate(chunks) if chunks else np.zeros(0, np.int16))
    return rate, waves


def main() -> None:
    """Synthesise the utterances in standard input, and write the samples to standard output."""
    rate, waves = synthesise(Path(sys.argv[1]), json.load(sys.stdin))
    sys.stdout.buffer.write(np.array([rate, *map(len, waves)], np.int64).tobytes())
    sys.stdout.buffer.write(b"".join(wave.tobytes() for wave in waves))


if __name__ == "__main__":
    main()
