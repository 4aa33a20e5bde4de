"""Matching: estimates the class of a sample with one modality, whose prototype completes the other modality.

This is PmcmFL's uni-modal inference.  Without a model, a feature is compared with the prototypes of its own modality.
With a model, a small network that clients trained predicts the class: a ``classifier`` of features, or a ``prior``
that maps a feature to its class's prototype.  Matching models are linear layers with GELUs between them,
``matching.<modality>.<2 i>.weight`` and ``bias``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edgefl.methods.prototypes.losses import Fusing, PrototypeArgs
from edgefl.models.multiway import MODALITIES
from edgefl.work.description import Edit, Pass
from edgefl.work.metrics import top_k_hits
from edgefl.work.scoring import ScoreClassify
from edgefl.work.steps import CLIP_SCALE, Context, Step, clip_loss

DISTANCES = ("l1", "l2", "cosine")
"""Matchings without a model."""
MODELS = ("classifier", "prior")
"""Matchings by a model that clients train."""
MATCHED = (1, 5, 10, 20)
"""Values of k for which the true class is looked for among the k best matches: a choice, of which 1 decides scores."""
ROWS = 32
"""Number of prototypes that are compared with a batch at a time (L1).  Of 1 to 4,096 they are the fastest for 100
samples, 3,129 classes and 512 dimensions: all at once take 11 times as long, and 611 MiB.  The bits are the same."""


# models -------------------------------------------------------------------------------------------------------------


def layers(received: Mapping[str, Tensor], prefix: str) -> list[tuple[Tensor, Tensor]]:
    """Weight and bias of each layer of a matching model, in order."""
    numbers = sorted(
        int(name.removeprefix(prefix).split(".")[0])
        for name in received
        if name.startswith(prefix) and name.endswith(".weight")
    )
    return [(received[f"{prefix}{i}.weight"], received[f"{prefix}{i}.bias"]) for i in numbers]


def shapes(widths: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a matching model's parameters: ``widths`` from its input to its output."""
    parameters: dict[str, tuple[int, ...]] = {}
    for index, (into, out) in enumerate(pairwise(widths)):
        parameters |= {f"{2 * index}.weight": (out, into), f"{2 * index}.bias": (out,)}
    return parameters


def through(x: Tensor, model: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """``[batch, dim] -> [batch, out]``: linear layers with GELUs between them."""
    for index, (weight, bias) in enumerate(model):
        x = F.linear(F.gelu(x) if index else x, weight, bias)
    return x


class Attach:
    """PmcmFL's matching models next to the model; ``args.names`` are their parameters, as received, that train.

    The step that trains them copies them to the outputs; folding removes them from the model.
    """

    @staticmethod
    def names(edit: Edit) -> set[str]:
        """``matching.<modality>.<2 i>.weight`` and ``bias`` of every layer."""
        return set(cast(Sequence[str], edit.args["names"]))

    @staticmethod
    def restrict(edit: Edit, active: Callable[[str], bool], received: set[str]) -> Edit:
        """The edit itself, as matching models belong to no stage."""
        return edit

    @staticmethod
    def apply(edit: Edit, module: nn.Module, received: Mapping[str, Tensor]) -> None:
        """Add the received parameters to the module as ``matching``."""
        matching = nn.ModuleDict()
        for name in cast(Sequence[str], edit.args["names"]):
            _, modality, layer, kind = name.split(".")
            if modality not in matching:
                matching[modality] = nn.ModuleDict()
            models = cast(nn.ModuleDict, matching[modality])
            if layer not in models:
                models[layer] = nn.Module()
            models[layer].register_parameter(kind, nn.Parameter(received[name].clone()))
        module.add_module("matching", matching)

    @staticmethod
    def fold(edit: Edit, module: nn.Module) -> None:
        """Remove ``matching`` from the module."""
        del module.matching


class Features(Step):
    """Writes ``features.<pattern>.<modality>`` [samples, dim]: features of one modality of each sample.

    Args: ``modality``.
    """

    def start(self, ctx: Context, pass_: Pass) -> None:
        """Allocate features for all samples."""
        (pattern,), modality = pass_.patterns, cast(PrototypeArgs, pass_.args)["modality"]
        width = ctx.received[f"prototypes.{modality}"].shape[1]
        ctx.output(f"features.{pattern}.{modality}", (ctx.source.size(pass_), width))
        ctx.notes["row"] = 0

    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> None:
        """Write the features of a batch; padding of the last batch is left out."""
        modality, row = cast(PrototypeArgs, pass_.args)["modality"], ctx.notes["row"]
        rows = ctx.outputs[f"features.{pattern}.{modality}"][row : row + pass_.batch]
        features = cast(Fusing, ctx.model).features({modality: batch[modality]})[modality]
        rows.copy_(features[: rows.shape[0]])
        ctx.notes["row"] = row + pass_.batch


class TrainMatching(Step):
    """Trains the matching model of ``args.modality`` on ``features.<pattern>.<modality>``, by ``args.loss``.

    ``classes``: cross-entropy of a classifier; ``clip``: CLIP's loss between the prior's output for a feature and
    the prototype of its class; ``distance``: their mean squared distance.  The pass asks for ``index`` and ``label``.
    """

    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> Tensor:
        """Mean over the batch."""
        args, label = cast(PrototypeArgs, pass_.args), batch["label"]
        modality = args["modality"]
        own = ctx.outputs[f"features.{pattern}.{modality}"][batch["index"]]
        output = through(own, self._model(ctx, modality)).float()
        if args["loss"] == "classes":
            return F.cross_entropy(output, label)
        near = ctx.received[f"prototypes.{modality}"][label]
        if args["loss"] == "clip":
            return clip_loss(F.normalize(output, dim=-1), F.normalize(near, dim=-1))
        return F.mse_loss(output, near)

    def finish(self, ctx: Context, pass_: Pass) -> None:
        """Copy the matching model to the outputs, as folding removes it from the model."""
        prefix = f"matching.{cast(PrototypeArgs, pass_.args)['modality']}."
        for name, parameter in ctx.model.named_parameters():
            if name.startswith(prefix):
                ctx.output(name, tuple(parameter.shape)).copy_(parameter)

    @staticmethod
    def _model(ctx: Context, modality: str) -> list[tuple[Tensor, Tensor]]:
        return layers(dict(ctx.model.get_submodule("matching").named_parameters()), f"{modality}.")


# matching -----------------------------------------------------------------------------------------------------------


def nearness(feature: Tensor, prototypes: Tensor, distance: str) -> Tensor:
    """``[batch, classes]``: negative distance of ``[batch, dim]`` to ``[classes, dim]``, or their cosine."""
    if distance == "cosine":
        return F.normalize(feature, dim=-1) @ F.normalize(prototypes, dim=-1).T
    if distance == "l2":
        squared = feature.square().sum(1)[:, None] + prototypes.square().sum(1) - 2 * feature @ prototypes.T
        return -squared.clamp_min(0).sqrt()
    parts = [
        (feature[:, None] - prototypes[first : first + ROWS]).abs().sum(-1)
        for first in range(0, prototypes.shape[0], ROWS)
    ]
    return -torch.cat(parts, 1)


def model_scores(
    feature: Tensor, models: Sequence[Sequence[tuple[Tensor, Tensor]]], weights: Tensor, prototypes: Tensor, kind: str
) -> Tensor:
    """``[batch, classes]``: the weighted mean of several matching models' scores; ``weights`` [models].

    A classifier's scores are log-probabilities; a prior's are cosines with the prototypes times CLIP's scale.
    """
    shares = weights / weights.sum().clamp_min(1e-12)
    total = torch.zeros(feature.shape[0], prototypes.shape[0], device=feature.device)
    for model, share in zip(models, shares, strict=True):
        output = through(feature, model).float()
        if kind == "classifier":
            total = total + share * output.softmax(1)
        else:
            total = total + share * CLIP_SCALE * nearness(output, prototypes, "cosine")
    return total.clamp_min(1e-30).log() if kind == "classifier" else total


def mix_prototypes(scores: Tensor, prototypes: Tensor, k: int) -> Tensor:
    """ProtoMix: the prototypes ``[classes, dim]`` of the ``k`` best classes, weighted by the softmax of their scores.

    A classifier's scores are log-probabilities, so that its weights are the probabilities of the k best, normalised.
    With k = 1 this is the prototype of the best class.
    """
    best, classes = scores.topk(min(k, scores.shape[1]), dim=1)
    mixture: Tensor = (best.softmax(1)[..., None] * prototypes[classes]).sum(1)
    return mixture


class ScoreCompleted(ScoreClassify):
    """Scores samples, completed by ``args.inference`` if they lack a modality, and the matching itself.

    ``zero``, ``random`` (normal noise) and ``oracle`` (the prototype of the true class) don't match; ``l1``, ``l2``
    and ``cosine`` compare the given feature with the prototypes of its modality; ``classifier`` and ``prior`` use the
    matching model ``matching.<modality>.*``, or several that are stacked in a first dimension.  The models' weights
    are ``matched.<modality>`` [models]; before any is trained all are 0, and zeros complete.  Prototypes of the
    ``args.mix`` best classes are mixed.  ``matched@<k>[<pattern>]`` is how often the true class is among the k best.
    A pass with ``args.apart`` scores the same samples by one modality: its metrics are ``<metric>[<pattern>]``.
    """

    def start(self, ctx: Context, pass_: Pass) -> None:
        """Allocate also the sums ``matched[<pattern>]``, one for each k and the number of samples."""
        super().start(ctx, pass_)
        if self._matches(pass_):
            for pattern in self._single(pass_):
                ctx.output(f"matched[{pattern}]", (len(MATCHED) + 1,)).zero_()

    def scores(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> Tensor:
        """Class scores ``[batch, classes]``."""
        model, args = cast(Fusing, ctx.model), cast(PrototypeArgs, pass_.args)
        features = model.features({m: batch[m] for m in pattern.split("-")})
        modalities: Sequence[str] = args.get("modalities", MODALITIES)
        for other in modalities:
            if other not in features:
                features[other] = self._completion(ctx, batch, features, pattern, other, args)
        return model.scores(model.fuse(*(features[m] for m in modalities)))

    def _completion(
        self,
        ctx: Context,
        batch: Mapping[str, Tensor],
        features: Mapping[str, Tensor],
        pattern: str,
        other: str,
        args: PrototypeArgs,
    ) -> Tensor:
        own, inference = features[pattern], args["inference"]
        if inference in ("zero", "random"):
            width = args.get("widths", {}).get(other, own.shape[1])
            empty = own.new_zeros(own.shape[0], width)
            return torch.randn_like(empty) if inference == "random" else empty
        table, label = ctx.received[f"prototypes.{other}"], batch["label"]
        if inference == "oracle":
            return table[label.clamp_min(0)]
        prototypes, trained = ctx.received[f"prototypes.{pattern}"], None
        if inference in MODELS:
            weights = ctx.received[f"matched.{pattern}"]
            stacked = layers(ctx.received, f"matching.{pattern}.")
            models = [stacked]
            if stacked[0][0].dim() == 3:
                models = [[(w[i], b[i]) for w, b in stacked] for i in range(weights.shape[0])]
            scores = model_scores(own.float(), models, weights, prototypes, inference)
            trained = (weights.sum() > 0).to(own.dtype)
        else:
            scores = nearness(own.float(), prototypes, inference)
        real = (label >= 0).to(torch.float32)
        matches = [(top_k_hits(scores, label.clamp_min(0), k) * real).sum() for k in MATCHED]
        ctx.outputs[f"matched[{pattern}]"].add_(torch.stack([*matches, real.sum()]))
        completion = mix_prototypes(scores, table, args["mix"])
        return completion if trained is None else completion * trained

    def finish(self, ctx: Context, pass_: Pass) -> None:
        """Write the metrics of ``ScoreClassify``, and how often single modalities matched."""
        before = dict(ctx.metrics)
        super().finish(ctx, pass_)
        if cast(PrototypeArgs, pass_.args).get("apart"):
            (pattern,) = pass_.patterns
            metrics = {f"{name}[{pattern}]": value for name, value in ctx.metrics.items() if "[" not in name}
            for name in [name for name in ctx.metrics if "[" not in name]:
                del ctx.metrics[name]
            ctx.metrics.update({**before, **metrics})
        if self._matches(pass_):
            batches = ctx.source.counts(pass_)
            for pattern in self._single(pass_):
                sums = ctx.outputs[f"matched[{pattern}]"]
                for index, k in enumerate(MATCHED):
                    if batches[pattern]:
                        ctx.metrics[f"matched@{k}[{pattern}]"] = sums[index] / sums[-1].clamp_min(1)

    @staticmethod
    def _matches(pass_: Pass) -> bool:
        return cast(PrototypeArgs, pass_.args)["inference"] in (*DISTANCES, *MODELS)

    @staticmethod
    def _single(pass_: Pass) -> list[str]:
        return [pattern for pattern in pass_.patterns if "-" not in pattern]
