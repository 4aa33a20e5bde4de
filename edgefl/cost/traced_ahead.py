"""Works whose traces other processes make while this one goes on; the data of a work without data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from edgefl.work import Description, Pass, Source, StepTrace, TensorSpec, Work, distinct


@dataclass(frozen=True)
class ShapeSource:
    """A source that says what a prediction asks of another, and has no batches: it is small, and can be sent."""

    passes: tuple[Pass, ...]
    specs: tuple[dict[str, dict[str, TensorSpec]], ...]
    batches_of: tuple[dict[str, int], ...]
    samples: tuple[int, ...]

    @classmethod
    def from_work(cls, work: Description, source: Source) -> ShapeSource:
        """What ``source`` says of the passes of ``work``."""
        passes = tuple(distinct(work))
        return cls(
            passes,
            tuple({pattern: dict(source.spec(p, pattern)) for pattern in p.patterns} for p in passes),
            tuple(dict(source.counts(p)) for p in passes),
            tuple(source.size(p) for p in passes),
        )

    def spec(self, pass_: Pass, pattern: str) -> dict[str, TensorSpec]:
        """Shapes of every batch of this pattern: [batch, ...], as the source gave them."""
        return self.specs[self.passes.index(pass_)][pattern]

    def counts(self, pass_: Pass) -> dict[str, int]:
        """Batches per pattern, as the source counted them."""
        return self.batches_of[self.passes.index(pass_)]

    def size(self, pass_: Pass) -> int:
        """Samples that the pass reads, over all patterns, as the source counted them."""
        return self.samples[self.passes.index(pass_)]

    def batches(self, pass_: Pass, seed: int) -> Iterator[tuple[str, dict[str, Tensor]]]:
        """None: a prediction makes its own."""
        return iter(())


@dataclass(frozen=True)
class PriceRequest:
    """A work to be priced on a type of device (cpu, cuda), fitted to its data, and its cost key."""

    device: str
    key: str
    work: Work
    shapes: ShapeSource


class PricingPool(Protocol):
    """Processes that price works."""

    def begin(self, wanted: PriceRequest) -> None:
        """Let one of them price a work, unless one has or does."""

    def take(self, key: str) -> StepTrace | None:
        """The trace of a work, with the kernels' scratch; waits for it.  None if it wasn't begun, or failed."""
