from typing import Literal

from pydantic import Field

from edgefl.methods import Method
from edgefl.work import Wrapper


class KeepLargest(Wrapper):
    """Sets all but the largest entries of every gradient to zero; arg ``share``."""

    def gradient(self, ctx, pass_):
        super().gradient(ctx, pass_)
        for parameter in ctx.trained.values():
            if parameter.grad is not None:
                size = parameter.grad.abs()
                count = max(1, int(pass_.args["share"] * size.numel()))
                parameter.grad.mul_(size >= size.flatten().topk(count).values[-1])


class Sparse(Method):
    """FedAvg whose clients train with sparse gradients."""

    class Options(Method.Options):
        name: Literal["sparse"] = "sparse"
        share: float = Field(0.1, gt=0, le=1, description="share of each gradient's entries that is kept")

    summary = "FedAvg with sparse gradients"

    def work(self, kind, round):
        return super().work(kind, round).around("keep-largest", share=self.options.share)
