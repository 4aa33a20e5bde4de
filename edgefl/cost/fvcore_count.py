"""A second, independent count of forward MACs: fvcore's, beside the meter's, by part of the model.

fvcore counts on a trace by torch.jit, before operators are taken apart; the meter counts what is dispatched, after.
Counted by both are products of matrices, convolutions, attention's two products, recurrent layers and LayerNorm at 5
per element, as fvcore does; BatchNorm and pooling, which fvcore would add in small numbers, are left out of both.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, cast

import torch
from torch import Tensor, nn

from edgefl import models
from edgefl.cost.predict import replaced
from edgefl.work import Meter, TensorSpec
from edgefl.work.description import DTYPES
from edgefl.work.meter import parts

AGREEMENT = 0.005
"""Relative difference up to which the two counts agree."""
_LEFT_OUT = ("aten::batch_norm", "aten::adaptive_avg_pool2d", "aten::group_norm", "aten::instance_norm")


@dataclass(frozen=True)
class TwoCounts:
    """Forward MACs of one batch by part of the model, from the meter and from fvcore.

    ``operators`` are fvcore's MACs by part and operator; ``unknown`` the calls of operators of matmul class that
    fvcore has no formula for, and so counts as nothing.
    """

    meter: Mapping[str, int]
    fvcore: Mapping[str, int]
    operators: Mapping[str, Mapping[str, int]]
    unknown: Mapping[str, int]

    @property
    def error(self) -> float:
        """How far fvcore's total is from the meter's, relative to it."""
        ours = sum(self.meter.values())
        return (sum(self.fvcore.values()) - ours) / ours if ours else 0.0

    def differing(self) -> list[str]:
        """The parts where the counts don't agree, with the operators that fvcore saw there; empty if all is well."""
        found = []
        for part in dict.fromkeys((*self.meter, *self.fvcore)):
            ours, theirs = self.meter.get(part, 0), self.fvcore.get(part, 0)
            if abs(theirs - ours) > AGREEMENT * max(ours, theirs):
                seen = ", ".join(f"{name} {macs}" for name, macs in self.operators.get(part, {}).items()) or "nothing"
                found.append(f"{part}: meter {ours}, fvcore {theirs} ({seen})")
        return [*found, *(f"{name}: {n} calls that fvcore can't count" for name, n in self.unknown.items())]


class _Forward(nn.Module):
    """What a client's model does with a batch: class scores of a pattern, or an embedding of each modality."""

    def __init__(self, model: nn.Module, pattern: str, task: str):
        super().__init__()
        self.model, self.pattern, self.task = model, pattern, task

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        model, modalities = cast(Any, self.model), self.pattern.split("-")
        batch = dict(zip(modalities, values, strict=True))
        if self.task == "classify":
            return (model.classify(self.pattern, batch),)
        return tuple(model.embed(m, batch[m]) for m in modalities)


def count_twice(description: Mapping[str, Any], pattern: str, task: str, spec: Mapping[str, TensorSpec]) -> TwoCounts:
    """Both counts of one forward pass of the model that ``description`` describes.

    ``task`` is "classify" or "retrieve"; ``spec`` has the shapes of a batch by modality.  A trace can't be made on
    torch's meta device, so this computes, with zeros for weights and samples: take a batch of one.
    """
    model = models.on_meta({**description, "towers": _plain(description["towers"])})
    # as zeros, whose pages the system gives only once they are written
    model = replaced(model, lambda old: torch.zeros_like(old, device="cpu"))
    module = _Forward(model, pattern, task).eval()
    values = tuple(torch.zeros(spec[m].shape, dtype=DTYPES[spec[m].dtype]) for m in pattern.split("-"))
    with torch.no_grad():
        meter = Meter()
        with meter.watching(module.model), meter.step(0, pattern):
            module(*values)
        found, unknown = _fvcore(module, values)
    names = [name for name, _ in parts(module.model)]
    by_part: dict[str, Counter[str]] = {}
    for scope, operators in found.items():
        inside = scope.removeprefix("model.")
        part = next((n for n in names if inside == n or inside.startswith(f"{n}.")), None)
        if part is not None:
            by_part.setdefault(part, Counter()).update(operators)
    return TwoCounts(
        {n: m for n, m in meter.steps[0, pattern].macs.items() if m},
        {n: total for n in names if (total := sum(by_part.get(n, Counter()).values()))},
        {n: {o: m for o, m in c.items() if m} for n, c in by_part.items()},
        unknown,
    )


def _plain(towers: Mapping[str, Any]) -> dict[str, Any]:
    """Without checkpointing, which a trace can't follow and a forward pass alone doesn't need."""
    return {name: {k: v for k, v in tower.items() if k != "checkpointing"} for name, tower in towers.items()}


def _fvcore(module: nn.Module, values: tuple[Tensor, ...]) -> tuple[dict[str, Counter[str]], dict[str, int]]:
    """fvcore's MACs by module (its own operators, not its children's) and operator, and what it couldn't count."""
    with warnings.catch_warnings():
        # fvcore stands on torch.jit, which torch calls deprecated wherever it is used
        warnings.filterwarnings("ignore", "`torch.jit", DeprecationWarning)
        return _analysed(module, values)


def _analysed(module: nn.Module, values: tuple[Tensor, ...]) -> tuple[dict[str, Counter[str]], dict[str, int]]:
    from fvcore.nn import FlopCountAnalysis

    analysis = FlopCountAnalysis(module, values)
    for name, handler in HANDLERS.items():
        analysis.set_op_handle(name, handler)
    for name in _LEFT_OUT:
        analysis.set_op_handle(name, lambda inputs, outputs: 0)
    # torch's own remarks on tracing shapes are about replaying a trace, which nobody does; what has no formula comes
    # back in ``unsupported_ops``, and parts that this pattern doesn't call are no news
    analysis.unsupported_ops_warnings(False).uncalled_modules_warnings(False).tracer_warnings("none")
    analysis.ancestor_mode("caller")
    whole: dict[str, Counter[str]] = {name: Counter(c) for name, c in analysis.by_module_and_operator().items()}
    unknown = {
        name: int(calls)
        for name, calls in analysis.unsupported_ops().items()
        if _may_multiply(name.removeprefix("aten::"))
    }
    return {name: _own(name, whole) for name in whole}, unknown


def _own(name: str, whole: Mapping[str, Counter[str]]) -> Counter[str]:
    """What a module does itself: its total less its direct children's."""
    own = Counter(whole[name])
    depth = name.count(".") + 1 if name else 0
    for other, counted in whole.items():
        inside = other.startswith(f"{name}.") if name else bool(other)
        if inside and other.count(".") == depth:
            own.subtract(counted)
    return own


def _may_multiply(operator: str) -> bool:
    words = ("mm", "matmul", "dot", "conv", "linear", "einsum", "lstm", "gru", "rnn", "attention", "bilinear", "cdist")
    return any(word in operator for word in words) and "embedding" not in operator


# formulas that fvcore lacks ---------------------------------------------------------------------------------------


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(value.type().sizes())


def _attention_macs(inputs: list[Any], outputs: list[Any]) -> int:
    """Q K^T and its product with V, for every head: ``[batch, heads, queries, dim] x [batch, heads, keys, dim]``."""
    query, key, value = (_shape(x) for x in inputs[:3])
    return prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


def _recurrent_macs(inputs: list[Any], outputs: list[Any]) -> int:
    """Every weight matrix once for each step of each sequence, of inputs ``[batch, steps, dim]`` or the like."""
    weights = inputs[2]
    matrices = (shape for w in weights.node().inputs() if len(shape := _shape(w)) == 2)
    return prod(_shape(inputs[0])[:2]) * sum(map(prod, matrices))


HANDLERS: dict[str, Callable[[list[Any], list[Any]], int]] = {
    "aten::scaled_dot_product_attention": _attention_macs,
    "aten::gru": _recurrent_macs,
    "aten::lstm": _recurrent_macs,
}
