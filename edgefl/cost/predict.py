"""Predicting the cost of a work: the interpreter that trains it runs it on fake tensors, which have no data."""

from __future__ import annotations

import gc
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from edgefl import models, registry, seeds
from edgefl.cost.caching_allocator import least_limit
from edgefl.cost.fake_tensors import PredictionMode
from edgefl.cost.scratch import ScratchTable
from edgefl.cost.traced_ahead import PricingPool
from edgefl.errors import MethodError, UncountedOperator, text_of
from edgefl.memo import has_result, recall, remember
from edgefl.plain_data import from_data, to_data
from edgefl.work import (
    CUDA_ROUNDING,
    METERED,
    Context,
    Description,
    Form,
    LiveMoment,
    Meter,
    Pass,
    Source,
    StepTrace,
    Timeline,
    Work,
    digest,
    distinct,
    execute,
    metered_steps,
)
from edgefl.work.meter.allocator_peak import MemoryEvent
from edgefl.work.step_faults import line_of

# Where an operator fails on fake tensors, torch logs the traceback of the error that it raises.
logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)


class _FewBatches:
    """A source of empty batches: at most ``most`` per pattern at a pass's first occurrence, with the largest shapes.

    At the second occurrence of a pass, all tensors exist that exist at later ones, such as the optimizer's state.  So
    one batch is enough there.  With gradient accumulation it takes two, because the second batch finds gradients of
    the first one in memory.
    """

    def __init__(self, source: Source, most: int):
        self._source, self._most = source, most
        self._most_again = 1 if most == METERED else 2
        self._seen: list[Pass] = []
        self.spec, self.counts, self.size = source.spec, source.counts, source.size

    def batches(self, pass_: Pass, seed: int) -> Iterator[tuple[str, dict[str, Tensor]]]:
        most = self._most_again if pass_ in self._seen else self._most
        self._seen.append(pass_)
        for pattern, count in self.counts(pass_).items():
            for _ in range(min(count, most)):
                yield pattern, {name: spec.empty() for name, spec in self.spec(pass_, pattern).items()}


def shorten_passes(work: Work) -> Work:
    """The work with only the first two occurrences of each distinct pass; later ones cost the same as the second."""
    return replace(work, passes=_first_passes(work))


def _first_passes(work: Description) -> tuple[Pass, ...]:
    """The first two occurrences of each distinct pass, in order."""
    occurrences: Counter[int] = Counter()
    order, passes = distinct(work), []
    for pass_ in work.passes:
        index = order.index(pass_)
        occurrences[index] += 1
        if occurrences[index] <= METERED:
            passes.append(pass_)
    return tuple(passes)


def work_key(form: Form) -> str:
    """The part of the cost key that doesn't depend on the data: everything but the passes, as a content hash."""
    # The model determines the shapes of parameters; other transferred tensors are listed with their shapes.
    parameters = {i.name for p in form.up for i in p.items if not i.is_beside_model}
    extra = [
        (i.name, i.shape, i.dtype, i.is_beside_model)
        for p in (*form.down, *form.up)
        for i in p.items
        if i.name not in parameters
    ]
    # The cost depends on which learning rates and other scalars are zero, but not on their other values.
    optimizer = {**form.optimizer, **form.zeros}
    return digest(
        [form.model, [asdict(e) for e in form.edits], form.trainable, optimizer, form.precision, form.attention, extra,
         form.keep, form.reference]
    )  # fmt: skip


ROOMS = ("cost", "methods", "plain_data", "schedules", "work", *models.ROOMS)
"""The rooms whose code decides the cost of a work.  Methods and schedules have steps and edits."""


def parts_of(work: Description) -> set[tuple[str, str]]:
    """The registered parts, as noun and name, whose code determines the cost of a work."""
    parts = {("step", name) for p in work.passes for name in p.steps} | {("edit", e.name) for e in work.edits}
    parts |= {("metric", str(m["name"])) for p in work.passes for m in p.args.get("metrics", ())}
    if optimizer := work.optimizer.get("name"):
        parts.add(("optimizer", optimizer))
    return parts | models.parts_of(work.model)


def _code(work: Description) -> list[str]:
    """Versions and digests of the code that determines the cost of a work: edgefl's rooms, and packages of plug-ins."""
    digests = sorted({registry.fingerprint(noun, name, ROOMS) for noun, name in parts_of(work)})
    return [*models.versions(), *models.code(work.model), *digests, registry.package_digest("edgefl", ROOMS)]


def passes_key(work: Description, source: Source) -> str:
    """The part of the cost key that depends on the data: the shortened passes with the shapes of their batches."""
    most = metered_steps(work)
    return digest(
        [
            (
                asdict(p),
                {q: {n: asdict(s) for n, s in source.spec(p, q).items()} for q in p.patterns},
                # An evaluation allocates memory for all its samples, so its cost depends on their exact number.
                {q: min(n, most) if p.train else n for q, n in source.counts(p).items()},
                None if p.train else source.size(p),
            )
            for p in _first_passes(work)
        ]
    )


def cost_key(work: Work, source: Source, device: str = "cpu") -> str:
    """A content hash of everything that changes peak memory, FLOPs or operators.

    It doesn't depend on learning rates, epochs after the second, addresses, client or round.  It depends on whether
    weight decay and momentum are zero, but not on their values.
    """
    return digest([work_key(work.form), passes_key(work, source), device])


def replace_tensors(module: nn.Module, make: Callable[[Tensor], Tensor]) -> nn.Module:
    """Replace every parameter and buffer of a module by ``make(tensor)``, in place; returns the module.

    A tensor that several modules share is replaced by one shared tensor.
    """
    replacements: dict[int, tuple[Tensor, Tensor]] = {}

    def replacement(old: Tensor) -> Tensor:
        if id(old) not in replacements:
            new = make(old)
            # A reference to the old tensor is kept, so that no other tensor can get its id.
            trains = old.requires_grad  # not a quantised layer's integers
            replacements[id(old)] = old, nn.Parameter(new, trains) if isinstance(old, nn.Parameter) else new
        return replacements[id(old)][1]

    for part in module.modules():
        for by_name in (part._parameters, part._buffers):
            for name, tensor in by_name.items():
                if tensor is not None:
                    by_name[name] = replacement(tensor)  # type: ignore[assignment]
    return module


def predict(work: Work, source: Source, device: str = "cpu", *, brief: bool = False) -> StepTrace:
    """Predict the peak memory by part and the cost of each distinct step of ``work``, without computing it.

    With ``brief`` only the first batch of each distinct pass is run: that shows whether the work can be priced, unless
    a module keeps something of its first step that fails in the second.

    The peak is that of live storage; ``StepTrace.with_scratch`` adds what kernels take (``ScratchTable``).
    With ``device`` "cuda", the prediction uses a GPU's allocator rounding and its kernels of attention and dropout.
    The other operators take the memory of their CPU kernels, on a computer with a GPU too: all predict alike.
    Raises UncountedOperator for a matmul-class operator without a FLOP formula, and MethodError for what torch can't
    run on tensors without data, such as one that is larger than it can address.
    """
    events: list[MemoryEvent] | None = [] if device == "cuda" else None
    trace = _predict(work, source, device, None, events, brief=brief).trace()
    return trace if events is None else replace(trace, reserved_bytes=least_limit(events))


def timeline(work: Work, source: Source, device: str = "cpu") -> Timeline:
    """Predict the live memory by part after every operator, for the steps that a prediction runs."""
    moments: list[LiveMoment] = []
    _predict(work, source, device, moments)
    return Timeline(moments)


def storage_events(work: Work, source: Source, device: str = "cpu") -> list[MemoryEvent]:
    """Predict the storages that come and go, in order, for the steps that a prediction runs."""
    events: list[MemoryEvent] = []
    _predict(work, source, device, None, events)
    return events


def metric_names(work: Work, source: Source) -> tuple[str, ...]:
    """The names of the metrics that the steps of ``work`` write, found out without computing it."""
    return tuple(_execute_on_fakes(work, source, "cpu")[1].metrics)


def _predict(
    work: Work,
    source: Source,
    device: str,
    moments: list[LiveMoment] | None,
    events: list[MemoryEvent] | None = None,
    *,
    brief: bool = False,
) -> Meter:
    gc.freeze()  # a collection would look through all that torch and transformers have imported, again and again
    try:
        return _execute_on_fakes(work, source, device, moments, events, brief=brief)[0]
    except UncountedOperator as error:
        raise UncountedOperator(f"{_where(work, error)}: {error}") from error
    except (RuntimeError, OverflowError) as error:
        said = text_of(error).strip().partition("\n")[0]
        if isinstance(error, OverflowError) or "overflow" in said.lower():
            told = f"a tensor of {work.kind}'s work is larger than torch can address (2^63 bytes): {said}"
            raise MethodError(told) from error
        raise MethodError(
            f"{_where(work, error)}: torch can't run a step without data, so it has no price: {said}"
        ) from error
    finally:
        gc.unfreeze()


def _where(work: Work, error: BaseException) -> str:
    """The kind of a work, its towers and the line of a user's code that an error is from, where there is one."""
    towers = " and ".join(dict.fromkeys(tower["tower"] for tower in work.model["towers"].values() if "tower" in tower))
    line = line_of(error)
    return f"a work of kind {work.kind!r} ({towers or work.model['name']}{line and ', '}{line})"


@seeds.seeding_globals(0)
def _execute_on_fakes(
    work: Work,
    source: Source,
    device: str,
    moments: list[LiveMoment] | None = None,
    events: list[MemoryEvent] | None = None,
    *,
    brief: bool = False,
) -> tuple[Meter, Context]:
    # outside the mode: the towers of ViTs call ``item()`` while they are built, which fake tensors refuse
    module = models.on_meta(work.model)
    mode = PredictionMode()
    with mode:
        module = replace_tensors(module, lambda old: torch.empty(old.shape, dtype=old.dtype))
    meter = Meter(CUDA_ROUNDING if device == "cuda" else 1, moments=moments, calls=not brief, events=events)
    model_tensors = {n for n, _ in module.named_parameters()} | {n for n, _ in module.named_buffers()}
    with mode:
        inputs = {i.name: i.spec.empty() for p in work.down for i in p.items if i.name not in model_tensors}
        few = _FewBatches(source, 1 if brief else metered_steps(work))
        ctx, _, _ = execute(
            replace(work, passes=tuple(distinct(work))) if brief else shorten_passes(work),
            inputs,
            few,
            module=module,
            device=torch.device("cpu"),
            seed=0,
            meter=meter,
            kernels=device,
        )
    return meter, ctx


def _rows_of_table(raw: Mapping[str, Sequence[tuple[str, int, bool]]]) -> list[tuple[str, int, bool]]:
    return [(str(key), int(size), bool(assumed)) for key, size, assumed in raw["scratch"]]


MOST_TRACES = 500
"""Traces in memory; the oldest gives way, as it lies on disk.  One takes 0.15 MB for two towers of four blocks, and a
sweep over batches has others in each cell."""


class Predictor:
    """Memoised ``predict``: in memory by ``cost_key``, and on disk under ``folder`` if given.

    The name of a file on disk depends on the code that prices, edgefl's and that of plug-ins, so a changed step is
    predicted again, and a changed report isn't.
    So is a cost whose file can't be read, with a warning.  ``predicted`` counts the predictions that were computed, and
    ``keys`` are the cost keys of the works whose traces were asked for.
    ``scratch`` is the table of what kernels take; without it peaks are those of live storage.
    ``ahead`` are other processes that price works with such a table, if there are any.  Of works that are ``brief`` a
    step is tried (``predict``), unless the whole trace is known.
    """

    ahead: PricingPool | None = None

    def __init__(
        self,
        folder: Path | None = None,
        device: str = "cpu",
        scratch: ScratchTable | None = None,
        *,
        brief: Callable[[Work], bool] = lambda _: False,
    ):
        self.folder, self.device, self.scratch, self.brief = folder, device, scratch, brief
        self._traces: dict[str, StepTrace] = {}
        self.keys: set[str] = set()
        self.predicted = 0

    def trace(self, work: Work, source: Source, key: str | None = None) -> StepTrace:
        """The trace of a work, predicted once while it lies in memory or on disk; ``key`` is its cost key, if known."""
        key = key or cost_key(work, source, self.device)
        self.keys.add(key)
        if key not in self._traces:
            if len(self._traces) >= MOST_TRACES:
                del self._traces[next(iter(self._traces))]
            if self.ahead is not None and (priced := self.ahead.take(key)) is not None:
                self.predicted += 1
                self._traces[key] = priced
                return priced
            name = self._name(work, key)
            read, brief = partial(from_data, StepTrace), self.brief(work)
            trace = recall(self.folder, name, read, "costs")
            if trace is None and brief:
                name = digest([name, "brief"])
                trace = recall(self.folder, name, read, "costs")
            self._traces[key] = self._with_scratch(trace or self._predict(name, work, source, brief), name)
        return self._traces[key]

    def knows(self, work: Work, key: str) -> bool:
        """Whether the trace of this work is in memory, or its file on disk."""
        return key in self._traces or (self.folder is not None and has_result(self.folder, self._name(work, key)))

    def _name(self, work: Work, key: str) -> str:
        return digest([key, _code(work)])

    def _with_scratch(self, trace: StepTrace, name: str) -> StepTrace:
        """The trace with the kernels' scratch, which is kept on disk beside it, by machine and probing code."""
        if self.scratch is None:
            return trace
        name = digest([name, self.scratch.kernels, registry.package_digest("edgefl", ("machine/kernel_scratch",))])
        known = recall(self.folder, name, _rows_of_table, "kernels' scratch")
        if known is not None:
            self.scratch.add(known)
        insides = self.scratch.scratch_by_call(trace.calls, trace.live_memory_bytes)
        if known is None:
            rows = [[held.call.key, i.bytes, i.assumed] for held, i in zip(trace.calls, insides, strict=True) if i]
            remember(self.folder, name, {"scratch": rows})
        return trace.with_scratch(insides)

    def _predict(self, name: str, work: Work, source: Source, brief: bool) -> StepTrace:
        trace = predict(work, source, self.device, brief=brief)
        self.predicted += 1
        remember(self.folder, name, to_data(trace))
        return trace
