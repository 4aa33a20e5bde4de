"""The data side of a work: the samples that one node can see, as shapes and as batches."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily

from edgefl import seeds
from edgefl.arrays import Integers
from edgefl.data.missing import lacking_in_a_test, patterns_of
from edgefl.errors import DataError, suggestion
from edgefl.work.description import POOLED, Pass, TensorSpec

PADDING = -1
"""Label of the samples that fill the last batch of an evaluation."""


@dataclass(frozen=True)
class Samples:
    """The data side of a work (protocol ``Source``): the sample rows that one node can see.

    ``rows(data, pattern)`` are positions that ``fields(data, whole, pattern, rows, names)`` reads.  Names are those of
    the pattern's specs, or optional ones of ``more(data, whole)``; a declared source has numbers of samples but no
    ``fields``.  ``whole`` is the pattern itself, or the full pattern of which a modality is missing (``args.whole``).
    ``most[pattern]`` is the default number of samples that an evaluation reads of a pattern.
    """

    title: str
    specs: Mapping[str, Mapping[str, TensorSpec]]
    rows: Callable[[str, str], Integers]
    fields: Callable[[str, str, str, Integers, Collection[str]], dict[str, Tensor]] | None
    most: Mapping[str, int] = field(default_factory=dict)
    more: Callable[[str, str], Mapping[str, TensorSpec]] = lambda data, whole: {}

    def spec(self, pass_: Pass, pattern: str) -> dict[str, TensorSpec]:
        """Shapes of every batch of this pattern: [batch, ...].  Raises DataError for an unknown pattern.

        ``args.fields`` of the pass selects fields, ``args.also`` adds some, ``args.without`` leaves some out.  Optional
        ones are ``index``, the sample's position in the split; ``group``, shared by samples that belong together (the
        captions of an image); and ``target`` [classes], the score of each class, where the data have several correct
        answers.
        """
        if pattern not in self.specs:
            raise DataError(f"{self.title} has no {pattern!r} samples; it has: {', '.join(self.specs)}")
        available = {
            **self.specs[pattern],
            "index": TensorSpec((), "int64"),
            **self.more(pass_.data, pass_.args.get("whole", pattern)),
        }
        without = pass_.args.get("without", ())
        wanted = [*pass_.args.get("fields", self.specs[pattern]), *pass_.args.get("also", ())]
        wanted = [name for name in wanted if name not in without]
        if (whole := pass_.args.get("whole", pattern)) != pattern:
            wanted = [name for name in wanted if name not in whole.split("-") or name in pattern.split("-")]
        for name in wanted:
            if name not in available:
                raise DataError(
                    f"{pattern} samples of {self.title} have no field {name!r}{suggestion(name, available)}"
                )
        return {name: TensorSpec((pass_.batch, *available[name].shape), available[name].dtype) for name in wanted}

    def counts(self, pass_: Pass) -> dict[str, int]:
        """Batches per pattern: full batches only when training, else rounded up.

        A training pass has ``args.steps`` batches instead where that is given, or ``args.share`` of its full batches,
        rounded down, but at least one; none where there isn't a full batch.
        """
        if not pass_.train:
            return {pattern: -(-self._sample_count(pass_, pattern) // pass_.batch) for pattern in pass_.patterns}
        full = {pattern: self._sample_count(pass_, pattern) // pass_.batch for pattern in pass_.patterns}
        steps, share = pass_.args.get("steps"), pass_.args.get("share", 1.0)
        return {p: (max(1, int(n * share)) if steps is None else steps) if n else 0 for p, n in full.items()}

    def size(self, pass_: Pass) -> int:
        """Samples that the pass reads at a node, over all patterns, without padding."""
        return sum(self._sample_count(pass_, pattern) for pattern in pass_.patterns)

    def batches(self, pass_: Pass, seed: int) -> Iterator[tuple[str, dict[str, Tensor]]]:
        """Fresh tensors, pattern after pattern.

        Training passes are shuffled by ``seed`` and drop an incomplete last batch; one with more ``args.steps`` than
        that gives shuffles the samples again.  With ``args.poisson`` each batch has every sample with the same
        probability, has that share of ``batch`` on average, and ``batch`` at most.  Others keep their order.  What a
        batch lacks is filled by repeating samples with label ``PADDING``.  With ``args.once`` each group gives one
        sample (one caption of an image), a random one in training.  Raises DataError for a set that is only declared.
        """
        if self.fields is None:
            raise DataError(
                f"{self.title} is declared only: it has shapes to profile with, but no samples to train or evaluate on"
            )
        for position, pattern in enumerate(pass_.patterns):
            wanted = self.spec(pass_, pattern)
            rows, batch, whole = self._rows(pass_, pattern), pass_.batch, pass_.args.get("whole", pattern)
            order = np.arange(len(rows))
            if pass_.train:
                order = seeds.generator(seed, "shuffle", position).permutation(order)
            if pass_.args.get("once"):
                order = order[np.sort(np.unique(self._groups(pass_, pattern)[order], return_index=True)[1])]
            full = max(len(order) // batch, 1)
            for step in range(self.counts(pass_)[pattern]):
                again, index = divmod(step, full) if pass_.train else (0, step)
                if again and not index:
                    order = seeds.generator(seed, "shuffle", position, again).permutation(order)
                chosen = order[index * batch : (index + 1) * batch]
                if share := pass_.args.get("poisson"):
                    rng = seeds.generator(seed, "poisson", position, step)
                    chosen = rng.permutation(order[rng.random(len(order)) < share * batch / len(order)])[:batch]
                real = len(chosen)
                if real < batch:
                    chosen = np.resize(chosen, batch)
                fields = self.fields(pass_.data, whole, pattern, rows[chosen], tuple(wanted))
                fields["label"][real:] = PADDING
                fields["index"] = torch.from_numpy(chosen)
                yield pattern, {name: fields[name] for name in wanted}

    def _sample_count(self, pass_: Pass, pattern: str) -> int:
        if pass_.args.get("once"):
            return len(np.unique(self._groups(pass_, pattern)))
        return len(self._rows(pass_, pattern))

    def _groups(self, pass_: Pass, pattern: str) -> Integers:
        """The group of each row; in a declared set, each row is a group of its own."""
        rows = self._rows(pass_, pattern)
        if self.fields is None:
            return rows
        # predictions run on fake tensors, but count real groups; a private name of torch, there in 2.13, without which
        # the import fails
        with unset_fake_temporarily():
            group = self.fields(pass_.data, pass_.args.get("whole", pattern), pattern, rows, ("group",))["group"]
            groups: Integers = group.numpy()
        return groups

    def _rows(self, pass_: Pass, pattern: str) -> Integers:
        whole = pass_.args.get("whole", pattern)
        rows = self.rows(pass_.data, whole)
        if pass_.data == "public":
            rows = rows[: pass_.args.get("samples")]
        elif pass_.data not in (
            "private",
            POOLED,
        ):  # a limit of a split that is held out, the server's or a client's own
            rows = rows[: pass_.args.get("samples", self.most.get(whole))]
        if whole in pass_.args.get("missing", {}):
            # the missing modalities are the same in every round and for every method
            codes = lacking_in_a_test(whole, pass_.args["missing"][whole], len(rows))
            rows = rows[codes == patterns_of(whole).index(pattern)]
        return rows
