"""RoLoRA: B and A train and travel in turn, round by round (Chen, Guo et al. 2025, arXiv 2502.01755)."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from edgefl.methods.lora.lora_method import LoraMethod
from edgefl.models.adapters import FACTORS
from edgefl.work import Item, Work


class RoLora(LoraMethod):
    """FedAvg of B in odd rounds and of A in even ones, while all clients have the other factor in common.

    B is first, because the gradient of A is zero as long as B is.  What a round made of a factor goes down in the next
    one; a client that missed that receives both.
    """

    class Options(LoraMethod.Options):
        """``method: rolora``."""

        name: Literal["rolora"] = "rolora"

    summary = "LoRA whose factors B and A train and travel in turn"
    paper = "Chen, Guo et al. 2025"
    sent_once = FACTORS

    def work(self, kind: str, round: int) -> Work:
        """FedAvg's work on one factor; the other one, which is new, is received in every round."""
        work, new = super().work(kind, round), self.trained_factors(round + 1)

        def receive(item: Item) -> Item:
            return replace(item, fixed=item.fixed and not item.name.endswith(new))

        down = tuple(replace(payload, items=tuple(map(receive, payload.items))) for payload in work.down)
        return replace(work, down=down)

    def trained_factors(self, round: int) -> tuple[str, ...]:
        """B in odd rounds, A in even ones."""
        return FACTORS[1:] if round % 2 else FACTORS[:1]
