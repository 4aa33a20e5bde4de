"""Speech made by eSpeak NG, which the package espeakng-loader brings (GPL-3, an extra).

The library speaks in a process of its own: it keeps state from utterance to utterance, and so what is said is a
function of what is asked.
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

from edgefl.data.audio import REMEDY, Wave
from edgefl.data.collection import package_folder
from edgefl.errors import DataError

_PROGRAM = Path(__file__).with_name("espeak_program.py")


class Utterance(NamedTuple):
    """``text`` by a ``voice`` ("en-gb-scotland+m3"), at ``speed`` words a minute (80..450) and ``pitch`` 0..100."""

    text: str
    voice: str
    speed: int = 175
    pitch: int = 50


def speak(utterances: Sequence[Utterance]) -> tuple[list[Wave], int]:
    """The wave of each, and their samples a second.

    Raises DataError with the command that installs the library, and with what it refuses.
    """
    package = package_folder("espeakng_loader", REMEDY)
    command = [sys.executable, "-P", str(_PROGRAM), str(package)]
    done = subprocess.run(command, input=json.dumps(utterances).encode(), capture_output=True, check=False)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise DataError(f"eSpeak NG didn't speak: {said[-1] if said else f'it ended with {done.returncode}'}")
    rate, *lengths = np.frombuffer(done.stdout, np.int64, 1 + len(utterances)).tolist()
    samples = np.frombuffer(done.stdout, np.int16, offset=8 * (1 + len(utterances)))
    ends = np.cumsum([0, *lengths]).tolist()
    return [np.float32(2**-15) * samples[i:j].astype(np.float32) for i, j in itertools.pairwise(ends)], rate
