"""Batches of a pass paired with those of another, for steps that read two data splits at once."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any, cast

from torch import Tensor

from edgefl import seeds
from edgefl.errors import MethodError
from edgefl.work.description import Pass, Source

BESIDE = "beside."
"""Prefix of the names of fields that come from the other pass."""


def companion(pass_: Pass) -> Pass | None:
    """The pass that ``args.beside`` describes, if any."""
    raw = pass_.args.get("beside")
    return Pass(**cast(Any, {**raw, "patterns": tuple(cast(list[str], raw["patterns"]))})) if raw else None


def batches(source: Source, pass_: Pass, seed: int) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """The pass's batches; each with the fields ``beside.<field>`` of a batch of its companion, if it has one.

    The companion is repeated, in a new order each time, as often as needed.  Raises MethodError if it has no batch.
    """
    other = companion(pass_)
    if other is None:
        yield from source.batches(pass_, seed)
        return
    if not sum(source.counts(other).values()):
        raise MethodError(
            f"the {other.data} data have no batch of {other.batch} samples to pair with the private batches"
        )
    companions = _repeat_batches(source, other, seed)
    for pattern, batch in source.batches(pass_, seed):
        yield pattern, {**batch, **{f"{BESIDE}{name}": value for name, value in next(companions).items()}}


def _repeat_batches(source: Source, pass_: Pass, seed: int) -> Iterator[dict[str, Tensor]]:
    for epoch in count():
        for _, batch in source.batches(pass_, seeds.key(seed, "beside", epoch)):
            yield batch
