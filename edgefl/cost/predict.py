"""Prediction: the same work through the same interpreter, on tensors that hold no data."""

from __future__ import annotations

import json
import os
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from edgefl import models, registry
from edgefl.work import CUDA_ROUNDING, METERED, Meter, Pass, Source, TensorSpec, Trace, Work, digest, distinct, execute
from edgefl.work.description import DTYPES


class _FewBatches:
    """A source seen as shapes: at most two batches of each pattern, of the largest shapes."""

    def __init__(self, source: Source):
        self._source = source
        self.spec, self.counts, self.size = source.spec, source.counts, source.size

    def batches(self, pass_: Pass, seed: int) -> Iterator[tuple[str, dict[str, Tensor]]]:
        for pattern, count in self.counts(pass_).items():
            for _ in range(min(count, METERED)):
                yield pattern, {name: _empty(spec) for name, spec in self.spec(pass_, pattern).items()}


def _empty(spec: TensorSpec) -> Tensor:
    return torch.empty(spec.shape, dtype=DTYPES[spec.dtype])


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


_GRAPH_BLIND = ("lr", "weight_decay", "betas", "momentum")


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
    optimizer = {k: bool(v) if k in _GRAPH_BLIND else v for k, v in work.optimizer.items()}
    return digest(
        [work.model, [asdict(e) for e in work.edits], work.trainable, optimizer, work.precision, extra, work.keep,
         work.reference]
    )  # fmt: skip


def _code(work: Work) -> list[str]:
    """The code that decides a cost, as hashes of the packages that it comes from."""
    named = {("step", p.step) for p in work.passes} | {("edit", e.name) for e in work.edits}
    named |= {("model", work.model["name"])}
    named |= {("tower", t["tower"]) for t in work.model.get("towers", {}).values() if "tower" in t}
    packages = {registry.package_digest("edgefl"), *(registry.fingerprint(*name) for name in named)}
    return [torch.__version__, *sorted(packages)]


def passes_key(work: Work, source: Source) -> str:
    """The part of the cost key that the data decide: the passes, shortened, with the shapes of their batches."""
    return digest(
        [
            (
                asdict(p),
                {q: {n: asdict(s) for n, s in source.spec(p, q).items()} for q in p.patterns},
                # an evaluation preallocates for all its samples, so there the true count matters
                {q: min(n, METERED) if p.train else n for q, n in source.counts(p).items()},
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


def _fake(module: nn.Module, mode: FakeTensorMode, device: torch.device) -> nn.Module:
    """Move a module that was built on ``meta`` to fake tensors of ``device``, in place."""
    with mode:
        for part in module.modules():
            for name, parameter in part._parameters.items():
                if parameter is not None:
                    part._parameters[name] = nn.Parameter(
                        torch.empty(parameter.shape, dtype=parameter.dtype, device=device)
                    )
            for name, buffer in part._buffers.items():
                if buffer is not None:
                    part._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype, device=device)
    return module


def predict(work: Work, source: Source, device: str = "cpu") -> Trace:
    """Peak memory by part and the cost of each distinct step of ``work``, without allocating or computing.

    ``device`` "cuda" predicts a GPU's allocator rounding, and its kernels where the machine has one.
    Raises UncountedOperator for a matmul-class operator without a FLOP formula.
    """
    place = torch.device(device if device == "cpu" or torch.cuda.is_available() else "cpu")
    with torch.device("meta"):
        module = models.build(work.model)
    mode = FakeTensorMode()
    module = _fake(module, mode, place)
    meter = Meter(CUDA_ROUNDING if device == "cuda" else 1)
    own = {n for n, _ in module.named_parameters()} | {n for n, _ in module.named_buffers()}
    with torch.random.fork_rng([place] if place.type == "cuda" else []), mode:
        inputs = {i.name: _empty(i.spec) for p in work.down for i in p.items if i.name not in own}
        execute(shortened(work), inputs, _FewBatches(source), module=module, device=place, seed=0, meter=meter)
    return meter.trace()


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
            path = self.folder / f"{digest([key, _code(work)])}.json" if self.folder else None
            self._known[key] = self._read(path) or self._predict(path, work, source)
        return self._known[key]

    def _predict(self, path: Path | None, work: Work, source: Source) -> Trace:
        trace = predict(work, source, self.device)
        self.predicted += 1
        if path is not None:
            _write(path, trace.to_json())
        return trace

    def _read(self, path: Path | None) -> Trace | None:
        if path is None or not path.is_file():
            return None
        try:
            return Trace.from_json(json.loads(path.read_text()))
        except (ValueError, KeyError, TypeError, OSError):
            warnings.warn(f"{path.name} in the cost memo can't be read; predicting anew", stacklevel=4)
            return None


def _write(path: Path, value: Any) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".tmp", delete=False) as file:
            json.dump(value, file)
        os.replace(file.name, path)
    except OSError:
        pass  # a memo that can't be written costs time, not results
