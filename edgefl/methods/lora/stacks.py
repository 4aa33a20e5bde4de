"""FLoRA's stacks: the factors of a cohort's clients, one below or beside the other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from edgefl.errors import MethodError
from edgefl.methods.lora.lora_method import FactorPair
from edgefl.work import Address, Item, Payload, TensorSpec
from edgefl.work.update import Update

Sender = tuple[Update, float, Mapping[Address, Tensor]]
"""An update that sent a layer's factors, its weight, and what it sent."""


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
