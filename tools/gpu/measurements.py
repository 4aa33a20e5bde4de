"""Measurements of ``gpu_check.py``; each runs in its own process and prints JSON."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from gpu.models import MODELS, Model
from gpu.results import Json


def machine(device: str) -> Json:
    """Name of the GPU or processor, and versions of the driver and packages."""
    from importlib.metadata import version

    import torch

    from edgefl.runs.environment import environment

    if device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("no CUDA device here, or a build of torch without CUDA")
    host = environment().to_data()
    facts = {"device": device, "edgefl": host["edgefl"], "python": host["python"], "torch": torch.__version__}
    facts |= {name: version(name) for name in ("transformers", "timm")}
    if device == "cpu":
        return {**facts, "name": host["cpu"]}
    gpu = torch.cuda.get_device_properties(0)
    return {
        **facts,
        "name": gpu.name,
        "memory_bytes": gpu.total_memory,
        "capability": f"{gpu.major}.{gpu.minor}",
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "driver": driver(),
    }


def driver() -> str:
    """Version of NVIDIA's driver; "unknown" if nvidia-smi is missing or prints none."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() or "unknown"
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def memory_of(model: Model, device: str) -> Json:
    """Predicted and measured peak memory of a client's first steps, in bytes.

    ``allocated_bytes`` is the allocator's peak: CUDA's minus its bytes before the run, on a CPU that of the profiler's
    memory events.  ``live_bytes`` is the predicted peak of live storage, and ``metered_bytes`` the same by the meter in
    another run.  ``requested_bytes`` (CUDA only) is the allocator's peak before it rounds sizes up.
    """
    import gc

    import torch

    from edgefl.commands.profile.measure import measure

    def tidy(event: str, facts: Mapping[str, Any]) -> None:
        # called before each run: reference cycles of the run before must not be collected in the middle of this one
        gc.collect()

    scenario, kind, stage = model.scenario(device), model.kind, model.stage
    (row,) = measure(scenario, kind=kind, stage=stage, calibration_seconds=0.1, on_progress=tidy).rows
    predicted, allocated = row.peak_memory_bytes, row.measured_peak_memory_bytes
    requested: Json = {}
    if device == "cuda":
        gc.collect()
        stats, key = torch.cuda.memory_stats(), "requested_bytes.all"
        if f"{key}.peak" in stats:  # not every allocator reports it
            requested["requested_bytes"] = stats[f"{key}.peak"] - stats[f"{key}.current"]
    return {
        "predicted_bytes": predicted,
        "allocated_bytes": allocated,
        "error": predicted / allocated - 1,
        "live_bytes": row.live_memory_bytes,
        "metered_bytes": row.measured_live_memory_bytes,
        **requested,
        "predicted_parts": row.memory_bytes,
        "metered_parts": row.measured_live_memory_bytes_by_part,
        "verdicts": verdicts_of(model) if device == "cuda" else [],
        "steps": [step.to_data() for step in row.steps],
    }


EDGES = (0.94, 0.97, 1.03, 1.06)
"""Limits of the allocator, as shares of what budgets are compared with."""


def verdicts_of(model: Model) -> list[Json]:
    """Whether a client's first steps fit a GPU whose allocator is limited to shares of the memory that they need.

    The limit holds for reserved memory: a verdict is right if it is that of a budget of so many bytes, with which the
    larger of the peak and the replayed allocator's bytes is compared.
    """
    import gc

    from edgefl.setup.compose import planner_of, scenario_of
    from edgefl.work.torch_device import device_of

    planner = planner_of(scenario_of(model.scenario("cuda")))
    setup = planner.setup
    stage = setup.schedule.offered[model.stage - 1]
    source = setup.clients.client(int(setup.of_kind(model.kind)[0]))
    work = planner.work(model.kind, setup.schedule.rounds_of(stage)[0], stage)[0].limit_batches(source.size)
    trace = planner.predictor.trace(work, source)
    predicted = max(trace.peak_memory_bytes, trace.reserved_bytes)
    tries = []
    for share in EDGES:
        gc.collect()
        limit = int(predicted * share)
        fits = _fits_limit(work, source, device_of("cuda"), limit)
        right = fits == (predicted <= limit)
        tries.append({"share": share, "limit_bytes": limit, "fits": fits, "right": right})
    return tries


def _fits_limit(work: Any, source: Any, device: Any, limit: int) -> bool:
    """Whether the first steps of a work fit a GPU whose allocator may reserve ``limit`` bytes more than it has."""
    import torch

    from edgefl.cost.predict import shorten_passes
    from edgefl.machine.observed_work import RandomBatches, run_once
    from edgefl.work import metered_steps

    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction(min((torch.cuda.memory_reserved(device) + limit) / total, 1.0), device)
    try:
        few = shorten_passes(work)
        run_once(few, RandomBatches(source, few.model, metered_steps(few)), device)
        return True
    except torch.OutOfMemoryError:
        return False
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)
        torch.cuda.empty_cache()


RUN_SECONDS, RUNS, BATCHES = 0.5, 9, 5
"""Approximate seconds of a timed run; number of pairs of runs; number of distinct batches in a run."""
QUICKSTART = {
    "source": "declared",
    "clients": {"image": 12},
    "samples": 1000,
    "shapes": {"image": {"channels": 1, "size": 32, "classes": 12}},
}
"""Declared data of the quickstart's shapes: timing a step needs no samples."""


def clients(device: str) -> Iterator[tuple[str, Any, str]]:
    """Name, scenario and kind of each timed client; the larger client is timed on a GPU only."""
    from edgefl.scenario import load

    changes = [f"data={json.dumps(QUICKSTART)}", "compare=null", "schedule=end-to-end", "method=fedavg"]
    yield "the quickstart's image client", load("quickstart", changes), "image"
    if device == "cuda":
        large = next(model for model in MODELS if model.name == "timm-vit small")
        yield large.title, load(large.scenario(device)), large.kind


@dataclass(frozen=True)
class FixedBatches:
    """A source with the same pre-drawn batches in every pass, so that drawing isn't timed."""

    source: Any
    drawn: Sequence[tuple[str, Json]]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.source, name)

    def batches(self, pass_: Any, seed: int) -> Iterator[tuple[str, Json]]:
        """Yield every pre-drawn (pattern, batch)."""
        yield from self.drawn


def throughput(device: str) -> Iterator[Json]:
    """Steps per second of the interpreter and of a bare loop; yields the result so far after each pair of runs."""
    import torch

    from edgefl.work.torch_device import device_of, warm

    torch.set_num_threads(1)
    warm(device_of(device))
    timed: Json = {}
    for name, scenario, kind in clients(device):
        for result in compared(scenario, kind, device_of(device)):
            yield {"clients": {**timed, name: result}}
        timed[name] = result


def compared(scenario: Any, kind: str, device: Any) -> Iterator[Json]:
    """Yield one client's result after each pair of runs; a ratio is the interpreter's seconds over the loop's."""
    from contextlib import nullcontext
    from dataclasses import replace

    import torch
    from torch.nn import functional as F

    from edgefl import models
    from edgefl.machine.observed_work import RandomBatches
    from edgefl.setup.compose import compose
    from edgefl.work import run
    from edgefl.work.description import DTYPES

    setup = compose(scenario)
    data = setup.clients.client(setup.of_kind(kind)[0])
    work = setup.schedule.stage(1).restrict_work(setup.method.work(kind, 1)).limit_batches(data.size)
    work = replace(work, passes=work.passes[:1])
    batches = RandomBatches(data, work.model, BATCHES, short=True)
    source = FixedBatches(batches, list(batches.batches(work.passes[0], 0)))
    inputs = setup.method.initial(scenario.seed).inputs(work)
    module = models.build(work.model).to(device)
    autocast = work.precision != "float32"

    def bare(passes: int) -> None:
        module.load_state_dict(inputs)
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3, weight_decay=0.0, fused=True)
        module.train()
        for _ in range(passes):
            for _, drawn in source.drawn:
                batch = {field: value.to(device, non_blocking=True) for field, value in drawn.items()}
                with torch.autocast(device.type, DTYPES[work.precision]) if autocast else nullcontext():
                    loss = F.cross_entropy(module.logits(kind, batch[kind]), batch["label"])
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()

    def interpreted(passes: int) -> None:
        run(replace(work, passes=work.passes * passes), inputs, source, module=module, device=device, seed=1)

    def seconds(train: Callable[[int], None], passes: int) -> float:
        synchronize()
        started = time.perf_counter()
        train(passes)
        synchronize()
        return time.perf_counter() - started

    def synchronize() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    bare(1)
    interpreted(1)
    passes = max(1, round(RUN_SECONDS / seconds(bare, 1)))
    steps = passes * len(source.drawn)
    loop_seconds, interpreter_seconds = [], []
    for pair in range(1, RUNS + 1):
        loop_seconds.append(seconds(bare, passes))
        interpreter_seconds.append(seconds(interpreted, passes))
        ratios = sorted(a / b for a, b in zip(interpreter_seconds, loop_seconds, strict=True))
        yield {
            "batch": work.passes[0].batch,
            "steps": steps,
            "pairs": pair,
            "bare_steps_per_second": steps / median(loop_seconds),
            "interpreter_steps_per_second": steps / median(interpreter_seconds),
            "ratio": median(ratios),
            "lowest_ratio": ratios[0],
            "highest_ratio": ratios[-1],
        }


def part(name: str, device: str) -> None:
    """Measure ``machine``, ``throughput``, ``packed`` or the model of a number; print each result as a line of JSON."""
    from gpu.packed import packed

    if name == "machine":
        results: Iterator[Json] = iter([machine(device)])
    elif name == "throughput":
        results = throughput(device)
    elif name == "packed":
        results = packed(device)
    else:
        results = iter([memory_of(MODELS[int(name)], device)])
    for result in results:
        print(json.dumps(result), flush=True)
