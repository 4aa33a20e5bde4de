"""Ditto: every client also trains a model of its own, held near the global one (Li et al. 2021, algorithm 1)."""

from collections.abc import Hashable
from dataclasses import replace
from typing import Literal

from pydantic import Field

from edgefl.methods import Method
from edgefl.work import Context, Pass, Work, Wrapper


class Own(Wrapper):
    """A wrapper: runs passes on the client's own model ``own.<parameter>`` in place of the received one."""

    def start(self, ctx: Context, pass_: Pass) -> None:
        """Put the own model into the module; its optimizer's state begins anew in the first of these passes."""
        super().start(ctx, pass_)
        if ctx.optimizer and ctx.notes.setdefault(Own, self) is self:
            ctx.optimizer.state.clear()
        exchange(ctx)

    def finish(self, ctx: Context, pass_: Pass) -> None:
        """Put the global model back into the module, and what has been trained into the outputs."""
        super().finish(ctx, pass_)
        exchange(ctx)


def exchange(ctx: Context) -> None:
    """Exchange the model's parameters with the outputs ``own.<parameter>``."""
    for name, own in ctx.outputs_like("own").items():
        value = own.clone()
        own.copy_(ctx.model.get_parameter(name))
        ctx.model.get_parameter(name).copy_(value)


class Ditto(Method):
    """FedAvg, after whose passes each client trains its own model on the same samples."""

    class Options(Method.Options):
        """``method: {name: ditto, strength: 0.1}``."""

        name: Literal["ditto"] = "ditto"
        strength: float = Field(0.1, ge=0, description="weight lambda that holds a client's own model near the global")

    summary = "FedAvg, and a model of each client's own near the global one"
    paper = "Li, Hu, Beirami and Smith 2021"

    def work(self, kind: str, round: int) -> Work:
        """FedAvg's work, and as many passes on the client's own model with FedProx's term."""
        work = super().work(kind, round)
        personal = work.around("proximal", proximal=self.options.strength).around("own-model").passes
        return replace(
            self.with_own_tensors(work, "own", "/"), passes=(*work.passes, *personal), reference=work.trainable
        )

    def evaluate_client(self, kind: str, round: int, variant: Hashable = None) -> Work:
        """The scores of the client's own model; the received one until it has trained."""
        return self.with_own_tensors(super().evaluate_client(kind, round, variant).around("own-model"), "own", "/")
