"""The data side of a work: the samples that one node can see, as shapes and as batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from edgefl import seeds
from edgefl.data.collection import IntArray
from edgefl.errors import DataError, suggestion
from edgefl.work.description import Pass, TensorSpec

PADDING = -1
"""Label of the samples that fill the last batch of an evaluation."""


@dataclass(frozen=True)
class Samples:
    """The data side of a work (protocol ``Source``): the sample rows that one node can see.

    ``rows[data, pattern]`` are positions in ``fields``; a declared source has their numbers but no ``fields``.
    ``most[pattern]`` is how many samples an evaluation reads of a pattern unless its pass says otherwise.
    """

    title: str
    specs: Mapping[str, Mapping[str, TensorSpec]]
    rows: Callable[[str, str], IntArray]
    fields: Callable[[str, IntArray], dict[str, Tensor]] | None
    most: Mapping[str, int] = field(default_factory=dict)

    def spec(self, pass_: Pass, pattern: str) -> dict[str, TensorSpec]:
        """Shapes of every batch of this pattern: [batch, ...].  Raises DataError for an unknown pattern.

        ``args.fields`` of the pass chooses among its fields; ``index``, a sample's place in the split, is there only
        where it is asked for.
        """
        if pattern not in self.specs:
            raise DataError(f"{self.title} has no {pattern!r} samples; it has: {', '.join(self.specs)}")
        held = {**self.specs[pattern], "index": TensorSpec((), "int64")}
        wanted = pass_.args.get("fields", self.specs[pattern])
        for name in wanted:
            if name not in held:
                raise DataError(f"{pattern} samples of {self.title} have no field {name!r}{suggestion(name, held)}")
        return {name: TensorSpec((pass_.batch, *held[name].shape), held[name].dtype) for name in wanted}

    def counts(self, pass_: Pass) -> dict[str, int]:
        """Batches per pattern: full ones only when training, rounded up else."""
        return {
            pattern: len(self._rows(pass_, pattern)) // pass_.batch
            if pass_.train
            else -(-len(self._rows(pass_, pattern)) // pass_.batch)
            for pattern in pass_.patterns
        }

    def size(self, pass_: Pass) -> int:
        """Samples that one place of the pass draws from, over its patterns; padding isn't counted."""
        return sum(len(self._rows(pass_, pattern)) for pattern in pass_.patterns)

    def batches(self, pass_: Pass, seed: int) -> Iterator[tuple[str, dict[str, Tensor]]]:
        """Fresh tensors, pattern after pattern.

        Training passes are shuffled by ``seed`` and drop the rest; others keep their order, and their last batch is
        filled by repeating samples with label ``PADDING``.  Raises DataError for a set that is only declared.
        """
        if self.fields is None:
            raise DataError(
                f"{self.title} is declared only: it has shapes to profile with, but no samples to train or evaluate on"
            )
        for place, pattern in enumerate(pass_.patterns):
            wanted = self.spec(pass_, pattern)
            rows, batch = self._rows(pass_, pattern), pass_.batch
            order = np.arange(len(rows))
            if pass_.train:
                order = seeds.generator(seed, "shuffle", place).permutation(order)
            for index in range(self.counts(pass_)[pattern]):
                chosen = order[index * batch : (index + 1) * batch]
                real = len(chosen)
                chosen = np.resize(chosen, batch)
                fields = self.fields(pattern, rows[chosen])
                fields["label"][real:] = PADDING
                fields["index"] = torch.from_numpy(chosen)
                yield pattern, {name: fields[name] for name in wanted}

    def _rows(self, pass_: Pass, pattern: str) -> IntArray:
        rows = self.rows(pass_.data, pattern)
        if pass_.data == "public":
            rows = rows[: pass_.args.get("samples")]
        elif pass_.data != "private":
            rows = rows[: pass_.args.get("samples", self.most.get(pattern))]
        return rows
