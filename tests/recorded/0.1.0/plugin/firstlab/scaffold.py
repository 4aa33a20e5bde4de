from dataclasses import replace
from typing import Literal

from edgefl.methods import Method
from edgefl.work import Wrapper


class Control(Wrapper):
    """Adds c - c_i to every gradient, and makes the new c_i at the end."""

    def gradient(self, ctx, pass_):
        super().gradient(ctx, pass_)
        c, own = ctx.like("c"), ctx.like("own")
        for name, parameter in ctx.trained.items():
            if parameter.grad is not None:
                parameter.grad.add_(c[name]).sub_(own[name])

    def finish(self, ctx, pass_):
        super().finish(ctx, pass_)
        c, own = ctx.like("c"), ctx.like("own")
        new_own, change = ctx.outputs_like("own"), ctx.outputs_like("change")
        for name, y in ctx.trained.items():
            moved = (ctx.reference[name] - y) / (max(ctx.updates, 1) * ctx.work.scalars["lr"])
            change[name].copy_(moved - c[name])
            new_own[name].copy_(own[name] + change[name])


class MyScaffold(Method):
    """FedAvg with control variates against the drift of clients."""

    class Options(Method.Options):
        name: Literal["my-scaffold"] = "my-scaffold"

    summary = "FedAvg with control variates"
    plain_sgd = True

    def work(self, kind, round):
        work = super().work(kind, round).around("my-control")
        work = self.keeping(work, "own")
        c, change = self.like_model(kind, "c"), self.like_model(kind, "change", source="table/c/")
        return replace(work, down=(*work.down, c), up=(*work.up, change), reference=work.trainable)

    def aggregate(self, state, updates):
        changes = self.sums(state, updates, "change", lambda update: 1 / self.setting.clients[update.kind])
        return super().aggregate(state, updates).changed(self.plus(state, changes))
