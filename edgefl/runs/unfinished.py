"""What clients of a round under way have trained, in ``unfinished/round-000013/`` of a run's folder.

It is written like a checkpoint, now and then during a long round, and goes when the round's own checkpoint is there.
A run that is resumed from the checkpoint before plays the round again and trains only the other clients.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError

from edgefl.runs import checkpoints, kept
from edgefl.runs.contents import KEPT, UNFINISHED
from edgefl.runs.durable import writing

if TYPE_CHECKING:  # a finished run is shown without torch
    from torch import Tensor


def write(
    run: Path, round: int, tensors: Mapping[str, Tensor], state: Mapping[str, object], facts: Mapping[str, object]
) -> None:
    """Write the round under way in place of what was written of it.  Raises RunError if that fails."""
    checkpoints.write(run / UNFINISHED, round, tensors, state, facts, keep=1)


def read(run: Path, round: int, facts: Mapping[str, object]) -> tuple[dict[str, Tensor], dict[str, object]] | None:
    """``(tensors, state)`` of this round, if it was under way in a run with these ``facts``; None if not.

    Warns of one that is damaged; its clients train again.
    """
    path = run / UNFINISHED / checkpoints.name(round)
    if not path.is_dir():
        return None
    try:
        tensors, state = checkpoints.read(path)
        kept.check(run / KEPT, state)
        written = checkpoints.manifest_of(path)
        same = (written["made_of"], written["inputs"]) == (facts["made_of"], facts["inputs"])
        return (tensors, state) if same else None
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        warnings.warn(
            f"{path} is damaged, and the clients of round {round} train again: {error}", RuntimeWarning, stacklevel=2
        )
        return None


def kept_files(run: Path) -> frozenset[str]:
    """The files of what clients keep to which the round under way refers."""
    folder = run / UNFINISHED
    return frozenset().union(*(checkpoints.kept_files(folder, round) for round in checkpoints.rounds(folder)))


def drop(run: Path, but: int | None = None) -> None:
    """Remove what was written of rounds under way; not of round ``but``.  Raises RunError if that fails."""
    folder = run / UNFINISHED
    if not folder.is_dir():
        return
    with writing(folder):
        for round in checkpoints.rounds(folder):
            if round != but:
                checkpoints.remove(folder / checkpoints.name(round))
        if not checkpoints.rounds(folder):
            shutil.rmtree(folder)
