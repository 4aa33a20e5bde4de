"""The best weights of a run so far: a safetensors file that says its round, metric and value.

A new best is written beside the last one.  It takes its place when the checkpoint that counts it has been written, so
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
from edgefl.runs.durable import writing

if TYPE_CHECKING:  # a finished run is shown without torch
    from torch import Tensor

BEST = "best.safetensors"
NEXT = "best-next.safetensors"
"""The file of a new best before a checkpoint counts it."""
FACTS = "edgefl"
"""The key of a file's metadata that has ``round``, ``metric`` and ``value``, as JSON."""


def write(folder: Path, tensors: Mapping[str, Tensor], facts: BestRecord) -> None:
    """Write the new best weights, ``{address: tensor}``.  Raises RunError if the file can't be written."""
    # clones prevent aliases: the file must hold every address, so that other tools can read it
    weights = {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}
    checkpoints.write_tensors(folder / NEXT, weights, {FACTS: json.dumps(facts.to_data(), sort_keys=True)})


def settle(folder: Path) -> None:
    """Let the new best, if there is one, take the place of the last.  Raises RunError if it can't."""
    with writing(folder):
        if (folder / NEXT).exists():
            os.replace(folder / NEXT, folder / BEST)
            sync(folder)


def rewind(folder: Path, round: int | None) -> None:
    """Keep the best weights of ``round`` and remove others; warns if there should be some, and there are none.

    Raises RunError if a file can't be removed.
    """
    if round is not None and round_of(folder / NEXT) == round:
        settle(folder)
    with writing(folder):
        (folder / NEXT).unlink(missing_ok=True)
        if (folder / BEST).exists() and round_of(folder / BEST) != round:
            (folder / BEST).unlink()
    if round is not None and not (folder / BEST).exists():
        message = f"{folder / BEST} doesn't hold the best weights of round {round}; a later best replaces them"
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
