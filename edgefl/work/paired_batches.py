"""Batches of another pass beside those of a pass: a step that looks at two splits at once."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from torch import Tensor

from edgefl import seeds
from edgefl.errors import MethodError
from edgefl.work.description import Pass, Source

BESIDE = "beside."
"""Before the names of the fields that come from the other pass."""


def companion(pass_: Pass) -> Pass | None:
    """The pass that ``args.beside`` describes."""
    raw = pass_.args.get("beside")
    return Pass(**{**raw, "patterns": tuple(raw["patterns"])}) if raw else None


def batches(source: Source, pass_: Pass, seed: int) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """The pass's batches; each with the fields ``beside.<field>`` of a batch of its companion, if it has one.

    The companion starts again, in another order, as often as it takes.  Raises MethodError if it has no batch.
    """
    other = companion(pass_)
    if other is None:
        yield from source.batches(pass_, seed)
        return
    if not sum(source.counts(other).values()):
        raise MethodError(f"there is no {other.data} batch of {other.batch} samples to stand beside the private ones")
    more = _round_and_round(source, other, seed)
    for pattern, batch in source.batches(pass_, seed):
        yield pattern, {**batch, **{f"{BESIDE}{name}": value for name, value in next(more).items()}}


def _round_and_round(source: Source, pass_: Pass, seed: int) -> Iterator[dict[str, Tensor]]:
    for lap in count():
        for _, batch in source.batches(pass_, seeds.key(seed, "beside", lap)):
            yield batch
