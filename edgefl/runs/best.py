"""The best weights of a run so far: a safetensors file that says its round, metric and value.

New ones are written beside the last.  They take its place when the checkpoint that counts them has been written, so
that a run that is killed in between goes on with the best weights that its checkpoint counts.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError

from edgefl.files import sync
from edgefl.records.run import BestRecord
from edgefl.runs import checkpoints
from edgefl.runs.contents import BEST_FILE
from edgefl.runs.durable import writing
from edgefl.runs.folders import NEXT_FILE

if TYPE_CHECKING:  # a finished run is shown without torch
    from torch import Tensor

FACTS = "edgefl"
"""The key of a file's metadata that has ``round``, ``metric`` and ``value``, as JSON."""


def write(folder: Path, tensors: Mapping[str, Tensor], facts: BestRecord) -> None:
    """Write the weights of a new best round, ``{address: tensor}``.  Raises RunError if the file can't be written."""
    # clones prevent aliases: the file must hold every address, so that other tools can read it
    weights = {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}
    checkpoints.write_tensors(folder / NEXT_FILE, weights, {FACTS: json.dumps(facts.to_data(), sort_keys=True)})


def settle(folder: Path, round: int | None) -> None:
    """Let the weights of this round be the best, and remove others.  Raises RunError if a file can't be changed."""
    new, best = folder / NEXT_FILE, folder / BEST_FILE
    with writing(folder):
        if round is not None and round_of(new) == round:
            os.replace(new, best)
        for path in (new, best):
            if path.exists() and (round is None or round_of(path) != round):
                path.unlink()
        sync(folder)


def rewind(folder: Path, round: int | None) -> None:
    """Keep the best weights of this round and remove others; warns if they are missing.

    Raises RunError if a file can't be changed.
    """
    settle(folder, round)
    if round is not None and not (folder / BEST_FILE).exists():
        message = f"{folder / BEST_FILE} doesn't hold the best weights of round {round}; a later best replaces them"
        warnings.warn(message, RuntimeWarning, stacklevel=2)


def round_of(path: Path) -> int | None:
    """The round of a file's weights; None if there is no such file, or it can't be read."""
    from safetensors import safe_open

    if not path.is_file():
        return None
    try:
        with safe_open(path, "pt") as file:
            return int(json.loads(file.metadata()[FACTS])["round"])
    except (OSError, SafetensorError, ValueError, KeyError, TypeError):
        return None
