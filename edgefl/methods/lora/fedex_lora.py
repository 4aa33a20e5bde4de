"""FedEx-LoRA: what FedAvg of factors misses is added to the weights (Singhal et al. 2024, arXiv 2410.09432)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from torch import Tensor

from edgefl.methods.aggregation.products import product_at, with_products
from edgefl.methods.aggregation.updates import Updates
from edgefl.methods.lora.lora_method import LoraMethod
from edgefl.methods.state import ServerState
from edgefl.work import Address, Payload, Work
from edgefl.work.update import Update


class FedExLora(LoraMethod):
    """FedAvg of A and B; W becomes ``W + scale (mean_i B_i A_i - mean_i B_i mean_i A_i)``, and goes to all clients."""

    class Options(LoraMethod.Options):
        """``method: fedex-lora``."""

        name: Literal["fedex-lora"] = "fedex-lora"

    summary = "LoRA whose weights take in what the mean of factors misses"
    paper = "Singhal, Ponkshe and Vepakomma 2024"
    changes_weights = True

    def model_payload(self, kind: str, source: str = "") -> Payload:
        """The whole model, whose weights beside factors are received where their factors are."""
        payload, weights = super().model_payload(kind, source), {pair.weight for pair in self.pairs(kind)}
        return replace(
            payload, items=tuple(replace(i, fixed=i.fixed and i.source not in weights) for i in payload.items)
        )

    def aggregate(self, state: ServerState, updates: Sequence[Update]) -> ServerState:
        """FedAvg of factors, and each layer's residual, of changes ``B_i A_i - B A`` of what a client began with."""
        after, changed = super().aggregate(state, updates), dict[Address, Tensor]()
        for pair in (pair for kind in self.setting.kinds for pair in self.pairs(kind)):
            b = pair.second
            before = {b: product_at(state.tensors, b)}
            sent = [replace(with_products(u, before), base={b: product_at(u.base, b)}) for u in updates if b in u.base]
            moved = Updates(sent).deltas(before, self.update_weight, self.setting.aggregation)[0]
            if b in moved:
                residual = pair.scale * (before[b] + moved[b] - product_at(after.tensors, b))
                weight = state.tensors[pair.weight]
                residual = residual.T if pair.transposed else residual
                changed[pair.weight] = (weight.to(residual.dtype) + residual).to(weight.dtype)
        return after.with_tensors(changed)

    def changed_addresses(self, work: Work) -> set[Address]:
        """What it sends, and the weights beside its factors."""
        sent = set(super().changed_addresses(work))
        return sent | {pair.weight for pair in self.pairs(work.kind) if pair.second in sent}

    def export(self, state: ServerState, kind: str) -> Mapping[str, Tensor]:
        """The changed weights, which aren't those that an adapter's folder names."""
        return {pair.weight.split("/", 1)[1]: state.tensors[pair.weight] for pair in self.pairs(kind)}
