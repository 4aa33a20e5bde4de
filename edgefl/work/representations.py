"""Steps on representations of public samples: making them, contrasting with them, and learning from them.

A representation is a unit vector ``[dim]`` of one modality of a public sample; a table of them is
``[public samples, dim]``.  Their passes ask for a batch's ``index``, the rows of the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from edgefl.work.description import Pass
from edgefl.work.steps import Context, Step


class Represent(Step):
    """Writes ``<args.name>.<modality>`` [samples, dim] for each of ``args.modalities``."""

    def start(self, ctx: Context, pass_: Pass) -> None:
        """Room for every sample."""
        for modality in pass_.args["modalities"]:
            shape = (ctx.source.size(pass_), ctx.client_model.dimension)
            ctx.output(f"{pass_.args['name']}.{modality}", shape)
        ctx.notes["row"] = 0

    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> None:
        """Represent a batch; what only fills the last one is left out."""
        row = ctx.notes["row"]
        for modality in pass_.args["modalities"]:
            rows = ctx.outputs[f"{pass_.args['name']}.{modality}"][row : row + pass_.batch]
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
    """CreamFL's local contrast: towards the other modality's table, and towards the own one, away from the past.

    Tables are received as ``public.<modality>``.  Args: ``modalities`` that the client has, ``others`` (the other
    modality of each), ``inter`` and ``intra`` (which terms), ``temperature``, ``weight``, and ``rescale`` (inter to
    the magnitude of intra).  What the client was like at the round's start is in the outputs ``before.<modality>``
    or, where there are none, computed by the work's frozen copy of the model.
    """

    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> Tensor:
        """The sum over modalities of inter, plus the mean over all halves of intra."""
        args, index = pass_.args, batch["index"]
        inter, intra = [], []
        for modality, other in zip(args["modalities"], args["others"], strict=True):
            own = ctx.client_model.embed(modality, batch[modality]).float()
            if args["inter"]:
                inter.append(inter_loss(own, ctx.received[f"public.{other}"], index, args["temperature"]))
            if args["intra"]:
                kept = ctx.outputs.get(f"before.{modality}")
                before = embed_as_before(ctx, modality, batch[modality]).float() if kept is None else kept[index]
                near = ctx.received[f"public.{modality}"][index]
                intra.append(intra_loss(own, near, before, args["temperature"]))
        terms = []
        if intra:
            terms.append(torch.cat(intra).mean())
        if inter:
            term = torch.stack(inter).sum()
            terms.append(term * (terms[0] / term).detach() if args["rescale"] and intra else term)
        return cast(Tensor, args["weight"] * torch.stack(terms).sum())


class Distill(Step):
    """Moves each modality's representations to the table ``target.<modality>``.

    Args: ``modalities``, ``weight``, and ``distance``: ``mse`` (mean over all elements) or ``norm`` (mean length).
    """

    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> Tensor:
        """The sum over modalities."""
        terms = []
        for modality in pass_.args["modalities"]:
            own = ctx.client_model.embed(modality, batch[modality]).float()
            apart = own - ctx.received[f"target.{modality}"][batch["index"]]
            if pass_.args["distance"] == "mse":
                terms.append(apart.square().mean())
            else:
                terms.append(torch.linalg.vector_norm(apart, dim=1).mean())
        return cast(Tensor, pass_.args["weight"] * torch.stack(terms).sum())
