"""FedDyn: a regulariser that changes with each client's past (Acar et al. 2021, algorithm 1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, cast

from pydantic import Field
from torch import Tensor

from edgefl.methods import Method, ServerState, Update
from edgefl.work import Context, Pass, Work, Wrapper
from edgefl.work.description import StepArgs


class DynamicArgs(StepArgs):
    """Arguments of ``Dynamic``."""

    alpha: float


class Dynamic(Wrapper):
    """A wrapper: adds ``alpha / 2 ||w - w0||^2 - g_i . w`` to the loss; at the end g_i+ = g_i - alpha (w - w0).

    Reads and writes ``own.<parameter>``; ``args.alpha``.
    """

    averages_samples = True

    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> Tensor | None:
        """The inner step's loss and both terms; w0 is the work's ``reference``, arg ``alpha``."""
        loss, own = super().loss(ctx, batch, pattern, pass_), ctx.like("own")
        if loss is None:
            return None
        alpha = cast(DynamicArgs, pass_.args)["alpha"]
        for name, w in ctx.trained.items():
            loss = loss + alpha / 2 * (w - ctx.reference[name]).square().sum() - (own[name] * w).sum()
        return loss

    def finish(self, ctx: Context, pass_: Pass) -> None:
        """g_i+, which the client keeps."""
        super().finish(ctx, pass_)
        own, new, alpha = ctx.like("own"), ctx.outputs_like("own"), cast(DynamicArgs, pass_.args)["alpha"]
        for name, parameter in ctx.trained.items():
            new[name].copy_(own[name] - alpha * (parameter - ctx.reference[name]))


class FedDyn(Method):
    """Mean of the clients' models without weights, minus h / alpha; h = h - alpha / N sum_i (w_i - w0)."""

    class Options(Method.Options):
        """``method: {name: feddyn, alpha: 0.01}``."""

        name: Literal["feddyn"] = "feddyn"
        alpha: float = Field(0.01, gt=0, description="weight of the regulariser")

    summary = "FedAvg with a regulariser that aligns the clients' optima with the server's"
    paper = "Acar et al. 2021"

    def work(self, kind: str, round: int) -> Work:
        """FedAvg's work with the regulariser; the client keeps g_i."""
        work = self.with_own_tensors(super().work(kind, round).around("dynamic", alpha=self.options.alpha), "own")
        return replace(work, reference=work.trainable)

    def aggregate(self, state: ServerState, updates: Sequence[Update]) -> ServerState:
        """``mean_i w_i - h+ / alpha``; h+ / alpha is the sum of all changes so far, divided by -N."""
        mean = self.combine(state, updates, lambda address, cohort: {address: 1.0}, weight=lambda update: 1.0)
        change = self.sums(state, updates, "model", lambda update: 1 / self.setting.clients[update.kind])
        drift = self.plus(state, {f"table/drift/{a}": c for a, c in change.items() if a not in self.setting.buffers})
        along = {a: drift[f"table/drift/{a}"] for a in mean if f"table/drift/{a}" in drift}
        moved = {a: (t + along[a]).to(t.dtype) if a in along else t for a, t in mean.items()}
        return state.with_tensors({**moved, **drift})
