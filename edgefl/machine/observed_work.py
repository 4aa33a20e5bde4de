"""Witnesses of a work that runs for real: batches without data, the profiler's peak, and the process's resident set."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast

import psutil
import torch
from torch import Tensor

from edgefl import models
from edgefl.cost import compute_cost
from edgefl.devices import Device
from edgefl.work import (
    CUDA_ROUNDING,
    UPDATE,
    Meter,
    Pass,
    Source,
    TensorSpec,
    Trace,
    Work,
    distinct,
    execute,
    metered_steps,
)
from edgefl.work.description import DTYPES
from edgefl.work.torch_device import warm


@dataclass
class RandomBatches:
    """A source of which only the shapes are read: its batches hold random values, at most ``steps`` of a pattern.

    Numbers are normal, labels and tokens are drawn from the range that ``model`` (a work's description) has for
    them: no cost depends on the values.  ``counts`` and ``size`` are the true ones unless ``short``: an evaluation
    makes room for all its samples.  ``seconds[repr(pass), pattern]`` collects wall and CPU seconds of each step, from
    handing out its batch until the next one is asked for.
    """

    source: Source
    model: Mapping[str, Any]
    steps: int
    short: bool = False
    finished: Callable[[], object] = lambda: None
    """Called before a step's time is read: where kernels run by themselves it waits for them."""
    seconds: dict[tuple[str, str], list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))

    def spec(self, pass_: Pass, pattern: str) -> dict[str, TensorSpec]:
        """Those of the source."""
        return self.source.spec(pass_, pattern)

    def counts(self, pass_: Pass) -> dict[str, int]:
        """Batches per pattern: the source's, or of a short one as many as it hands out."""
        found = self.source.counts(pass_)
        return {pattern: min(n, self.steps) for pattern, n in found.items()} if self.short else found

    def size(self, pass_: Pass) -> int:
        """Samples; of a short source as many as fit its batches."""
        size = self.source.size(pass_)
        return min(size, pass_.batch * sum(self.counts(pass_).values())) if self.short else size

    def batches(self, pass_: Pass, seed: int) -> Iterator[tuple[str, dict[str, Tensor]]]:
        """Random batches of the source's shapes."""
        draw = torch.Generator().manual_seed(seed)
        for pattern, count in self.source.counts(pass_).items():
            for _ in range(min(count, self.steps)):
                specs = self.spec(pass_, pattern)
                batch = {name: self._drawn(name, spec, draw, pass_) for name, spec in specs.items()}
                self.finished()
                wall, cpu = time.perf_counter(), time.process_time()
                yield pattern, batch
                self.finished()
                self.seconds[repr(pass_), pattern].append((time.perf_counter() - wall, time.process_time() - cpu))
                del batch

    def _drawn(self, name: str, spec: TensorSpec, draw: torch.Generator, pass_: Pass) -> Tensor:
        dtype = DTYPES[spec.dtype]
        if dtype.is_floating_point:
            return torch.randn(spec.shape, generator=draw).to(dtype)
        if name == "index":  # a sample's place in its split
            most = max(1, self.size(pass_))
        else:
            most = min(_values(self.model, "classes" if name == "label" else "vocabulary"), default=2)
        return torch.randint(0, most, spec.shape, generator=draw, dtype=dtype)


def _values(description: Any, key: str) -> Iterator[int]:
    """Everything that stands under this key, at any depth."""
    if isinstance(description, Mapping):
        for name, value in description.items():
            if name == key and isinstance(value, int):
                yield value
            yield from _values(value, key)
    elif isinstance(description, Sequence) and not isinstance(description, str):
        for value in description:
            yield from _values(value, key)


# a work that is watched ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Observed:
    """What was seen of a work that ran for real.

    ``trace`` is the live-storage meter's; ``peak_memory_bytes`` its peak on a CPU and the allocator's on CUDA;
    ``witness_peak_memory_bytes`` the profiler's (None on CUDA); ``seconds`` are wall and CPU seconds of the fastest
    warm step by distinct pass and pattern; the resident set is of this process before, at most and after.
    """

    trace: Trace
    peak_memory_bytes: int
    witness_peak_memory_bytes: int | None
    seconds: Mapping[tuple[int, str], tuple[float, float]]
    rss_bytes_before: int
    rss_bytes_peak: int
    rss_bytes_after: int


def run_observed(
    work: Work, source: Source, device: torch.device, on_message: Callable[[str], object], seed: int = 0
) -> Observed:
    """Run the first steps of a work for real, thrice: bare for time and resident memory, metered, profiled.

    ``work`` should be ``shortened``; only the shapes of ``source`` are read.  ``on_message`` hears what comes next.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        warm(device)
        # first, because what the C library keeps of a run would hide the next one's memory
        on_message("bare")
        finished = torch.cuda.synchronize if device.type == "cuda" else _nothing
        timed = RandomBatches(source, work.model, metered_steps(work) + 1, finished=finished)
        with _Resident() as resident:
            _run(work, timed, device, seed, None)
        on_message("metered")
        meter = Meter(CUDA_ROUNDING if device.type == "cuda" else 1)
        peak = _run(work, RandomBatches(source, work.model, metered_steps(work)), device, seed, meter)
        on_message("under torch.profiler")
        witness = None if device.type == "cuda" else _profiled_peak(work, source, device, seed)
        return Observed(
            meter.trace(), peak or meter.peak, witness, _fastest(work, timed), resident.before, resident.peak,
            resident.after,
        )  # fmt: skip
    finally:
        torch.set_num_threads(threads)


def _nothing() -> None:
    return None


def _run(work: Work, source: RandomBatches, device: torch.device, seed: int, meter: Meter | None) -> int:
    """Execute it on a fresh module; gives the CUDA allocator's peak, or 0 on a CPU."""
    cuda, base = device.type == "cuda", 0
    if cuda:
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        base = torch.cuda.memory_allocated(device)
    with torch.random.fork_rng([device] if cuda else []):
        torch.manual_seed(seed)
        module = models.build(work.model).to(device)
        own = {n for n, _ in module.named_parameters()} | {n for n, _ in module.named_buffers()}
        # what isn't the model's own: partners' weights, tables
        inputs = _Drawn({i.name: i.spec for p in work.down for i in p.items if i.name not in own})
        execute(work, inputs, source, module=module, device=device, seed=seed, meter=meter)
    return torch.cuda.max_memory_allocated(device) - base if cuda else 0


class _Drawn(Mapping[str, Tensor]):
    """Random tensors, each made when it is asked for: nobody but the work that asked holds them."""

    def __init__(self, specs: Mapping[str, TensorSpec]):
        self._specs = specs

    def __getitem__(self, name: str) -> Tensor:
        spec = self._specs[name]
        return torch.randn(spec.shape).mul_(0.02).to(DTYPES[spec.dtype])

    def __iter__(self) -> Iterator[str]:
        return iter(self._specs)

    def __len__(self) -> int:
        return len(self._specs)


def _profiled_peak(work: Work, source: Source, device: torch.device, seed: int) -> int:
    """Peak of what torch's CPU allocator handed out and got back from the building of the module on.

    These are the profiler's memory events: every block of every tensor, and an operator's own scratch where it asks
    torch for it.  Memory that a library takes from the system by itself (oneDNN's packed weights) isn't among them.
    """
    profile = torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True, acc_events=True
    )
    with _without_probes():
        profile.start()
    try:
        _run(work, RandomBatches(source, work.model, metered_steps(work)), device, seed, None)
    finally:
        with _without_probes():
            profile.stop()
    kineto: Any = cast(Any, profile.profiler).kineto_results
    live = peak = 0
    for _, size in sorted((e.start_ns(), e.nbytes()) for e in kineto.events() if e.name() == "[memory]"):
        live += size
        peak = max(peak, live)
    return peak


@contextmanager
def _without_probes() -> Iterator[None]:
    """Some builds of torch write a line "USDT: ..." to the process's stderr when a profiler starts and stops.

    Everything else that is written meanwhile comes out afterwards.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with tempfile.TemporaryFile() as heard:
            os.dup2(heard.fileno(), 2)
            try:
                yield
            finally:
                os.dup2(kept, 2)
            heard.seek(0)
            os.write(2, b"".join(line for line in heard if not line.startswith(b"USDT:")))
    finally:
        os.close(kept)


def _fastest(work: Work, source: RandomBatches) -> dict[tuple[int, str], tuple[float, float]]:
    """The fastest step by distinct pass and pattern, the mean of an update's where several steps make one."""
    every = work.accumulation
    order = [repr(pass_) for pass_ in distinct(work)]
    found = {}
    for (pass_, pattern), seconds in source.seconds.items():
        groups = [seconds[i : i + every] for i in range(0, len(seconds) - every + 1, every)] or [seconds]
        means = [[sum(part) / len(group) for part in zip(*group, strict=True)] for group in groups]
        wall, cpu = (min(part) for part in zip(*means, strict=True))
        found[order.index(pass_), pattern] = wall, cpu
    return found


class _Resident:
    """The resident set of this process, looked at every few milliseconds by a thread."""

    def __init__(self, every: float = 0.005):
        self._process, self._every = psutil.Process(), every
        self.before = self.peak = self.after = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while not self._over.wait(self._every):
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


def step_seconds(work: Work, source: Source, trace: Trace, device: Device) -> dict[tuple[int, str], float]:
    """What ``device`` needs for a step, by distinct pass and pattern: the roofline of ``ComputeCost``."""
    every = work.accumulation
    found = {}
    for index, pass_ in enumerate(distinct(work)):
        one = replace(work, passes=(pass_,))
        for pattern in pass_.patterns:
            if (index, pattern) not in trace.steps:
                continue
            # an update's steps, and the update
            steps = {(0, p): s for (i, p), s in trace.steps.items() if i == index and p in (pattern, UPDATE)}
            few = RandomBatches(source, work.model, every, short=True)
            whole = compute_cost(one, few, Trace(0, {}, steps)).seconds(device)
            found[index, pattern] = whole / few.counts(pass_)[pattern]
    return found
