"""Checks the meter's forward MACs against an independent count by fvcore, for each part of the model.

fvcore counts operators in a torch.jit trace, before they are decomposed; the meter counts operators that are
dispatched, after decomposition.  Both count matrix products, convolutions, the two products of attention, recurrent
layers, and LayerNorm at 5 per element (fvcore's convention).  Neither counts BatchNorm and pooling; fvcore's own
numbers for these are small and are switched off.
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
from edgefl.cost.predict import replace_tensors
from edgefl.models.model import DTYPES, ModelDescription, TowerDescription
from edgefl.models.tower import running_as_written
from edgefl.work import Meter, TensorSpec
from edgefl.work.meter.meter import REST, parts

AGREEMENT = 0.005
"""Largest relative difference at which the two counts agree.

Of transformers they are equal.  A choice, not measured: a part whose layer has no formula differs by far more.
"""
_LEFT_OUT = ("aten::batch_norm", "aten::adaptive_avg_pool2d", "aten::group_norm", "aten::instance_norm")


@dataclass(frozen=True)
class TwoCounts:
    """Forward MACs of one batch by part of the model, from the meter and from fvcore.

    ``operators`` are fvcore's MACs by part and operator.  ``unknown`` are the numbers of calls of matmul-class
    operators that fvcore has no formula for; it counts them as 0.  ``total`` is fvcore's own, of the whole pass.
    """

    meter: Mapping[str, int]
    fvcore: Mapping[str, int]
    operators: Mapping[str, Mapping[str, int]]
    unknown: Mapping[str, int]
    total: int

    @property
    def error(self) -> float:
        """Relative difference of the totals: (fvcore - meter) / meter, or 0 if both counted none."""
        ours = sum(self.meter.values())
        return (self.total - ours) / (ours or self.total or 1)

    def differing(self) -> list[str]:
        """A line for each part where the counts disagree, with fvcore's operators, and for each unknown operator.

        What no part of a tower claims is compared as a whole: fvcore gives a tower's functions to no module.
        """
        lines = []
        names = dict.fromkeys(name if "." in name else REST for name in (*self.meter, *self.fvcore))
        for part in names:
            ours, theirs = (
                sum(macs for name, macs in counts.items() if name == part or (part == REST and "." not in name))
                for counts in (self.meter, self.fvcore)
            )
            if abs(theirs - ours) > AGREEMENT * max(ours, theirs):
                counted = ", ".join(f"{name} {macs}" for name, macs in self.operators.get(part, {}).items())
                lines.append(f"{part}: meter {ours}, fvcore {theirs} ({counted or 'nothing'})")
        return [*lines, *(f"{name}: {n} calls that fvcore can't count" for name, n in self.unknown.items())]


class _Forward(nn.Module):
    """A client model's forward pass on a batch: scores of a pattern's classes or next tokens, or embeddings."""

    def __init__(self, model: nn.Module, pattern: str, task: str):
        super().__init__()
        self.model, self.pattern, self.task = model, pattern, task

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        model, modalities = cast(Any, self.model), self.pattern.split("-")
        batch = dict(zip(modalities, values, strict=True))
        if self.task == "classify":
            return (model.classify(self.pattern, batch),)
        if self.task == "next-token":
            return (model.next_tokens(self.pattern, values[0]),)
        return tuple(model.embed(m, batch[m]) for m in modalities)


def count_twice(description: ModelDescription, pattern: str, task: str, spec: Mapping[str, TensorSpec]) -> TwoCounts:
    """Count one forward pass of the described model by the meter and by fvcore.

    ``task`` is "classify", "next-token" or "retrieve"; ``spec`` has the shapes of a batch by modality.  torch.jit can't
    trace on the meta device, so the forward pass is really computed, with zeros as weights and samples.  Use a batch of
    one sample.
    """
    # torch.jit can't trace activation checkpointing, which a forward pass doesn't need
    towers: dict[str, TowerDescription] = {
        name: {**tower, "checkpointing": False} for name, tower in description["towers"].items()
    }
    model = models.on_meta({**description, "towers": towers})
    # The system allocates pages of zeros only when they are written to, so the weights take no memory.
    model = replace_tensors(model, lambda old: torch.zeros_like(old, device="cpu"))
    module = _Forward(model, pattern, task).eval()
    values = tuple(torch.zeros(spec[m].shape, dtype=DTYPES[spec[m].dtype]) for m in pattern.split("-"))
    with torch.no_grad(), running_as_written():
        meter = Meter()
        with meter.watching(module.model), meter.step(0, pattern):
            module(*values)
        fvcore_macs, unknown, total = _fvcore(module, values)
    names = [*dict.fromkeys(name for name, _ in parts(module.model)), *(n for n, _ in module.model.named_children())]
    by_part: dict[str, Counter[str]] = {}
    for scope, operators in fvcore_macs.items():
        inside = scope.removeprefix("model.")
        part = next((n for n in names if inside == n or inside.startswith(f"{n}.")), REST)
        by_part.setdefault(part, Counter()).update(operators)
    return TwoCounts(
        dict(meter.steps[0, pattern].macs),
        {n: macs for n, counts in by_part.items() if (macs := int(sum(counts.values())))},
        {n: {o: m for o, m in c.items() if m} for n, c in by_part.items()},
        unknown,
        total,
    )


def _fvcore(module: nn.Module, values: tuple[Tensor, ...]) -> tuple[dict[str, Counter[str]], dict[str, int], int]:
    """fvcore's MACs by module and operator, the calls by operator that it couldn't count, and its total.

    A module's MACs exclude those of its submodules.
    """
    with warnings.catch_warnings():
        # fvcore uses torch.jit, and torch warns about every use of it: DeprecationWarning, since 2.15 FutureWarning
        warnings.filterwarnings("ignore", "`torch.jit")
        return _analyse(module, values)


def _analyse(module: nn.Module, values: tuple[Tensor, ...]) -> tuple[dict[str, Counter[str]], dict[str, int], int]:
    from fvcore.nn import FlopCountAnalysis

    analysis = FlopCountAnalysis(module, values)
    for name, handler in HANDLERS.items():
        analysis.set_op_handle(name, handler)
    for name in _LEFT_OUT:
        analysis.set_op_handle(name, lambda inputs, outputs: 0)
    # The warnings are not needed: tracer warnings concern replaying the trace, which doesn't happen here; operators
    # without a formula are returned by ``unsupported_ops``; and a pattern doesn't use all modules.
    analysis.unsupported_ops_warnings(False).uncalled_modules_warnings(False).tracer_warnings("none")
    analysis.ancestor_mode("owner")
    totals: dict[str, Counter[str]] = {name: Counter(c) for name, c in analysis.by_module_and_operator().items()}
    unknown = {
        name: int(calls)
        for name, calls in analysis.unsupported_ops().items()
        if _is_matmul_class(name.removeprefix("aten::"))
    }
    return {name: _without_children(name, totals) for name in totals}, unknown, int(analysis.total())


def _without_children(name: str, totals: Mapping[str, Counter[str]]) -> Counter[str]:
    """MACs of a module without its submodules: its total minus the totals of its direct children."""
    macs = Counter(totals[name])
    depth = name.count(".") + 1 if name else 0
    for other, total in totals.items():
        inside = other.startswith(f"{name}.") if name else bool(other)
        if inside and other.count(".") == depth:
            macs.subtract(total)
    return macs


def _is_matmul_class(operator: str) -> bool:
    words = ("mm", "matmul", "dot", "conv", "linear", "einsum", "lstm", "gru", "rnn", "attention", "bilinear", "cdist")
    return any(word in operator for word in words) and "embedding" not in operator


# formulas that fvcore lacks ---------------------------------------------------------------------------------------


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(value.type().sizes())


def _attention_macs(inputs: list[Any], outputs: list[Any]) -> int:
    """MACs of Q K^T and of its product with V; queries are ``[batch, heads, queries, dim]``, keys alike."""
    query, key, value = (_shape(x) for x in inputs[:3])
    return prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


def _recurrent_macs(inputs: list[Any], outputs: list[Any]) -> int:
    """MACs of a recurrent layer: each weight matrix multiplies once per sequence and step.

    Inputs are ``[batch, steps, dim]`` or ``[steps, batch, dim]``.
    """
    weights = inputs[2]
    matrices = (shape for w in weights.node().inputs() if len(shape := _shape(w)) == 2)
    return prod(_shape(inputs[0])[:2]) * sum(map(prod, matrices))


def _bilinear_macs(inputs: list[Any], outputs: list[Any]) -> int:
    """MACs of ``x^T W y`` for each sample and output: of x and W, ``[out, in, in]``, and of what that gives and y."""
    out, first, second = _shape(inputs[2])
    return prod(_shape(inputs[0])[:-1]) * out * (first * second + second)


HANDLERS: dict[str, Callable[[list[Any], list[Any]], int]] = {
    "aten::scaled_dot_product_attention": _attention_macs,
    "aten::bilinear": _bilinear_macs,
    "aten::gru": _recurrent_macs,
    "aten::lstm": _recurrent_macs,
    # fvcore's own fails where an operand is a vector
    **dict.fromkeys(
        ("aten::matmul", "aten::mv", "aten::dot"),
        lambda inputs, outputs: prod(_shape(outputs[0])) * _shape(inputs[0])[-1],
    ),
}
