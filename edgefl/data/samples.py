"""The data side of a work: the samples that one node can see, as shapes and as batches."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily

from edgefl import seeds
from edgefl.data.collection import IntArray
from edgefl.data.missing import lacking_in_a_test, patterns_of
from edgefl.errors import DataError, suggestion
from edgefl.work.description import Pass, TensorSpec

PADDING = -1
"""Label of the samples that fill the last batch of an evaluation."""


@dataclass(frozen=True)
class Samples:
    """The data side of a work (protocol ``Source``): the sample rows that one node can see.

    ``rows(data, pattern)`` are positions in ``fields(data, whole, pattern, rows, names)``, whose names are those of a
    pattern's specs, or of ``more(data, whole)``, which a pass has to ask for; a declared source has the numbers of
    samples but no ``fields``.  ``whole`` is the pattern itself, or the one of which it lacks a part (``args.whole``).
    ``most[pattern]`` is how many samples an evaluation reads of a pattern unless its pass says otherwise.
    """

    title: str
    specs: Mapping[str, Mapping[str, TensorSpec]]
    rows: Callable[[str, str], IntArray]
    fields: Callable[[str, str, str, IntArray, Collection[str]], dict[str, Tensor]] | None
    most: Mapping[str, int] = field(default_factory=dict)
    more: Callable[[str, str], Mapping[str, TensorSpec]] = lambda data, whole: {}

    def spec(self, pass_: Pass, pattern: str) -> dict[str, TensorSpec]:
        """Shapes of every batch of this pattern: [batch, ...].  Raises DataError for an unknown pattern.

        ``args.fields`` of the pass chooses among its fields.  There only where they are asked for: ``index``, a
        sample's place in the split; ``group``, what belongs together (an image's captions have one); and ``target``
        [classes], what each class is worth as an answer, where the data have more than one right one.
        """
        if pattern not in self.specs:
            raise DataError(f"{self.title} has no {pattern!r} samples; it has: {', '.join(self.specs)}")
        held = {
            **self.specs[pattern],
            "index": TensorSpec((), "int64"),
            **self.more(pass_.data, pass_.args.get("whole", pattern)),
        }
        wanted = pass_.args.get("fields", self.specs[pattern])
        if (whole := pass_.args.get("whole", pattern)) != pattern:
            wanted = [name for name in wanted if name not in whole.split("-") or name in pattern.split("-")]
        for name in wanted:
            if name not in held:
                raise DataError(f"{pattern} samples of {self.title} have no field {name!r}{suggestion(name, held)}")
        return {name: TensorSpec((pass_.batch, *held[name].shape), held[name].dtype) for name in wanted}

    def counts(self, pass_: Pass) -> dict[str, int]:
        """Batches per pattern: full ones only when training, rounded up else."""
        return {
            pattern: self._many(pass_, pattern) // pass_.batch
            if pass_.train
            else -(-self._many(pass_, pattern) // pass_.batch)
            for pattern in pass_.patterns
        }

    def size(self, pass_: Pass) -> int:
        """Samples of one place of the pass, over its patterns; padding isn't counted."""
        return sum(self._many(pass_, pattern) for pattern in pass_.patterns)

    def batches(self, pass_: Pass, seed: int) -> Iterator[tuple[str, dict[str, Tensor]]]:
        """Fresh tensors, pattern after pattern.

        Training passes are shuffled by ``seed`` and drop the rest; others keep their order, and their last batch is
        filled by repeating samples with label ``PADDING``.  With ``args.once`` there is one sample of each group, in a
        training pass a random one: one caption of an image.  Raises DataError for a set that is only declared.
        """
        if self.fields is None:
            raise DataError(
                f"{self.title} is declared only: it has shapes to profile with, but no samples to train or evaluate on"
            )
        for place, pattern in enumerate(pass_.patterns):
            wanted = self.spec(pass_, pattern)
            rows, batch, whole = self._rows(pass_, pattern), pass_.batch, pass_.args.get("whole", pattern)
            order = np.arange(len(rows))
            if pass_.train:
                order = seeds.generator(seed, "shuffle", place).permutation(order)
            if pass_.args.get("once"):
                order = order[np.sort(np.unique(self._groups(pass_, pattern)[order], return_index=True)[1])]
            for index in range(self.counts(pass_)[pattern]):
                chosen = order[index * batch : (index + 1) * batch]
                real = len(chosen)
                chosen = np.resize(chosen, batch)
                fields = self.fields(pass_.data, whole, pattern, rows[chosen], tuple(wanted))
                fields["label"][real:] = PADDING
                fields["index"] = torch.from_numpy(chosen)
                yield pattern, {name: fields[name] for name in wanted}

    def _many(self, pass_: Pass, pattern: str) -> int:
        if pass_.args.get("once"):
            return len(np.unique(self._groups(pass_, pattern)))
        return len(self._rows(pass_, pattern))

    def _groups(self, pass_: Pass, pattern: str) -> IntArray:
        """What each row belongs to; in a declared set, of which nobody knows it, each to itself."""
        rows = self._rows(pass_, pattern)
        if self.fields is None:
            return rows
        with unset_fake_temporarily():  # a prediction asks too, and there are real groups to count
            found = self.fields(pass_.data, pass_.args.get("whole", pattern), pattern, rows, ("group",))["group"]
            groups: IntArray = found.numpy()
        return groups

    def _rows(self, pass_: Pass, pattern: str) -> IntArray:
        whole = pass_.args.get("whole", pattern)
        rows = self.rows(pass_.data, whole)
        if pass_.data == "public":
            rows = rows[: pass_.args.get("samples")]
        elif pass_.data != "private":
            rows = rows[: pass_.args.get("samples", self.most.get(whole))]
        if whole in pass_.args.get("missing", {}):
            # what they lack is the same in every round and for every method: a test of who bears it better
            lacking = lacking_in_a_test(whole, pass_.args["missing"][whole], len(rows))
            rows = rows[lacking == patterns_of(whole).index(pattern)]
        return rows
