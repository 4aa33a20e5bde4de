"""The program in which eSpeak NG speaks: ``espeak_program.py FOLDER`` with the package's folder.

Reads utterances (text, voice, speed, pitch) as a JSON list; writes the number of samples a second, the length of each
(int64) and their samples (int16).  Imports nothing of edgefl, which would take longer than the speaking.
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


def library_in(package: Path) -> ctypes.CDLL:
    """The library in the package's folder, whatever the system calls it."""
    names = ("libespeak-ng.so", "libespeak-ng.dylib", "espeak-ng.dll")
    for path in (package / name for name in names):
        if path.is_file():
            return ctypes.CDLL(str(path))
    sys.exit(f"{package} has none of {', '.join(names)}")


def spoken(package: Path, utterances: list[tuple[str, str, int, int]]) -> tuple[int, list[npt.NDArray[np.int16]]]:
    """Samples a second, and the samples of each."""
    library = library_in(package)
    rate = int(library.espeak_Initialize(SYNCHRONOUS, 0, str(package).encode(), DONT_EXIT))
    if rate <= 0:
        sys.exit(f"it finds no voices in {package}")
    heard: list[npt.NDArray[np.int16]] = []

    def hear(samples: Any, count: int, events: int | None) -> int:
        if samples and count > 0:
            heard.append(np.ctypeslib.as_array(samples, (count,)).copy())
        return 0

    callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)(hear)
    library.espeak_SetSynthCallback(callback)
    found: list[npt.NDArray[np.int16]] = []
    current = ""
    for text, voice, speed, pitch in utterances:
        if voice != current and library.espeak_SetVoiceByName(voice.encode()):
            sys.exit(f"it has no voice {voice!r}")
        current = voice
        library.espeak_SetParameter(SPEED, speed, 0)
        library.espeak_SetParameter(PITCH, pitch, 0)
        heard.clear()
        written = text.encode()
        library.espeak_Synth(written, ctypes.c_size_t(len(written) + 1), 0, 0, 0, UTF8, None, None)
        library.espeak_Synchronize()
        found.append(np.concatenate(heard) if heard else np.zeros(0, np.int16))
    return rate, found


def main() -> None:
    """From standard input to standard output."""
    rate, found = spoken(Path(sys.argv[1]), json.load(sys.stdin))
    sys.stdout.buffer.write(np.array([rate, *map(len, found)], np.int64).tobytes())
    sys.stdout.buffer.write(b"".join(x.tobytes() for x in found))


if __name__ == "__main__":
    main()
