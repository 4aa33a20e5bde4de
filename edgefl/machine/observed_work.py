"""Runs a work on random batches and measures it independently of the meter: time, resident set, allocator's peak."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import psutil
import torch
from torch import Tensor

from edgefl import models, seeds
from edgefl.cost.client_cost import compute_cost
from edgefl.devices import Device
from edgefl.models.model import DTYPES, ModelDescription
from edgefl.work import (
    CUDA_ROUNDING,
    NO_METER,
    UPDATE,
    AllocatorPeak,
    Meter,
    NoMeter,
    Pass,
    Source,
    StepTrace,
    TensorSpec,
    Work,
    distinct,
    execute,
    metered_steps,
)
from edgefl.work.torch_device import threads, warm


@dataclass
class RandomBatches:
    """A source of random batches with the shapes of ``source``, at most ``steps`` batches per pattern.

    Floating-point values are normal.  Labels and tokens are drawn from the ranges in ``model`` (a work's description).
    Costs don't depend on these values.  ``counts`` and ``size`` are those of ``source``, because an evaluation
    allocates memory for all its samples; with ``short`` they are those of the random batches.
    ``seconds[repr(pass), pattern]`` collects the wall and CPU seconds of each step: from yielding a batch until the
    next one is requested.
    """

    source: Source
    model: ModelDescription
    steps: int
    short: bool = False
    finished: Callable[[], object] = lambda: None
    """Called before a step's time is read; on a GPU it waits for asynchronous kernels."""
    seconds: dict[tuple[str, str], list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))

    def spec(self, pass_: Pass, pattern: str) -> dict[str, TensorSpec]:
        """Shapes and dtypes of a batch, as those of ``source``."""
        return self.source.spec(pass_, pattern)

    def counts(self, pass_: Pass) -> dict[str, int]:
        """Batches per pattern: those of ``source``; with ``short`` at most ``steps``."""
        counts = self.source.counts(pass_)
        return {pattern: min(n, self.steps) for pattern, n in counts.items()} if self.short else counts

    def size(self, pass_: Pass) -> int:
        """Number of samples: that of ``source``; with ``short`` at most those of the random batches."""
        size = self.source.size(pass_)
        return min(size, pass_.batch * sum(self.counts(pass_).values())) if self.short else size

    def batches(self, pass_: Pass, seed: int) -> Iterator[tuple[str, dict[str, Tensor]]]:
        """Yield (pattern, batch) with random batches, and record the time of each step."""
        draw = torch.Generator().manual_seed(seed)
        for pattern, count in self.source.counts(pass_).items():
            for _ in range(min(count, self.steps)):
                specs = self.spec(pass_, pattern)
                batch = {name: self._draw(name, spec, draw, pass_) for name, spec in specs.items()}
                self.finished()
                wall, cpu = time.perf_counter(), time.process_time()
                yield pattern, batch
                self.finished()
                self.seconds[repr(pass_), pattern].append((time.perf_counter() - wall, time.process_time() - cpu))
                del batch  # else it would live beside the next one, in the measured peak

    def _draw(self, name: str, spec: TensorSpec, generator: torch.Generator, pass_: Pass) -> Tensor:
        """A random tensor for this field of a batch."""
        dtype = DTYPES[spec.dtype]
        if dtype.is_floating_point:
            return torch.randn(spec.shape, generator=generator).to(dtype)
        if name == "index":  # index of a sample in its split
            bound = max(1, self.size(pass_))
        else:
            bound = min(_values(self.model, "classes" if name == "label" else "vocabulary"), default=2)
        return torch.randint(0, bound, spec.shape, generator=generator, dtype=dtype)


def _values(description: Any, key: str) -> Iterator[int]:
    """All integers with this key in a nested description."""
    if isinstance(description, Mapping):
        for name, value in description.items():
            if name == key and isinstance(value, int):
                yield value
            yield from _values(value, key)
    elif isinstance(description, Sequence) and not isinstance(description, str):
        for value in description:
            yield from _values(value, key)


# measured works ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Observed:
    """Measurements of a work.

    ``trace`` is that of the live-storage meter.  ``peak_memory_bytes`` is the allocator's peak in a run without the
    meter.  ``seconds`` are the wall and CPU seconds of the fastest step, by distinct pass and pattern.  The
    ``rss_bytes_...`` are the resident set of this process before the work, at most during it, and after it.
    """

    trace: StepTrace
    peak_memory_bytes: int
    seconds: Mapping[tuple[int, str], tuple[float, float]]
    rss_bytes_before: int
    rss_bytes_peak: int
    rss_bytes_after: int


def run_observed(work: Work, source: Source, device: torch.device, on_message: Callable[[str], object]) -> Observed:
    """Run the first steps of a work three times: bare (for time and resident set), metered, and under the allocator.

    ``work`` should be ``shortened``.  Only the shapes of ``source`` are used.  ``on_message`` is called with the
    name of each of the three runs.
    """
    with threads(1):
        warm(device)
        # the bare run is first: memory that the C library retains would hide the growth of a later run
        on_message("bare")
        with _Resident() as resident:
            seconds = time_steps(work, source, device)
        on_message("metered")
        meter = Meter(CUDA_ROUNDING if device.type == "cuda" else 1)
        run_once(work, RandomBatches(source, work.model, metered_steps(work)), device, meter)
        on_message("watching torch's allocator")
        peak = run_once(work, RandomBatches(source, work.model, metered_steps(work)), device, watched=True)
        return Observed(meter.trace(), peak, seconds, resident.before, resident.peak, resident.after)


def time_steps(work: Work, source: Source, device: torch.device) -> dict[tuple[int, str], tuple[float, float]]:
    """Wall and CPU seconds of the fastest of a work's first steps, by distinct pass and pattern, on random batches."""
    timed = RandomBatches(source, work.model, metered_steps(work) + 1)
    if device.type == "cuda":
        timed.finished = torch.cuda.synchronize
    with threads(1):
        run_once(work, timed, device)
    return _fastest(work, timed)


def run_once(
    work: Work, source: RandomBatches, device: torch.device, meter: Meter | NoMeter = NO_METER, watched: bool = False
) -> int:
    """Execute a work on a new module.  Returns the peak of the allocator if ``watched``, otherwise 0."""
    with seeds.seeding_globals(0, device):
        module = models.build(work.model).to(device)
        of_module = {n for n, _ in module.named_parameters()} | {n for n, _ in module.named_buffers()}
        # downloaded items that aren't part of the module, such as weights of other kinds and tables
        inputs = _RandomTensors({i.name: i.spec for p in work.down for i in p.items if i.name not in of_module})
        watch = AllocatorPeak(device, [*module.parameters(), *module.buffers()])
        with watch if watched else nullcontext():
            execute(work, inputs, source, module=module, device=device, seed=0, meter=meter)
        return watch.bytes


class _RandomTensors(Mapping[str, Tensor]):
    """Random tensors that are created at each access, so that only the work holds references to them."""

    def __init__(self, specs: Mapping[str, TensorSpec]):
        self._specs = specs

    def __getitem__(self, name: str) -> Tensor:
        spec = self._specs[name]
        return torch.randn(spec.shape).mul_(0.02).to(DTYPES[spec.dtype])

    def __iter__(self) -> Iterator[str]:
        return iter(self._specs)

    def __len__(self) -> int:
        return len(self._specs)


def _fastest(work: Work, source: RandomBatches) -> dict[tuple[int, str], tuple[float, float]]:
    """Wall and CPU seconds of the fastest step, by distinct pass and pattern.

    With gradient accumulation these are the mean seconds of the steps of the fastest update.
    """
    every = work.accumulation
    order = [repr(pass_) for pass_ in distinct(work)]
    fastest = {}
    for (pass_, pattern), seconds in source.seconds.items():
        groups = [seconds[i : i + every] for i in range(0, len(seconds) - every + 1, every)] or [seconds]
        means = [[sum(part) / len(group) for part in zip(*group, strict=True)] for group in groups]
        wall, cpu = (min(part) for part in zip(*means, strict=True))
        fastest[order.index(pass_), pattern] = wall, cpu
    return fastest


SAMPLED_EVERY = 0.005
"""Seconds between two looks at the resident set: a choice, not measured."""


class _Resident:
    """Resident set of this process before, at most during and after the body; a thread samples it."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self.before = self.peak = self.after = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while not self._over.wait(SAMPLED_EVERY):
            self.peak = max(self.peak, self._process.memory_info().rss)

    def __enter__(self) -> _Resident:
        self.before = self.peak = self.after = self._process.memory_info().rss
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self.after = self._process.memory_info().rss
        self.peak = max(self.peak, self.after)


def step_seconds(work: Work, source: Source, trace: StepTrace, device: Device) -> dict[tuple[int, str], float]:
    """Predicted seconds of a step on ``device``, by distinct pass and pattern, as ``ComputeCost.seconds`` has them."""
    every = work.accumulation
    seconds = {}
    for index, pass_ in enumerate(distinct(work)):
        single_pass = replace(work, passes=(pass_,))
        for pattern in pass_.patterns:
            if (index, pattern) not in trace.steps:
                continue
            # the steps of one update, and the optimizer's step
            steps = {(0, p): s for (i, p), s in trace.steps.items() if i == index and p in (pattern, UPDATE)}
            few = RandomBatches(source, work.model, every, short=True)
            total = compute_cost(single_pass, few, StepTrace(0, {}, steps)).seconds(device)
            seconds[index, pattern] = total / few.counts(pass_)[pattern]
    return seconds
