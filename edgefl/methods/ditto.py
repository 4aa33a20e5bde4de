"""Ditto: every client also trains a model of its own, held near the global one (Li et al. 2021, algorithm 1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from edgefl.methods.protocol import Method
from edgefl.work import Context, Pass, Work, Wrapper


class Personal(Wrapper):
    """Trains the client's own model v in place of the received w0, with ``strength / 2 ||v - w0||^2`` in the loss."""

    def start(self, ctx: Context, pass_: Pass) -> None:
        """Put v into the module; its optimizer starts anew in the first of these passes."""
        super().start(ctx, pass_)
        if ctx.optimizer and not ctx.notes.setdefault(Personal, False):
            ctx.optimizer.state.clear()
        ctx.notes[Personal] = True
        exchange(ctx)

    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> Tensor | None:
        """The inner step's loss, and the term in a pass that trains; w0 is the work's ``reference``."""
        loss = super().loss(ctx, batch, pattern, pass_)
        if loss is None or not pass_.train:
            return loss
        apart = [(v - ctx.reference[name]).square().sum() for name, v in ctx.trained.items()]
        return loss + float(pass_.args["strength"]) / 2 * torch.stack(apart).sum()

    def finish(self, ctx: Context, pass_: Pass) -> None:
        """Put the global model back."""
        super().finish(ctx, pass_)
        exchange(ctx)


def exchange(ctx: Context) -> None:
    """Exchange the parameters that train with the outputs ``own.<parameter>``."""
    with torch.no_grad():
        for name, own in ctx.outputs_like("own").items():
            value = ctx.trained[name].clone()
            ctx.trained[name].copy_(own)
            own.copy_(value)


class Ditto(Method):
    """FedAvg, after whose passes each client trains its own model on the same samples."""

    class Options(Method.Options):
        """``method: {name: ditto, strength: 0.1}``."""

        name: Literal["ditto"] = "ditto"
        strength: float = Field(0.1, ge=0, description="weight lambda that holds a client's own model near the global")

    summary = "FedAvg, and a model of each client's own near the global one"

    def work(self, kind: str, round: int) -> Work:
        """FedAvg's work, and as many passes on the client's own model, which it keeps."""
        work, own = super().work(kind, round), self.like_model(kind, "own", source="/")
        personal = work.around("personal", strength=self.options.strength).passes
        return replace(
            work, passes=(*work.passes, *personal), down=(*work.down, own), keep=own.names, reference=work.trainable
        )

    def evaluate_client(self, kind: str, round: int) -> Work:
        """The scores of the client's own model; the received one until it has trained."""
        work, own = super().evaluate_client(kind, round), self.like_model(kind, "own", source="/")
        passes = tuple(replace(p, around=(*p.around, "personal")) for p in work.passes)
        trainable, keep = self.setting.kinds[kind].trainable(), (*work.keep, *own.names)
        return replace(work, passes=passes, trainable=trainable, down=(*work.down, own), keep=keep)
