"""Steps that score: classification from confusion matrices, retrieval from ranks.  Streamed: neither ever holds all
logits or similarities at once.  They never call ``.item()`` and no shape depends on data."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from edgefl.work.description import Pass
from edgefl.work.steps import Context, Step

TOP = 5
"""Where there are more classes, it counts too whether the true one is among so many best."""


def class_metrics(hits: Tensor, true: Tensor, predicted: Tensor) -> dict[str, Tensor]:
    """Metrics of counts by class ``[classes]``: rightly predicted, there, predicted.

    Classes without samples don't enter the means; a class that is never predicted has precision 0.
    """
    present = (true > 0).float()
    classes = present.sum().clamp_min(1)
    recall, precision = hits / true.clamp_min(1), hits / predicted.clamp_min(1)
    f1 = 2 * hits / (true + predicted).clamp_min(1)
    mean = {name: (each * present).sum() / classes for name, each in (("p", precision), ("r", recall), ("f", f1))}
    return {
        "accuracy": hits.sum() / true.sum().clamp_min(1),
        "balanced_accuracy": mean["r"],
        "macro_precision": mean["p"],
        "macro_recall": mean["r"].clone(),
        "macro_f1": mean["f"],
    }


def place_among(scores: Tensor, label: Tensor, k: int) -> Tensor:
    """``[batch]``: whether the label is among the ``k`` best of ``[batch, classes]``; equal scores share places."""
    own = scores.gather(1, label[:, None])
    above, tied = (scores > own).sum(1), (scores == own).sum(1)
    return ((k - above) / tied.clamp_min(1)).clamp(0, 1)


class ScoreClassify(Step):
    """Accuracy, balanced accuracy, macro precision, recall and F1, and top 5; samples labelled -1 are padding.

    Where the pass has several patterns, each metric is of all of them, and ``<metric>[<pattern>]`` of one.  Where the
    pass asks for the field ``target`` [batch, classes], ``soft_score`` is the mean score of the predicted class (VQA).
    """

    def start(self, ctx: Context, pass_: Pass) -> None:
        """Empty confusion matrices ``[classes, classes]``, rows true, and sums ``[patterns]``."""
        for pattern in pass_.patterns:
            classes = self._classes(ctx, pass_)
            ctx.output(self._confusion(pass_, pattern), (classes, classes)).zero_()
        for name in self._sums(ctx, pass_):
            ctx.output(name, (len(pass_.patterns),)).zero_()

    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> None:
        """Count predictions."""
        scores = self.scores(ctx, batch, pattern, pass_)
        confusion = ctx.outputs[self._confusion(pass_, pattern)]
        predicted, real = scores.argmax(-1), (batch["label"] >= 0).to(confusion.dtype)
        label = batch["label"].clamp_min(0)
        confusion.view(-1).index_add_(0, label * confusion.shape[1] + predicted, real)
        place = pass_.patterns.index(pattern)
        for name in self._sums(ctx, pass_):
            if name == "soft":
                worth = batch["target"].gather(1, predicted[:, None])[:, 0]
            else:
                worth = place_among(scores, label, TOP)
            ctx.outputs[name][place] += (worth * real).sum()

    def scores(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> Tensor:
        """Class scores ``[batch, classes]``: a step that completes what is missing in its own way has its own."""
        return ctx.client_model.classify(pattern, batch, pass_.args.get("mask", "zero"))

    def finish(self, ctx: Context, pass_: Pass) -> None:
        """The metrics, of all patterns and, if there are several, of each that has samples."""
        tables = [ctx.outputs[self._confusion(pass_, pattern)] for pattern in pass_.patterns]
        counts = [torch.stack([c.diagonal(), c.sum(1), c.sum(0)]) for c in tables]
        sums = {name: ctx.outputs[name] for name in self._sums(ctx, pass_)}
        self._tell(ctx, torch.stack(counts).sum(0), {name: each.sum() for name, each in sums.items()}, "")
        if len(pass_.patterns) > 1:
            batches = ctx.source.counts(pass_)
            for place, pattern in enumerate(pass_.patterns):
                if batches[pattern]:
                    self._tell(ctx, counts[place], {n: each[place] for n, each in sums.items()}, f"[{pattern}]")

    @staticmethod
    def _tell(ctx: Context, counts: Tensor, sums: Mapping[str, Tensor], of: str) -> None:
        hits, true, predicted = counts
        for name, value in class_metrics(hits, true, predicted).items():
            ctx.metrics[f"{name}{of}"] = value
        for name, value in sums.items():
            ctx.metrics[f"{name}_{'score' if name == 'soft' else 'accuracy'}{of}"] = value / true.sum().clamp_min(1)

    @staticmethod
    def _classes(ctx: Context, pass_: Pass) -> int:
        # a model that classifies pairs tells what lacks a modality apart into the same classes
        return ctx.client_model.classes(pass_.patterns[0])

    @staticmethod
    def _confusion(pass_: Pass, pattern: str) -> str:
        return "confusion" if len(pass_.patterns) == 1 else f"confusion[{pattern}]"

    @classmethod
    def _sums(cls, ctx: Context, pass_: Pass) -> tuple[str, ...]:
        top = (f"top{TOP}",) if cls._classes(ctx, pass_) > TOP else ()
        return (*top, "soft") if "target" in pass_.args.get("fields", ()) else top


RECALLS = (1, 5, 10, 50)
NEAR = 1e-6
"""Similarities that differ by no more count as equal: a sum's order moves them by so much."""
BLOCK = 256
"""Rows that are ranked at a time."""


def recalled(above: Tensor, own: Tensor, tied: Tensor) -> Tensor:
    """``[recalls, rows]``: the chance that one of ``own`` items is among the first 1, 5, 10, 50.

    ``above`` items come before, ``tied`` others have the same score; their order is a matter of chance, so that a
    constant model scores what guessing does: 1 - C(tied, free) / C(tied + own, free) with free = k - above.
    """
    draw = torch.arange(max(RECALLS), device=above.device)
    left = (tied + own)[:, None].sub(draw).clamp_min(1)
    missed = ((tied[:, None] - draw) / left).clamp(0, 1).cumprod(1)
    # one of them is found at this draw and at none before: sums of small chances are exact where 1 - missed isn't
    before = torch.cat([torch.ones_like(missed[:, :1]), missed[:, :-1]], 1)
    found = (before * (own[:, None] / left).clamp_max(1)).cumsum(1)
    by_recall = []
    for k in RECALLS:
        free = k - above.long()
        chance = found.gather(1, (free - 1).clamp_min(0)[:, None])[:, 0]
        by_recall.append(torch.where(free > 0, chance, torch.zeros_like(chance)))
    return torch.stack(by_recall).clamp(0, 1)


class Groups:
    """Which rows belong together, and which fold each is in.

    ``group`` [rows] has equal numbers for all captions of an image.  ``share`` [rows] is 1 / the rows of its group.
    Folds are of ``fold`` groups each, in the order in which groups first occur; ``whole`` [folds] marks the complete
    ones (the first one too where none is).
    """

    def __init__(self, group: Tensor, fold: int):
        rows = len(group)
        place = torch.arange(rows, device=group.device)
        self.group, self.folds = group, -(-rows // fold) if fold and rows > fold else 0
        self.share = torch.empty(rows, device=group.device)
        first = torch.empty_like(place)
        for row in range(0, rows, BLOCK):
            block = slice(row, row + BLOCK)
            same = group[block, None] == group
            self.share[block] = 1 / same.sum(1)
            first[block] = torch.where(same, place, rows).amin(1)
        if self.folds:
            begins = (first == place).long()
            self.fold = (begins.cumsum(0)[first] - 1) // fold
            sizes = torch.zeros(self.folds, dtype=torch.int64, device=group.device).index_add_(0, self.fold, begins)
            self.whole = (sizes == fold).float()
            self.whole[0] = 1

    def recalls(self, query: Tensor, key: Tensor, weight: Tensor, times: Tensor) -> tuple[Tensor, Tensor | None]:
        """Recalls ``[recalls]`` over all rows and as the mean over folds; an own item is one of the row's group.

        ``weight`` [rows] is what a row counts as a query, ``times`` [rows] what it counts as an item.
        """
        rows = len(query)
        found = torch.zeros(2 if self.folds else 1, len(RECALLS), rows, device=query.device)
        for row in range(0, rows, BLOCK):
            block = slice(row, row + BLOCK)
            scores = query[block] @ key.T
            same = self.group[block, None] == self.group
            scores -= scores.masked_fill(~same, -torch.inf).amax(1, keepdim=True)
            near = (scores.abs() <= NEAR) * times
            # shares of an image add up to one but for rounding
            own = (near * same).sum(1).round().clamp_min(1)
            for scope in range(len(found)):
                seen = ~same if scope == 0 else (self.fold[block, None] == self.fold) & ~same
                above, tied = ((scores > NEAR) * times * seen).sum(1).round(), (near * seen).sum(1).round()
                found[scope, :, block] = recalled(above, own, tied)
        over_all = (found[0] * weight).sum(1) / weight.sum()
        if not self.folds:
            return over_all, None
        hits = torch.zeros(len(RECALLS), self.folds, device=query.device).index_add_(1, self.fold, found[1] * weight)
        count = torch.zeros(self.folds, device=query.device).index_add_(0, self.fold, weight)
        return over_all, (hits / count.clamp_min(NEAR) * self.whole).sum(1) / self.whole.sum()


class ScoreRetrieve(Step):
    """Recall at 1, 5, 10, 50 in both directions over all pairs of the split, their means, and the sum of the R@1.

    Where the pass asks for the field ``group`` [batch], pairs of a group share their first item (an image with several
    captions): the image counts once, and finds its captions if one of them is among the first.  With ``args.fold``
    and more pairs than that, ``<direction>_r@<k>_fold`` is the mean over disjoint folds of so many images, each
    ranked by itself, and ``r@1_sum_folds`` the sum of the R@1 of folds and whole, both directions: of 1,000 in 5,000
    images the papers' R@1_sum on 1K and 5K.
    """

    def start(self, ctx: Context, pass_: Pass) -> None:
        """Room for both modalities' embeddings ``[pairs, dim]`` and for the pairs' groups."""
        (pattern,) = pass_.patterns
        rows = ctx.source.counts(pass_)[pattern] * pass_.batch
        for modality in pattern.split("-"):
            ctx.output(f"embedding.{modality}", (rows, ctx.client_model.dimension))
        if "group" in pass_.args.get("fields", ()):
            ctx.output("group", (rows,), torch.int64)
        ctx.notes["row"] = 0

    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> None:
        """Embed a batch of pairs."""
        block = slice(ctx.notes["row"], ctx.notes["row"] + pass_.batch)
        for modality in pattern.split("-"):
            ctx.outputs[f"embedding.{modality}"][block].copy_(ctx.client_model.embed(modality, batch[modality]))
        if "group" in pass_.args.get("fields", ()):
            ctx.outputs["group"][block].copy_(batch["group"])
        ctx.notes["row"] += pass_.batch

    def finish(self, ctx: Context, pass_: Pass) -> None:
        """Rank by cosine, a few hundred rows at a time."""
        (pattern,) = pass_.patterns
        first, second = pattern.split("-")
        pairs = ctx.source.size(pass_)
        a, b = (ctx.outputs[f"embedding.{m}"][:pairs] for m in (first, second))
        alone = torch.arange(pairs, device=ctx.device)
        groups = Groups(ctx.outputs["group"][:pairs] if "group" in ctx.outputs else alone, pass_.args.get("fold", 0))
        each = torch.ones(pairs, device=ctx.device)
        directions = {
            f"{first}_to_{second}": groups.recalls(a, b, groups.share, each),
            f"{second}_to_{first}": groups.recalls(b, a, each, groups.share),
        }
        for name, (over_all, over_folds) in directions.items():
            for place, k in enumerate(RECALLS):
                ctx.metrics[f"{name}_r@{k}"] = over_all[place]
                if over_folds is not None:
                    ctx.metrics[f"{name}_r@{k}_fold"] = over_folds[place]
        there, back = directions.values()
        for place, k in enumerate(RECALLS):
            ctx.metrics[f"r@{k}"] = (there[0][place] + back[0][place]) / 2
        ctx.metrics["r@1_sum"] = there[0][0] + back[0][0]
        if there[1] is not None and back[1] is not None:
            ctx.metrics["r@1_sum_folds"] = ctx.metrics["r@1_sum"] + there[1][0] + back[1][0]
