from typing import Literal

import torch
from pydantic import Field

from edgefl.methods import ServerOptimizer


class SignStep(ServerOptimizer):
    """A step of equal size in every coordinate, along the sign of a running mean update."""

    class Options(ServerOptimizer.Options):
        name: Literal["sign-step"] = "sign-step"
        decay: float = Field(0.9, ge=0, lt=1, description="decay of the running mean")

    default_lr = 0.001
    keeps = ("mean",)

    def step(self, value, change, kept):
        mean = self.own.decay * kept.get("mean", torch.zeros_like(value)) + (1 - self.own.decay) * change
        return value + self.lr * mean.sign(), {"mean": mean}
