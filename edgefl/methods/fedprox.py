"""FedProx: FedAvg with a proximal term that keeps clients near the received model (Li et al. 2020)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, NotRequired, cast

import torch
from pydantic import Field
from torch import Tensor

from edgefl.methods.protocol import Method
from edgefl.work import Context, Pass, Work, Wrapper
from edgefl.work.description import StepArgs


class ProximalArgs(StepArgs):
    """Arguments of ``Proximal``: mu, and how the distance is measured."""

    proximal: float
    proximal_norm: NotRequired[str]


class Proximal(Wrapper):
    """A wrapper: adds ``mu / 2 ||w - w0||^2`` over the parameters that train; w0 is the work's ``reference``.

    Args: ``proximal`` = mu, and ``proximal_norm``: ``squared``, or ``tensor`` for ``mu / 2 sum_t ||w_t - w0_t||``, as
    in FedCola's public code.
    """

    averages_samples = True

    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> Tensor | None:
        """The inner step's loss and the proximal term; w0 is the work's ``reference``."""
        args = cast(ProximalArgs, pass_.args)
        loss, mu = super().loss(ctx, batch, pattern, pass_), float(args["proximal"])
        if loss is None or not mu:
            return loss
        differences = [p - ctx.reference[n] for n, p in ctx.trained.items()]
        if args.get("proximal_norm") == "tensor":
            return loss + mu / 2 * torch.stack([torch.linalg.vector_norm(d) for d in differences]).sum()
        return loss + mu / 2 * torch.stack([d.square().sum() for d in differences]).sum()


class FedProx(Method):
    """Adds ``mu / 2 ||w - w0||^2`` to every client's loss; w0 is a frozen copy that the client keeps in memory."""

    class Options(Method.Options):
        """``method: {name: fedprox, mu: 0.01}``."""

        name: Literal["fedprox"] = "fedprox"
        mu: float = Field(0.001, ge=0, description="weight mu of the proximal term")
        norm: Literal["squared", "tensor"] = Field(
            "squared",
            description="norm in the proximal term: the squared norm of all parameters (squared), or the sum of each "
            "tensor's norm (tensor, FedCola's public code)",
        )

    summary = "FedAvg with a proximal term in the client's loss"
    paper = "Li et al. 2020"

    def work(self, kind: str, round: int) -> Work:
        """FedAvg's work with the proximal term in each pass."""
        work = super().work(kind, round)
        around = work.around("proximal", proximal=self.options.mu, proximal_norm=self.options.norm)
        return replace(around, reference=work.trainable)
