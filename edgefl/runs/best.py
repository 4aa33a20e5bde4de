"""The best weights of a run so far: safetensors files that say their round, metric and value.

New ones are written beside the last.  They take their places when the checkpoint that counts them has been written, so
that a run that is killed in between goes on with the best weights that its checkpoint counts.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError

from edgefl.files import sync
from edgefl.records.run import BestRecord
from edgefl.runs import checkpoints
from edgefl.runs.contents import BEST_FILES
from edgefl.runs.durable import writing
from edgefl.runs.folders import NEXT_FILES

if TYPE_CHECKING:  # a finished run is shown without torch
    from torch import Tensor

FACTS = "edgefl"
"""The key of a file's metadata that has ``round``, ``metric`` and ``value``, as JSON."""


def write(folder: Path, tensors: Mapping[str, Tensor], facts: BestRecord) -> None:
    """Write the weights of a new round among the best, ``{address: tensor}``.

    Raises RunError if the file can't be written.
    """
    # clones prevent aliases: the file must hold every address, so that other tools can read it
    weights = {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}
    checkpoints.write_tensors(_free(folder), weights, {FACTS: json.dumps(facts.to_data(), sort_keys=True)})


def _free(folder: Path) -> Path:
    return next(path for name in NEXT_FILES if not (path := folder / name).exists())


def settle(folder: Path, rounds: Sequence[int]) -> None:
    """Let the weights of these rounds, the best first, take the names of their ranks, and remove others.

    A run that is killed at any point in between settles them again, since each file says its round.  Raises RunError if
    a file can't be renamed or removed.
    """
    with writing(folder):
        paths = [path for name in (*NEXT_FILES, *BEST_FILES) if (path := folder / name).exists()]
        found = {round: path for path in paths if (round := round_of(path)) is not None}
        ranked = {folder / name: found[r] for name, r in zip(BEST_FILES, rounds, strict=False) if r in found}
        for target, path in ranked.items():  # first out of each other's way
            if path != target and path.name in BEST_FILES:
                ranked[target] = path.rename(_free(folder))
        for target, path in ranked.items():
            os.replace(path, target)
        for path in paths:
            if path not in ranked:
                path.unlink(missing_ok=True)
        sync(folder)


def rewind(folder: Path, rounds: Sequence[int]) -> None:
    """Keep the best weights of these rounds and remove others; warns of each whose weights are missing.

    Raises RunError if a file can't be renamed or removed.
    """
    settle(folder, rounds)
    for name, round in zip(BEST_FILES, rounds, strict=False):
        if not (folder / name).exists():
            message = f"{folder / name} doesn't hold the best weights of round {round}; a later best replaces them"
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
