"""FFA-LoRA: A stays as it was drawn, and B alone trains and travels (Sun, Li, Li and Ding 2024, arXiv 2403.12313)."""

from __future__ import annotations

from typing import Literal

from edgefl.methods.lora.lora_method import LoraMethod
from edgefl.models.adapters import FACTORS


class FFALora(LoraMethod):
    """FedAvg of B alone: with one A for all clients the mean of the products B A is the product of the mean B."""

    class Options(LoraMethod.Options):
        """``method: ffa-lora``."""

        name: Literal["ffa-lora"] = "ffa-lora"

    summary = "LoRA whose A stays as it is; B alone trains and travels"
    paper = "Sun, Li, Li and Ding 2024"
    sent_once = FACTORS[:1]

    def trained_factors(self, round: int) -> tuple[str, ...]:
        """B."""
        return FACTORS[1:]
