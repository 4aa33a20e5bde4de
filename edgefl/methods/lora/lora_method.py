"""What methods that train LoRA's factors have in common: which factors train and travel, and what they refuse."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from edgefl import models
from edgefl.errors import MethodError
from edgefl.methods.protocol import Method
from edgefl.methods.setting import Setting
from edgefl.models.adapters import FACTORS, belongs, chosen_layers, scale
from edgefl.work import Address, Payload, Work


class FactorPair(NamedTuple):
    """Addresses of a linear layer's weight W and of its factors A and B."""

    weight: Address
    first: Address
    second: Address
    transposed: bool
    """Whether W is [in, out], as GPT-2's layers have it."""
    scale: float
    """alpha / rank, by which B A is multiplied."""


class LoraMethod(Method):
    """FedAvg of factors, of which not all train in each round."""

    needs: ClassVar[Mapping[str, object]] = {"adapter": {"name": "lora"}}
    sent_once: ClassVar[tuple[str, ...]] = ()
    """The factors that are received only where a client's copy is older than the server's; others in every round."""
    changes_weights: ClassVar[bool] = False
    """Whether the server changes the weights beside the factors."""

    def __init__(self, options: Any, setting: Setting):
        super().__init__(options, setting)
        name = options.name
        for kind in setting.kinds.values():
            if kind.model.get("adapter", {}).get("name") != "lora":
                raise MethodError(f"adapter.name: {name} trains LoRA's factors alone; write adapter: {{name: lora}}")
            if self.changes_weights and kind.model.get("quantize"):
                raise MethodError(f"{name} changes the weights beside the factors, so leave model's quantize out")
        if setting.averages_products:
            raise MethodError(
                f"schedule.name: {name} combines factors in its own way, and the schedule's averages their products; "
                "write end-to-end, layerwise, progressive, elastic or frozen-prefix, or method: fedavg"
            )
        if self.changes_weights and not setting.aggregation.plain:
            raise MethodError(
                f"aggregation.rule: {name} adds up products of factors; leave out everything but non_finite, or write "
                "method: ffa-lora or rolora"
            )
        factors = {each for kind in setting.kinds for pair in self.pairs(kind) for each in pair[1:3]}
        for part in options.personal:
            if any(belongs(address.split("/", 1)[1], part) for address in factors):
                raise MethodError(
                    f"method.personal: {part} has factors, which {name} combines at the server; leave it out, or write "
                    "method: fedavg"
                )

    def trained_factors(self, round: int) -> tuple[str, ...]:
        """Names of the factors that clients train and send in this round."""
        return FACTORS

    def model_payload(self, kind: str, source: str = "") -> Payload:
        """The whole model, of which what is ``sent_once`` is received only where a copy is older."""
        payload = super().model_payload(kind, source)
        return replace(
            payload, items=tuple(replace(i, fixed=i.fixed or _ends(i.name, self.sent_once)) for i in payload.items)
        )

    def work(self, kind: str, round: int) -> Work:
        """FedAvg's work without the factors that don't train in this round."""
        work, still = super().work(kind, round), {*FACTORS} - {*self.trained_factors(round)}
        up = Method.model_payload(self, kind).only(lambda item: not _ends(item.name, still))
        return replace(work, trainable=tuple(n for n in work.trainable if not _ends(n, still)), up=(up,))

    def pairs(self, kind: str) -> Iterator[FactorPair]:
        """The layers of a kind's model that have factors."""
        model = self.setting.kinds[kind].model
        for name, layer in chosen_layers(models.blueprint(model), model["adapter"]["parts"]):
            weight, first, second = (f"{kind}/{name}.{each}" for each in ("weight", *FACTORS))
            yield FactorPair(weight, first, second, not isinstance(layer, nn.Linear), scale(model["adapter"]))


def plus_product(weight: Tensor, first: Tensor, second: Tensor, pair_scale: float, transposed: bool) -> Tensor:
    """W + scale B A in W's dtype, computed in that of the factors."""
    rows = (weight.T if transposed else weight).to(first.dtype)
    moved = torch.addmm(rows, second, first, alpha=pair_scale)
    return (moved.T if transposed else moved).to(weight.dtype)


def _ends(name: str, factors: Any) -> bool:
    return name.rpartition(".")[2] in factors
