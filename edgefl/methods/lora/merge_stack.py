"""FLoRA's client: it merges the stacked factors into its weights, and begins with fresh factors."""

from __future__ import annotations

import math

from torch import nn

from edgefl.methods.lora.lora_method import plus_product
from edgefl.models.adapters import FACTORS, chosen_layers, scale
from edgefl.work import Context, Pass, Wrapper


class MergeStack(Wrapper):
    """A wrapper: before a work's first batch the weights take in ``stack.<factor>``, and each A that trains is drawn.

    B is zero as it was received.  A is drawn as LoRA's was at first, by each client for itself.
    """

    def start(self, ctx: Context, pass_: Pass) -> None:
        """W + scale B A over the stacks, once in a work; then the inner step's."""
        if ctx.notes.setdefault(MergeStack, self) is self:
            stack, adapter = ctx.like("stack"), ctx.work.model["adapter"]
            for name, layer in chosen_layers(ctx.model, adapter["parts"]):
                first, second = (f"{name}.{each}" for each in FACTORS)
                weight = ctx.model.get_parameter(f"{name}.weight")
                turned = not isinstance(layer, nn.Linear)
                weight.copy_(plus_product(weight, stack[first], stack[second], scale(adapter), turned))
                if first in ctx.trained:
                    nn.init.kaiming_uniform_(ctx.trained[first], a=math.sqrt(5))
        super().start(ctx, pass_)
