"""SCAFFOLD: control variates correct the drift of clients (Karimireddy et al. 2020, algorithm 1, option II)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from edgefl.methods import Method, ServerState, Update
from edgefl.work import Context, Pass, Work, Wrapper


class Control(Wrapper):
    """A wrapper: adds c - c_i to every gradient; at the end c_i+ = c_i - c + (x - y_i) / (K lr) after K updates.

    Reads ``control.<parameter>`` and ``own.<parameter>``, writes ``change.<parameter>`` and ``own.<parameter>``.
    """

    def gradient(self, ctx: Context, pass_: Pass) -> None:
        """g + c - c_i."""
        super().gradient(ctx, pass_)
        server, own = ctx.like("control"), ctx.like("own")
        for name, parameter in ctx.trained.items():
            if parameter.grad is not None:
                parameter.grad.add_(server[name]).sub_(own[name])

    def finish(self, ctx: Context, pass_: Pass) -> None:
        """The change c_i+ - c_i, and c_i+; x is the work's ``reference``."""
        super().finish(ctx, pass_)
        server, own, change, new = ctx.like("control"), ctx.like("own"), *map(ctx.outputs_like, ("change", "own"))
        for name, parameter in ctx.trained.items():
            if ctx.updates:  # else it saw no gradient, and c_i stays
                moved = (ctx.reference[name] - parameter) / (ctx.updates * ctx.work.number("lr"))
                change[name].copy_(moved.sub_(server[name]))
            new[name].copy_(own[name] + change[name])


class Scaffold(Method):
    """FedAvg with a control variate c of the server and one of each client, c_i, which estimate gradients."""

    class Options(Method.Options):
        """``method: scaffold``."""

        name: Literal["scaffold"] = "scaffold"

    summary = "FedAvg with control variates against the drift of clients"
    paper = "Karimireddy et al. 2020"
    plain_sgd = True

    def work(self, kind: str, round: int) -> Work:
        """FedAvg's work, with c down, c_i kept and the change of c_i up."""
        work = self.with_own_tensors(super().work(kind, round).around("control"), "own")
        server, change = self.like_model(kind, "control"), self.like_model(kind, "change", source="table/control/")
        return replace(work, down=(*work.down, server), up=(*work.up, change), reference=work.trainable)

    def aggregate(self, state: ServerState, updates: Sequence[Update]) -> ServerState:
        """FedAvg's mean of the models, and c + sum_i (c_i+ - c_i) / N for N clients of the kind."""
        control = self.sums(state, updates, "change", lambda update: 1 / self.setting.clients[update.kind])
        return super().aggregate(state, updates).with_tensors(self.plus(state, control))
