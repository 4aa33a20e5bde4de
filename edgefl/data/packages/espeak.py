"""Speech synthesis by eSpeak NG, from the package espeakng-loader (GPL-3, an extra).

The library keeps state between utterances.  It runs in a new process for every call, so that the same utterances
always give the same waves.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from edgefl.data.audio import Wave
from edgefl.data.collection import package_folder
from edgefl.errors import DataError, install_hint

_PROGRAM = Path(__file__).with_name("espeak_program.py")


class Utterance(NamedTuple):
    """``text`` by a ``voice`` ("en-gb-scotland+m3"), at ``speed`` words a minute (80..450) and ``pitch`` 0..100."""

    text: str
    voice: str
    speed: int = 175
    pitch: int = 50


def speak(utterances: Sequence[Utterance]) -> tuple[list[Wave], int]:
    """The waves of the utterances, and their sample rate in Hz.

    Raises DataError if the library is not installed or reports an error.
    """
    package = package_folder("espeakng_loader", install_hint("audio"))
    command = [sys.executable, "-P", str(_PROGRAM), str(package)]
    process = subprocess.run(command, input=json.dumps(utterances).encode(), capture_output=True, check=False)
    if process.returncode:
        error_lines = process.stderr.decode(errors="replace").strip().splitlines()
        raise DataError(f"eSpeak NG failed: {error_lines[-1] if error_lines else f'exit status {process.returncode}'}")
    rate, *lengths = np.frombuffer(process.stdout, np.int64, 1 + len(utterances)).tolist()
    samples = np.frombuffer(process.stdout, np.int16, offset=8 * (1 + len(utterances)))
    ends = np.cumsum([0, *lengths]).tolist()
    return [np.float32(2**-15) * samples[i:j].astype(np.float32) for i, j in itertools.pairwise(ends)], rate
