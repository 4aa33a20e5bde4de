"""Prediction: the same work through the same interpreter, on tensors that hold no data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from edgefl import models, registry
from edgefl.memo import remember, remembered
from edgefl.work import (
    CUDA_ROUNDING,
    METERED,
    Meter,
    Moment,
    Pass,
    Scalars,
    Source,
    Timeline,
    Trace,
    Work,
    digest,
    distinct,
    execute,
    metered_steps,
)


class _FewBatches:
    """A source seen as shapes: at most ``most`` batches of each pattern, of the largest shapes.

    At a pass's second place everything exists that a step finds there later, so one batch shows it, or two where
    gradients of the batch before may be about.
    """

    def __init__(self, source: Source, most: int):
        self._source, self._most = source, most
        self._again = 1 if most == METERED else 2
        self._seen: list[Pass] = []
        self.spec, self.counts, self.size = source.spec, source.counts, source.size

    def batches(self, pass_: Pass, seed: int) -> Iterator[tuple[str, dict[str, Tensor]]]:
        most = self._again if pass_ in self._seen else self._most
        self._seen.append(pass_)
        for pattern, count in self.counts(pass_).items():
            for _ in range(min(count, most)):
                yield pattern, {name: spec.empty() for name, spec in self.spec(pass_, pattern).items()}


def shortened(work: Work) -> Work:
    """The work with each distinct pass at its first two places only: from the second on, nothing changes."""
    places: Counter[int] = Counter()
    order, kept = distinct(work), []
    for pass_ in work.passes:
        index = order.index(pass_)
        places[index] += 1
        if places[index] <= METERED:
            kept.append(pass_)
    return replace(work, passes=tuple(kept))


def work_key(work: Work) -> str:
    """The part of the cost key that no data decide: everything but the passes."""
    # a parameter's shape follows from the model; what else travels has its own
    parameters = {i.name for p in work.up for i in p.items if not i.source.startswith("table/")}
    extra = [
        (i.name, i.shape, i.dtype, i.source.startswith("table/"))
        for p in (*work.down, *work.up)
        for i in p.items
        if i.name not in parameters
    ]
    # which parts have rates of their own is a cost, how high these are isn't, but for zero
    optimizer = {**work.optimizer, **Scalars(work.scalars).zeros()}
    return digest(
        [work.model, [asdict(e) for e in work.edits], work.trainable, optimizer, work.precision, work.attention, extra,
         work.keep, work.reference]
    )  # fmt: skip


def _code(work: Work) -> list[str]:
    """The code that decides a cost, as hashes of the packages that it comes from."""
    named = {("step", p.step) for p in work.passes} | {("edit", e.name) for e in work.edits}
    return [*models.versions(), *models.code(work.model), *sorted({registry.fingerprint(*name) for name in named})]


def passes_key(work: Work, source: Source) -> str:
    """The part of the cost key that the data decide: the passes, shortened, with the shapes of their batches."""
    most = metered_steps(work)
    return digest(
        [
            (
                asdict(p),
                {q: {n: asdict(s) for n, s in source.spec(p, q).items()} for q in p.patterns},
                # an evaluation preallocates for all its samples, so there the true count matters
                {q: min(n, most) if p.train else n for q, n in source.counts(p).items()},
                None if p.train else source.size(p),
            )
            for p in shortened(work).passes
        ]
    )


def cost_key(work: Work, source: Source, device: str = "cpu") -> str:
    """Everything that changes peak memory, FLOPs or operators, as a content hash.

    Not in it: learning rates, epochs beyond the second, addresses, client, round.  Whether there is any weight decay
    or momentum is in it; how much isn't.
    """
    return digest([work_key(work), passes_key(work, source), device])


class _Fakes(FakeTensorMode):
    """Fake tensors that know what a CPU's norms keep under autocast.

    The real kernels keep mean and deviation in the dtype of their weights; the shapes-only ones of torch 2.13 take the
    input's.
    """

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """What an operator gives back."""
        out: Any = super().dispatch(func, types, args, kwargs or {})
        if func not in _NORMS:
            return out
        weight = args[_NORMS[func]]
        if weight is None or weight.dtype == args[0].dtype or out[0].device.type != "cpu":
            return out
        with self:
            kept = [o if not o.numel() else torch.empty(o.shape, dtype=weight.dtype, device=o.device) for o in out[1:]]
        return (out[0], *kept)


_NORMS = {torch.ops.aten.native_layer_norm.default: 2, torch.ops.aten.native_batch_norm.default: 1}
"""Place of the weight among the arguments."""


def replaced(module: nn.Module, make: Callable[[Tensor], Tensor]) -> nn.Module:
    """Put ``make(tensor)`` in the place of every parameter and buffer of a module that was built on ``meta``.

    A tensor that stands at two places is replaced by one that does.
    """
    made: dict[int, tuple[Tensor, Tensor]] = {}

    def other(old: Tensor) -> Tensor:
        if id(old) not in made:
            new = make(old)
            # the old one is kept so that nobody else gets its id
            made[id(old)] = old, nn.Parameter(new) if isinstance(old, nn.Parameter) else new
        return made[id(old)][1]

    for part in module.modules():
        tensors: tuple[dict[str, Any], ...] = (part._parameters, part._buffers)
        for held in tensors:
            for name, tensor in held.items():
                if tensor is not None:
                    held[name] = other(tensor)
    return module


def predict(work: Work, source: Source, device: str = "cpu") -> Trace:
    """Peak memory by part and the cost of each distinct step of ``work``, without allocating or computing.

    ``device`` "cuda" predicts a GPU's allocator rounding and its kernels.  On a machine without one, attention and
    dropout are those of a GPU, and every other operator takes what a CPU's takes.
    Raises UncountedOperator for a matmul-class operator without a FLOP formula.
    """
    return _predict(work, source, device, None).trace()


def timeline(work: Work, source: Source, device: str = "cpu") -> Timeline:
    """Live memory by part after every operator of the steps that a prediction runs."""
    moments: list[Moment] = []
    _predict(work, source, device, moments)
    return Timeline(moments)


def _stand_in(device: str) -> str:
    """The device whose fake tensors a prediction for ``device`` runs on: a CPU's where there is no GPU."""
    return device if device == "cpu" or torch.cuda.is_available() else "cpu"


def _predict(work: Work, source: Source, device: str, moments: list[Moment] | None) -> Meter:
    place = torch.device(_stand_in(device))
    module = models.on_meta(work.model)
    mode = _Fakes()
    with mode:
        module = replaced(module, lambda old: torch.empty(old.shape, dtype=old.dtype, device=place))
    meter = Meter(CUDA_ROUNDING if device == "cuda" else 1, moments=moments)
    own = {n for n, _ in module.named_parameters()} | {n for n, _ in module.named_buffers()}
    with torch.random.fork_rng([place] if place.type == "cuda" else []), mode:
        inputs = {i.name: i.spec.empty() for p in work.down for i in p.items if i.name not in own}
        few = _FewBatches(source, metered_steps(work))
        execute(shortened(work), inputs, few, module=module, device=place, seed=0, meter=meter, kernels=device)
    return meter


class Predictor:
    """Memoised ``predict``: in memory by ``cost_key``, and on disk under ``folder`` if given.

    A file on disk is of one version of the code, a plug-in's included: an author who changes a step doesn't see its
    old cost.  One that can't be read is predicted again, with a warning.
    """

    def __init__(self, folder: Path | None = None, device: str = "cpu"):
        self.folder, self.device = folder, device
        self._known: dict[str, Trace] = {}
        self.predicted = 0

    def trace(self, work: Work, source: Source, key: str | None = None) -> Trace:
        """The trace of this work, predicted at most once; ``key`` is its cost key if that is known already."""
        key = key or cost_key(work, source, self.device)
        if key not in self._known:
            name = digest([key, _code(work), _stand_in(self.device)])
            self._known[key] = remembered(self.folder, name, Trace.from_json, "costs") or self._predict(
                name, work, source
            )
        return self._known[key]

    def _predict(self, name: str, work: Work, source: Source) -> Trace:
        trace = predict(work, source, self.device)
        self.predicted += 1
        remember(self.folder, name, trace.to_json())
        return trace
