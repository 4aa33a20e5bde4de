"""Steps on representations of public samples: computing them, contrasting with them, and distilling from them.

A representation is a unit vector ``[dim]`` of one modality of a public sample; a table of them is
``[public samples, dim]``.  Their passes ask for a batch's ``index``, the rows of the table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from edgefl import registry
from edgefl.work.description import Pass, StepArgs
from edgefl.work.paired_batches import BESIDE, companion
from edgefl.work.steps import Context, Step


class PublicArgs(StepArgs, total=False):
    """Arguments of the steps over public pairs; their classes say what each means."""

    name: str
    others: Sequence[str]
    inter: bool
    intra: bool
    temperature: float
    weight: float
    kl: float
    rescale: bool
    targets: Mapping[str, float]
    distance: str
    alone: str


class Represent(Step):
    """Writes ``<args.name>.<modality>`` [samples, dim] for each of ``args.modalities``."""

    def start(self, ctx: Context, pass_: Pass) -> None:
        """Allocate the tables for all samples."""
        args = cast(PublicArgs, pass_.args)
        for modality in args["modalities"]:
            shape = (ctx.source.size(pass_), ctx.client_model.dimension)
            ctx.output(f"{args['name']}.{modality}", shape)
        ctx.notes["row"] = 0

    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> None:
        """Write the representations of a batch; padding of the last batch is left out."""
        row, args = ctx.notes["row"], cast(PublicArgs, pass_.args)
        for modality in args["modalities"]:
            rows = ctx.outputs[f"{args['name']}.{modality}"][row : row + pass_.batch]
            rows.copy_(ctx.client_model.embed(modality, batch[modality])[: rows.shape[0]])
        ctx.notes["row"] = row + pass_.batch


class _Embedding(nn.Module):
    """A model's ``embed`` as a module's forward, which ``functional_call`` needs."""

    def __init__(self, model: nn.Module, modality: str):
        super().__init__()
        self.model, self.modality = model, modality

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.model.embed(self.modality, x))  # type: ignore[operator]


def embed_as_before(ctx: Context, modality: str, x: Tensor) -> Tensor:
    """``embed`` [batch, dim] of the work's frozen copy of the model (``reference``), in evaluation mode."""
    model, training = ctx.model, ctx.model.training
    model.eval()
    try:
        with torch.no_grad():
            frozen = {f"model.{name}": value for name, value in ctx.reference.items()}
            return cast(Tensor, functional_call(_Embedding(model, modality), frozen, (x,)))
    finally:
        model.train(training)


def inter_loss(own: Tensor, table: Tensor, index: Tensor, temperature: float) -> Tensor:
    """Mean of ``-log softmax_j(own_k . table_j / temperature)[k]`` over the batch; j runs over the whole table."""
    return F.cross_entropy(own @ table.T / temperature, index)


def intra_loss(own: Tensor, near: Tensor, before: Tensor, temperature: float) -> Tensor:
    """``[batch]``: ``-log(e^p / (e^p + e^q))`` with p = own . near and q = own . before, over the temperature."""
    return F.softplus(((own * before).sum(1) - (own * near).sum(1)) / temperature)


class ContrastPublic(Step):
    """CreamFL's local contrast: inter with the other modality's table, intra with the own table and the past.

    Tables are received as ``public.<modality>``.  Args: ``modalities`` that the client has, ``others`` (the other
    modality of each), ``inter`` and ``intra`` (which terms), ``temperature``, ``weight``, and ``rescale`` (inter to
    the magnitude of intra).  The client's representations of the round's start are the outputs ``before.<modality>``,
    or without these are computed by the work's frozen copy of the model.  The pass asks for ``index``.
    """

    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> Tensor:
        """The sum over modalities of inter, plus the mean over all halves of intra."""
        args, index = cast(PublicArgs, pass_.args), batch["index"]
        inter, intra = [], []
        for modality, other in zip(args["modalities"], args["others"], strict=True):
            own = ctx.client_model.embed(modality, batch[modality]).float()
            if args["inter"]:
                inter.append(inter_loss(own, ctx.received[f"public.{other}"], index, args["temperature"]))
            if args["intra"]:
                stored = ctx.outputs.get(f"before.{modality}")
                before = embed_as_before(ctx, modality, batch[modality]).float() if stored is None else stored[index]
                near = ctx.received[f"public.{modality}"][index]
                intra.append(intra_loss(own, near, before, args["temperature"]))
        terms = []
        if intra:
            terms.append(torch.cat(intra).mean())
        if inter:
            term = torch.stack(inter).sum()
            terms.append(term * (terms[0] / term).detach() if args["rescale"] and intra else term)
        return args["weight"] * torch.stack(terms).sum()


class Distill(Step):
    """Trains each modality's representations towards tables ``<target>.<modality>``.

    Args: ``modalities``, ``targets`` (the weight of each) and ``distance``: ``mse`` (mean over all elements) or
    ``norm`` (mean L2 norm).  An optional table ``<target>-share.<modality>`` [samples] has weights of the samples.
    The pass asks for ``index``.
    """

    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> Tensor:
        """The sum over modalities and targets."""
        args, index, terms = cast(PublicArgs, pass_.args), batch["index"], []
        for modality in args["modalities"]:
            own = ctx.client_model.embed(modality, batch[modality]).float()
            for target, weight in args["targets"].items():
                difference = own - ctx.received[f"{target}.{modality}"][index]
                mse = args["distance"] == "mse"
                distance = difference.square().mean(1) if mse else torch.linalg.vector_norm(difference, dim=1)
                share = ctx.received.get(f"{target}-share.{modality}")
                terms.append(weight * (distance if share is None else distance * share[index]).mean())
        return torch.stack(terms).sum()


class Joint(Step):
    """The loss of a private batch plus CreamFL's contrast of the public one beside it, in one step.

    ``args.alone`` names the step of the private batch, ``args.beside`` is the public pass, whose fields the batch has
    as ``beside.<field>``.
    """

    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> Tensor:
        """The sum of the private and the public loss."""
        private = {name: value for name, value in batch.items() if not name.startswith(BESIDE)}
        public = {name.removeprefix(BESIDE): value for name, value in batch.items() if name.startswith(BESIDE)}
        beside = companion(pass_)
        assert beside is not None
        alone: Step = registry.get("step", cast(PublicArgs, pass_.args)["alone"])()
        loss = alone.loss(ctx, private, pattern, pass_)
        assert loss is not None
        return loss + ContrastPublic().loss(ctx, public, beside.patterns[0], beside)
