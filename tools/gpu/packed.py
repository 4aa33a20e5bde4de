"""Several workers on a GPU, packed by predicted peak memory: speed, utilisation, ceilings and equal results."""

from __future__ import annotations

import hashlib
import subprocess
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

from gpu.measurements import compared
from gpu.results import Json

WORKERS = (1, 2, 4)
"""Workers on one GPU that are compared."""
CLIENTS = {"the quickstart's image client": 64, "LW-FedMML's client on glyphs": 8}
"""Trainings that are timed for each number of workers."""
CEILING_SECONDS = 1.0
"""Seconds of a ceiling's measurement."""


def clients(device: str) -> Iterator[tuple[str, Any, str]]:
    """Name, scenario and kind of each timed client; the larger client is timed on a GPU only.

    The larger one has LW-FedMML's towers and projections (``papers/lw-fedmml-coco``) at its last stage's size, on data
    that every worker can make.
    """
    from edgefl.scenario import load

    plain = ["compare=null"]
    small = [*plain, "schedule=end-to-end", "method=fedavg", "data.clients={image: 12}"]
    yield next(iter(CLIENTS)), load("quickstart", small), "image"
    if device == "cuda":
        paper = load("papers/lw-fedmml-coco").to_data()
        changes = [*plain, "schedule=end-to-end", "data.clients={image-text: 4}", "data.samples=512", "data.size=224"]
        changes.append("round={cohort: 100%, quorum: 1}")
        raw = load("quickstart", [*changes, "method=fedmml"]).to_data()
        raw["model"], raw["training"]["batch"] = paper["model"], 128
        yield list(CLIENTS)[1], load(raw), "image-text"


def packed(device: str) -> Iterator[Json]:
    """Measure each client with 1, 2 and 4 workers; yields the result so far after each measurement."""
    import torch

    result: Json = {"ceilings": ceilings(device), "clients": {}}
    yield result
    for name, scenario, kind in clients(device):
        (*_, bare) = compared(scenario, kind, torch.device(device))
        rows: list[Json] = []
        result["clients"][name] = {"bare_steps_per_second": bare["bare_steps_per_second"], "workers": rows}
        cases = [(count, [device if device == "cpu" else "cuda:0"]) for count in WORKERS]
        if device == "cuda" and torch.cuda.device_count() > 1:
            cases.append((2, ["cuda:0", "cuda:1"]))
        for count, devices in cases:
            rows.append(trained(scenario, kind, count, devices, CLIENTS[name] if device == "cuda" else 8))
            rows[-1]["same_bytes"] = rows[-1]["digest"] == rows[0]["digest"]
            flops, moved = result["ceilings"]["flops_per_second"], result["ceilings"]["bytes_per_second"]
            rows[-1]["share_of_matmul_ceiling"] = rows[-1]["flops_per_second"] / flops
            rows[-1]["share_of_copy_ceiling"] = rows[-1]["bytes_per_second"] / moved
            yield result


def trained(scenario: Any, kind: str, workers: int, devices: list[str], count: int) -> Json:
    """Train clients in so many workers on these devices; the time doesn't have the start of the workers.

    ``ran_out`` says whether a worker ran out of memory or ended, ``digest`` is of all uploads in order.
    """
    from edgefl.planning.planner import Planner
    from edgefl.setup.compose import compose, predictor_of
    from edgefl.training import Assignment, ProcessExecutor
    from edgefl.training.packing import DeviceMemory

    setup = compose(scenario)
    planner, stage = Planner(setup, predictor_of(scenario)), setup.schedule.stage(1)
    state, members = setup.method.initial(scenario.seed), [int(client) for client in setup.of_kind(kind)]
    tasks, flops, moved, steps = [], 0.0, 0.0, 0
    for number in range(count):
        client = members[number % len(members)]
        (whole, base), scalars = planner.form(kind, 1, stage), planner.scalars(kind, 1, stage)
        form, _, cost = planner.compute(whole, scalars, base, client)
        tasks.append(Assignment(form, scalars, state.inputs(form), client, number, peak=cost.peak_memory_bytes))
        flops += cost.forward_flops + cost.backward_flops
        moved += float((cost.operators[:, 1] * cost.operators[:, 2]).sum())
        source = setup.clients.client(client)
        steps += sum(n for p in form.passes for n in source.counts(p).values())
    # a CPU's memory isn't shared out: it only routes
    memories = [DeviceMemory("cpu", 2**40, 2**39)] if devices == ["cpu"] else None
    said: list[warnings.WarningMessage]
    with (
        warnings.catch_warnings(record=True) as said,
        ProcessExecutor(
            scenario.data, scenario.seed, scenario.model.tokens, None, workers, devices, memories=memories
        ) as pool,
    ):
        warnings.simplefilter("always")
        pool.expect({kind: max(task.peak or 0 for task in tasks)})
        for future in [pool.submit(task) for task in tasks[: 2 * workers]]:
            future.result()
        with utilisation(devices) as seen:
            started = time.perf_counter()
            reports = [future.result() for future in [pool.submit(task) for task in tasks]]
            seconds = time.perf_counter() - started
    digest = hashlib.sha256()
    for report in reports:
        for payload in report.payloads.values():
            for name, tensor in sorted(payload.items()):
                digest.update(name.encode() + tensor.detach().cpu().contiguous().numpy().tobytes())
    texts = [str(each.message) for each in said]
    return {
        "workers": workers,
        "devices": devices,
        "processes": len({report.host["process"] for report in reports}),
        "peak_memory_bytes": max(task.peak or 0 for task in tasks),
        "ran_out": any("run again" in text for text in texts),
        "steps_per_second": steps / seconds,
        "clients_per_second": count / seconds,
        "flops_per_second": flops / seconds,
        "bytes_per_second": moved / seconds,
        "utilisation": median(seen) if seen else None,
        "digest": digest.hexdigest(),
    }


@contextmanager
def utilisation(devices: list[str]) -> Iterator[list[float]]:
    """The percentages of time in which the GPU ran a kernel, as nvidia-smi samples them; empty if it can't.

    These are ``utilization.gpu`` of the first device, twice a second.
    """
    seen: list[float] = []
    over = threading.Event()
    index = devices[0].partition(":")[2]
    command = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", f"--id={index}"]

    def look() -> None:
        while not over.wait(0.5):
            try:
                seen.append(float(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
            except (OSError, subprocess.CalledProcessError, ValueError):
                return

    looking = threading.Thread(target=look, daemon=True)
    if index:
        looking.start()
    try:
        yield seen
    finally:
        over.set()
        if index:
            looking.join()


def ceilings(device: str) -> Json:
    """The device's measured float32 rate of a large matrix product, and of a copy in its memory (read and write)."""
    import torch

    size = 8192 if device == "cuda" else 512
    left = torch.full((size, size), 0.5, device=device)
    block = torch.zeros(2**28 if device == "cuda" else 2**22, device=device)
    other = torch.empty_like(block)
    return {
        "flops_per_second": 2.0 * size**3 / fastest(lambda: left @ left, device),
        "bytes_per_second": 2.0 * block.nbytes / fastest(lambda: other.copy_(block), device),
    }


def fastest(call: Callable[[], object], device: str) -> float:
    """Seconds of the fastest call within ``CEILING_SECONDS``."""
    import torch

    best, until = float("inf"), time.perf_counter() + CEILING_SECONDS
    call()
    while time.perf_counter() < until:
        if device == "cuda":
            torch.cuda.synchronize()
        started = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - started)
    return best
