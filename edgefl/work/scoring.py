"""Scoring steps: classification from confusion matrices, retrieval from ranks.

They never hold all logits or similarities at once, never call ``.item()``, and no shape depends on data.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from edgefl import registry
from edgefl.errors import MethodError
from edgefl.models.client import ClientModel
from edgefl.work.description import Pass
from edgefl.work.meter.meter import pausing_meter
from edgefl.work.metrics import USUAL, Confusion, Metric, metric
from edgefl.work.steps import Context, Step, following

FINITE = "scores are finite"
"""Key of a scoring step's note: a boolean scalar tensor."""


def note_finite(ctx: Context, scores: Tensor) -> None:
    """Note whether the best of each row of ``scores`` [rows, ...] is finite; not a part of the work's cost.

    The best is NaN in a row with a NaN.  A class that can't be chosen may have the score -inf.
    """
    with pausing_meter():
        finite = scores.amax(-1).isfinite().all()
        ctx.notes[FINITE] = ctx.notes[FINITE] & finite if FINITE in ctx.notes else finite


def spoil_metrics(ctx: Context) -> None:
    """Make every metric NaN if any noted value wasn't finite; not a part of the work's cost."""
    with pausing_meter():
        finite = ctx.notes.pop(FINITE, None)
        if finite is None:  # a pass without samples
            return
        zero = torch.where(finite, 0.0, torch.nan)
        for metric in ctx.metrics.values():
            metric.add_(zero)


def own_metrics(pass_: Pass) -> dict[str, Metric]:
    """The metrics that the scenario names, by name."""
    return {str(given["name"]): metric(given) for given in pass_.args.get("metrics", ())}


@cache
def _usual() -> dict[str, Metric]:
    return {name: metric({"name": name}) for name in USUAL}


def write_metric(ctx: Context, name: str, value: Tensor | Mapping[str, Tensor], suffix: str = "") -> None:
    """Write a metric, or several by name.  Raises MethodError for a value that is no scalar."""
    for each, number in value.items() if isinstance(value, Mapping) else ((name, value),):
        if not isinstance(number, Tensor) or number.numel() != 1:
            found = f"a tensor of shape {list(number.shape)}" if isinstance(number, Tensor) else f"{number!r:.60}"
            raise MethodError(f"{registry.describe_part('metric', name)} must give a scalar tensor, not {found}")
        ctx.metrics[f"{each}{suffix}"] = number.reshape(())


def _sum(name: str, metric: Metric, numbers: Tensor, real: Tensor) -> Tensor:
    """The sum of a metric's numbers over the samples that are ``real`` [batch].  Raises MethodError for others."""
    if not isinstance(numbers, Tensor) or numbers.shape != (len(real), *metric.sums):
        found = f"a tensor {list(numbers.shape)}" if isinstance(numbers, Tensor) else f"{numbers!r:.60}"
        wanted = ["batch", *metric.sums]
        raise MethodError(
            f"{registry.describe_part('metric', name)}: add() gave {found} for {len(real)} samples, not "
            f"[{', '.join(map(str, wanted))}], which its sums say"
        )
    if not metric.sums:
        return (numbers * real).sum()
    return (numbers * real.view(-1, *(1 for _ in metric.sums))).sum(0)


class ScoreClassify(Step):
    """Accuracy, balanced accuracy, macro precision, recall and F1, and top 5; samples labelled -1 are padding.

    Metrics are NaN if the scores of any sample aren't finite.  With several patterns, ``<metric>`` is over all of them,
    and ``<metric>[<pattern>]`` over one.  With the field ``target`` [batch, classes], ``soft_score`` is the mean score
    of the predicted class (VQA).  Writes ``confusion``; ``args.mask`` as for ``classify``.
    """

    metrics_of = "classify"

    def start(self, ctx: Context, pass_: Pass) -> None:
        """Allocate confusion matrices ``[classes, classes]``, with rows of true classes, and sums ``[patterns]``."""
        for pattern in pass_.patterns:
            classes = self._classes(ctx, pass_)
            ctx.output(self._confusion(pass_, pattern), (classes, classes)).zero_()
        for name, each in self._metrics(ctx, pass_).items():
            if each.adds:
                ctx.output(name, (len(pass_.patterns), *each.sums)).zero_()

    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> None:
        """Add the batch's predictions to the confusion matrix and the sums."""
        scores = self.scores(ctx, batch, pattern, pass_)
        confusion = ctx.outputs[self._confusion(pass_, pattern)]
        note_finite(ctx, scores)  # argmax names some class also where scores aren't finite
        predicted, real = scores.argmax(-1), (batch["label"] >= 0).to(confusion.dtype)
        label = batch["label"].clamp_min(0)
        confusion.view(-1).index_add_(0, label * confusion.shape[1] + predicted, real)
        index = pass_.patterns.index(pattern)
        for name, each in self._metrics(ctx, pass_).items():
            if each.adds:
                ctx.outputs[name][index] += _sum(name, each, each.add(scores, label, batch), real)

    def scores(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> Tensor:
        """Class scores ``[batch, classes]``; steps that complete missing modalities differently override this."""
        return ctx.client_model.classify(pattern, batch, pass_.args.get("mask", "zero"))

    def finish(self, ctx: Context, pass_: Pass) -> None:
        """Write the metrics over all patterns and, if there are several, over each that has samples."""
        tables = [ctx.outputs[self._confusion(pass_, pattern)] for pattern in pass_.patterns]
        counts = [torch.stack([c.diagonal(), c.sum(1), c.sum(0)]) for c in tables]
        metrics = self._metrics(ctx, pass_)
        sums = {name: ctx.outputs[name] for name, each in metrics.items() if each.adds}
        whole = Confusion(tables, torch.stack(counts).sum(0))
        self._write(
            ctx, metrics, whole, {n: total.sum(0) if total.dim() > 1 else total.sum() for n, total in sums.items()}, ""
        )
        if len(pass_.patterns) > 1:
            batches = ctx.source.counts(pass_)
            for index, pattern in enumerate(pass_.patterns):
                if batches[pattern]:
                    one = Confusion(tables[index : index + 1], counts[index])
                    self._write(ctx, metrics, one, {n: total[index] for n, total in sums.items()}, f"[{pattern}]")
        spoil_metrics(ctx)

    @staticmethod
    def _write(
        ctx: Context, metrics: Mapping[str, Metric], confusion: Confusion, sums: Mapping[str, Tensor], suffix: str
    ) -> None:
        for name, each in metrics.items():
            write_metric(ctx, name, each.value(confusion, sums.get(name)), suffix)

    @classmethod
    def _metrics(cls, ctx: Context, pass_: Pass) -> dict[str, Metric]:
        """The metrics of the pass by name: those of every classification, and those that the scenario names."""
        classes, fields = cls._classes(ctx, pass_), pass_.args.get("fields", ())
        return {name: each for name, each in (_usual() | own_metrics(pass_)).items() if each.applies(classes, fields)}

    @staticmethod
    def _classes(ctx: Context, pass_: Pass) -> int:
        # a model of pairs has the same classes for samples that lack a modality
        return ctx.client_model.classes(pass_.patterns[0])

    @staticmethod
    def _confusion(pass_: Pass, pattern: str) -> str:
        return "confusion" if len(pass_.patterns) == 1 else f"confusion[{pattern}]"


class ScoreNextToken(Step):
    """Perplexity of a text's tokens given those before them, and how many of them have the highest score.

    Perplexity is exp of the mean over all tokens of minus the logarithm of their probability; padding doesn't count.
    Guessing all tokens alike, it is the size of the vocabulary.  Metrics are NaN if scores aren't finite.  Writes
    ``tokens``; ``args.chunk`` as for ``next-token``.
    """

    chunks = True

    def start(self, ctx: Context, pass_: Pass) -> None:
        """Allocate the sums ``[3]``: of minus log-probabilities, of hits, of tokens."""
        ctx.output("tokens", (3,)).zero_()

    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> None:
        """Add the batch's tokens."""
        model, after = cast(ClientModel, ctx.model), following(batch).flatten()
        hidden = model.tokens(pattern, batch[pattern]).flatten(0, 1)
        chunk = pass_.args.get("chunk", len(hidden))
        for rows, there in zip(hidden.split(chunk), after.split(chunk), strict=True):
            self._add(ctx, model.tower(pattern).vocabulary_scores(rows).to(ctx.floating), there)

    @staticmethod
    def _add(ctx: Context, scores: Tensor, after: Tensor) -> None:
        note_finite(ctx, scores)
        real = (after >= 0).to(scores.dtype)
        sums = ctx.outputs["tokens"]
        sums[0] += F.cross_entropy(scores, after, ignore_index=-1, reduction="sum")
        sums[1] += ((scores.argmax(-1) == after) * real).sum()
        sums[2] += real.sum()

    def finish(self, ctx: Context, pass_: Pass) -> None:
        """Write ``perplexity`` and ``token_accuracy``."""
        lost, hits, count = ctx.outputs["tokens"].unbind()
        ctx.metrics["perplexity"] = (lost / count.clamp_min(1)).exp()
        ctx.metrics["token_accuracy"] = hits / count.clamp_min(1)
        spoil_metrics(ctx)


RECALLS = (1, 5, 10, 50)
NEAR = 1e-6
"""Similarities that differ by at most this count as equal.

The order of summation changes those of 256 numbers in float32 by 1.4e-7; so wider vectors and other orders have room.
"""
BLOCK = 256
"""Rows that are ranked at a time, so that the scores of all items are in memory for these alone.

5,000 rows take 0.4 s, with 64 or 1,024 at a time 0.5 s, and at once 0.9 s.
"""


def recall_chances(above: Tensor, own: Tensor, tied: Tensor) -> Tensor:
    """``[recalls, rows]``: the chance that one of ``own`` items is among the first 1, 5, 10, 50.

    ``above`` items rank higher, ``tied`` others have the same score.  Ties are in random order, so that a constant
    model scores as guessing does: 1 - C(tied, free) / C(tied + own, free) with free = k - above.
    """
    draw = torch.arange(max(RECALLS), device=above.device)
    left = (tied + own)[:, None].sub(draw).clamp_min(1)
    missed = ((tied[:, None] - draw) / left).clamp(0, 1).cumprod(1)
    # chance of the first own item at each draw: sums of small chances are exact where 1 - missed isn't
    before = torch.cat([torch.ones_like(missed[:, :1]), missed[:, :-1]], 1)
    hit = (before * (own[:, None] / left).clamp_max(1)).cumsum(1)
    by_recall = []
    for k in RECALLS:
        free = k - above.long()
        chance = hit.gather(1, (free - 1).clamp_min(0)[:, None])[:, 0]
        by_recall.append(torch.where(free > 0, chance, torch.zeros_like(chance)))
    return torch.stack(by_recall).clamp(0, 1)


class Groups:
    """Groups of rows, such as the captions of an image, and the fold of each row.

    ``group`` [rows] has equal numbers for all rows of a group.  ``share`` [rows] is 1 / the rows of its group.
    Folds have ``fold`` groups each, in order of first occurrence; ``whole`` [folds] is 1 for complete folds, and
    always for the first.
    """

    def __init__(self, group: Tensor, fold: int, dtype: torch.dtype = torch.float32):
        rows = len(group)
        position = torch.arange(rows, device=group.device)
        self.group, self.folds = group, -(-rows // fold) if fold and rows > fold else 0
        self.share = torch.empty(rows, dtype=dtype, device=group.device)
        first = torch.empty_like(position)
        for row in range(0, rows, BLOCK):
            block = slice(row, row + BLOCK)
            same = group[block, None] == group
            count = same.sum(1)
            self.share[block] = 1 / (count.double() if dtype is torch.float64 else count)
            first[block] = torch.where(same, position, rows).amin(1)
        if self.folds:
            starts = (first == position).long()
            self.fold = (starts.cumsum(0)[first] - 1) // fold
            sizes = torch.zeros(self.folds, dtype=torch.int64, device=group.device).index_add_(0, self.fold, starts)
            self.whole = (sizes == fold).to(dtype)
            self.whole[0] = 1

    def recalls(self, query: Tensor, key: Tensor, weight: Tensor, times: Tensor) -> tuple[Tensor, Tensor | None]:
        """Recalls ``[recalls]`` over all rows and as the mean over folds; a row's own items are those of its group.

        ``weight`` [rows] is a row's weight as a query, ``times`` [rows] its weight as an item.
        """
        rows = len(query)
        like: dict[str, Any] = {"dtype": query.dtype, "device": query.device}
        chances = torch.zeros(2 if self.folds else 1, len(RECALLS), rows, **like)
        for row in range(0, rows, BLOCK):
            block = slice(row, row + BLOCK)
            scores = query[block] @ key.T
            same = self.group[block, None] == self.group
            scores -= scores.masked_fill(~same, -torch.inf).amax(1, keepdim=True)
            near = (scores.abs() <= NEAR) * times
            # an image's shares add up to 1, except for rounding
            own = (near * same).sum(1).round().clamp_min(1)
            for scope in range(len(chances)):
                others = ~same if scope == 0 else (self.fold[block, None] == self.fold) & ~same
                above, tied = ((scores > NEAR) * times * others).sum(1).round(), (near * others).sum(1).round()
                chances[scope, :, block] = recall_chances(above, own, tied)
        over_all = (chances[0] * weight).sum(1) / weight.sum()
        if not self.folds:
            return over_all, None
        hits = torch.zeros(len(RECALLS), self.folds, **like).index_add_(1, self.fold, chances[1] * weight)
        count = torch.zeros(self.folds, **like).index_add_(0, self.fold, weight)
        return over_all, (hits / count.clamp_min(NEAR) * self.whole).sum(1) / self.whole.sum()


class ScoreRetrieve(Step):
    """Recall at 1, 5, 10, 50 in both directions over all pairs of the split, their means, and the sum of the R@1.

    Metrics are NaN if any similarity isn't finite.
    With the field ``group`` [batch], pairs of a group share their first item (an image with several captions): the
    image counts once, and is a hit if one of its captions is among the first k.  With ``args.fold`` = n and more than
    n pairs, ``<direction>_r@<k>_fold`` is the mean over disjoint folds of n images, each ranked separately, and
    ``r@1_sum`` adds R@1 of both directions, of the folds and of the whole: for n = 1,000 of 5,000 images the
    papers' R@1_sum on 1K and 5K.  Writes ``embedding.<modality>`` and ``group``.
    """

    metrics_of = "retrieve"

    def start(self, ctx: Context, pass_: Pass) -> None:
        """Allocate both modalities' embeddings ``[pairs, dim]``, and the pairs' groups."""
        (pattern,) = pass_.patterns
        rows = ctx.source.counts(pass_)[pattern] * pass_.batch
        for modality in pattern.split("-"):
            ctx.output(f"embedding.{modality}", (rows, ctx.client_model.dimension))
        if "group" in pass_.args.get("fields", ()):
            ctx.output("group", (rows,), torch.int64)
        ctx.notes["row"] = 0

    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> None:
        """Write the embeddings and groups of a batch of pairs."""
        block = slice(ctx.notes["row"], ctx.notes["row"] + pass_.batch)
        for modality in pattern.split("-"):
            ctx.outputs[f"embedding.{modality}"][block].copy_(ctx.client_model.embed(modality, batch[modality]))
        if "group" in pass_.args.get("fields", ()):
            ctx.outputs["group"][block].copy_(batch["group"])
        ctx.notes["row"] += pass_.batch

    def finish(self, ctx: Context, pass_: Pass) -> None:
        """Rank by cosine similarity, ``BLOCK`` rows at a time, and write the recalls."""
        (pattern,) = pass_.patterns
        first, second = pattern.split("-")
        pairs = ctx.source.size(pass_)
        a, b = (ctx.outputs[f"embedding.{m}"][:pairs] for m in (first, second))
        singles = torch.arange(pairs, device=ctx.device)
        group = ctx.outputs["group"][:pairs] if "group" in ctx.outputs else singles
        groups = Groups(group, pass_.args.get("fold", 0), ctx.floating)
        ones = torch.ones(pairs, dtype=ctx.floating, device=ctx.device)
        directions = {
            f"{first}_to_{second}": groups.recalls(a, b, groups.share, ones),
            f"{second}_to_{first}": groups.recalls(b, a, ones, groups.share),
        }
        for name, (over_all, over_folds) in directions.items():
            for index, k in enumerate(RECALLS):
                ctx.metrics[f"{name}_r@{k}"] = over_all[index]
                if over_folds is not None:
                    ctx.metrics[f"{name}_r@{k}_fold"] = over_folds[index]
        forward, backward = directions.values()
        for index, k in enumerate(RECALLS):
            ctx.metrics[f"r@{k}"] = (forward[0][index] + backward[0][index]) / 2
        ctx.metrics["r@1_both"] = forward[0][0] + backward[0][0]
        if forward[1] is not None and backward[1] is not None:
            ctx.metrics["r@1_sum"] = ctx.metrics["r@1_both"] + forward[1][0] + backward[1][0]
        for name, each in own_metrics(pass_).items():
            write_metric(ctx, name, each.ranking_value(a, b, groups.group))
        for embeddings in (a, b):
            note_finite(ctx, embeddings)
        spoil_metrics(ctx)
