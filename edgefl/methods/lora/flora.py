"""FLoRA: the clients' factors are stacked, and every client merges the stack (Wang et al. 2024, arXiv 2409.05976)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from edgefl.errors import MethodError
from edgefl.methods.lora.lora_method import FactorPair, LoraMethod, plus_product
from edgefl.methods.setting import Setting
from edgefl.methods.state import ServerState
from edgefl.models.adapters import FACTORS
from edgefl.work import Address, Item, Payload, TensorSpec, Work
from edgefl.work.update import Update

Sender = tuple[Update, float, Mapping[Address, Tensor]]
"""An update that sent a layer's factors, its weight, and what it sent."""


class Flora(LoraMethod):
    """W becomes ``W + scale sum_i p_i B_i A_i`` at every client, which gets the A_i, times p_i, and the B_i in stacks.

    The server holds the weights without the last stack, and merges it when the next one is made.  A stack has room for
    a whole cohort; what fewer updates leave is zero.
    """

    class Options(LoraMethod.Options):
        """``method: flora``."""

        name: Literal["flora"] = "flora"

    summary = "LoRA whose factors are stacked, merged by every client, and begun anew"
    paper = "Wang, Shen et al. 2024"
    sent_once = FACTORS
    changes_weights = True

    def __init__(self, options: Any, setting: Setting):
        super().__init__(options, setting)
        for kind in setting.kinds.values():
            if kind.adapter_weights or kind.delivers_base:
                field = "weights" if kind.adapter_weights else "deliver_base"
                raise MethodError(f"adapter.{field}: flora's clients have the weights and draw factors; leave it out")

    def initial(self, seed: int) -> ServerState:
        """The first state, with stacks of zeros."""
        state = super().initial(seed)
        items = (item for kind in self.setting.kinds for item in self._stack(kind).items)
        return ServerState.from_tensors({**state.tensors, **{i.source: i.spec.empty().zero_() for i in items}})

    def model_payload(self, kind: str, source: str = "") -> Payload:
        """The whole model: a weight is received by clients that haven't merged all stacks before the last one."""
        payload = super().model_payload(kind, source)
        merged = {pair.weight: stack_of(pair)[1] for pair in self.pairs(kind)}
        return replace(payload, items=tuple(replace(i, merges=merged.get(i.source)) for i in payload.items))

    def work(self, kind: str, round: int) -> Work:
        """FedAvg's work on fresh factors over weights that take in the stack first."""
        return self._with_stack(super().work(kind, round))

    def evaluate(self, kind: str, split: str) -> Work:
        """The scores of the model with the stack merged."""
        return self._with_stack(super().evaluate(kind, split))

    def _with_stack(self, work: Work) -> Work:
        return replace(work.around("merge-stack"), down=(*work.down, self._stack(work.kind)))

    def _stack(self, kind: str) -> Payload:
        return stack_payload(self.pairs(kind), self.setting.kinds[kind].parameters(), self.setting.cohort[kind])

    def aggregate(self, state: ServerState, updates: Sequence[Update]) -> ServerState:
        """FedAvg of what else trains; the last stack is merged where a new one is made."""
        factors = {a for kind in self.setting.kinds for pair in self.pairs(kind) for a in pair[1:3]}
        new = self.combine(state, updates, lambda address, _: {} if address in factors else {address: 1.0})
        updates = sorted(updates, key=lambda update: update.client)
        sent = [(u, self.update_weight(u), dict(u.uploaded_tensors())) for u in updates]
        for pair in (pair for kind in self.setting.kinds for pair in self.pairs(kind)):
            senders = [(u, weight, values) for u, weight, values in sent if pair.second in values and weight]
            if senders:
                new[pair.weight] = self._weight_with_stack(state, pair)
                room = len(state.tensors[stack_of(pair)[0]])
                new |= dict(zip(stack_of(pair), stack_factors(pair, senders, room), strict=True))
        return state.with_tensors(new)

    def _weight_with_stack(self, state: ServerState, pair: FactorPair) -> Tensor:
        first, second = (state.tensors[place] for place in stack_of(pair))
        return plus_product(state.tensors[pair.weight], first, second, pair.scale, pair.transposed)

    def changed_addresses(self, work: Work) -> set[Address]:
        """What it sends besides factors, the stacks of the factors that it sends, and the weights beside them."""
        sent = set(super().changed_addresses(work))
        pairs = [pair for pair in self.pairs(work.kind) if pair.second in sent]
        return sent.difference(*(pair[1:3] for pair in pairs)).union(*((p.weight, *stack_of(p)) for p in pairs))

    def export(self, state: ServerState, kind: str) -> Mapping[str, Tensor]:
        """The weights with the last stack merged."""
        return {pair.weight.split("/", 1)[1]: self._weight_with_stack(state, pair) for pair in self.pairs(kind)}


def stack_of(pair: FactorPair) -> tuple[Address, Address]:
    """Where the stacks of a layer's A [cohort rank, in] and B [out, cohort rank] are."""
    return f"table/stack/{pair.first}", f"table/stack/{pair.second}"


def stack_payload(pairs: Iterable[FactorPair], parameters: Mapping[str, TensorSpec], rows: int) -> Payload:
    """The stacks of these layers with room for the factors of ``rows`` clients."""
    items = []
    for pair in pairs:
        for factor, address, axis in zip(pair[1:3], stack_of(pair), (0, 1), strict=True):
            spec = parameters[name := factor.split("/", 1)[1]]
            shape = tuple(n * rows if i == axis else n for i, n in enumerate(spec.shape))
            items.append(Item(f"stack.{name}", shape, spec.dtype, address, like=name))
    return Payload("stack", tuple(items))


def stack_factors(pair: FactorPair, senders: Sequence[Sender], room: int) -> tuple[Tensor, Tensor]:
    """The stacks of a layer's A, each times its client's share, and of its B, with zeros up to ``room`` rows.

    Raises MethodError for more updates than there is room for.
    """
    total = sum(weight for _, weight, _ in senders)
    first = torch.cat([weight * u.weight_factor / total * values[pair.first] for u, weight, values in senders])
    second = torch.cat([values[pair.second] for *_, values in senders], dim=1)
    if (empty := room - len(first)) < 0:
        raise MethodError(f"flora stacks {len(senders)} updates of one aggregation, more than a cohort has")
    return pad(first, (0, 0, 0, empty)), pad(second, (0, empty))
