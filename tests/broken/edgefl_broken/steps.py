"""Steps that are broken, each in one place."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional as F

from edgefl.work import Context, Pass, Step

NOTHING = None
seen: dict[str, int] = {}


def usual(ctx: Context, batch: Mapping[str, Tensor], pattern: str) -> Tensor:
    return F.cross_entropy(ctx.client_model.logits(pattern, batch[pattern]), batch["label"])


class Raises(Step):
    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> Tensor:
        return ctx.received["missing"]


class Leaves(Step):
    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> Tensor:
        sys.exit(0)


class StopsWithData(Step):
    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> Tensor:
        if not isinstance(batch["label"], FakeTensor):
            raise type("Stop", (BaseException,), {})("enough")
        return usual(ctx, batch, pattern)


class MuteWithData(Step):
    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> Tensor:
        if not isinstance(batch["label"], FakeTensor):
            raise type("Mute", (Exception,), {"__str__": lambda self: 1 / 0, "__repr__": lambda self: 1 / 0})
        return usual(ctx, batch, pattern)


class LeavesWithData(Step):
    """Nothing is wrong while its cost is predicted, on tensors without data."""

    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> Tensor:
        if not isinstance(batch["label"], FakeTensor):
            sys.exit(0)
        return usual(ctx, batch, pattern)


class Vector(Step):
    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> Tensor:
        return ctx.client_model.logits(pattern, batch[pattern]).sum(1)


class ShortOutput(Step):
    def start(self, ctx: Context, pass_: Pass) -> None:
        ctx.output("table", (3,))

    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> Tensor:
        return usual(ctx, batch, pattern)


class Caching(Step):
    """The first labels that it ever saw stay, in every client."""

    first: Tensor | None = None

    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> Tensor:
        if Caching.first is None:
            Caching.first = batch["label"].clone()
        return usual(ctx, batch, pattern)


class Counting(Step):
    """Counts in a variable of its module what no result shows."""

    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> Tensor:
        seen[pattern] = seen.get(pattern, 0) + 1
        return usual(ctx, batch, pattern)
