"""What torch's CPU allocator hands out while a configuration runs, each in a fresh process; edgefl is never imported.

    python tools/memory/measuring.py

reads configurations as lines of JSON from standard input, and answers each with a line.  The process imports torch and
the libraries of models, runs no operator and starts no thread; it forks for every configuration, so that each one
starts cold and the imports are paid once.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import torch.profiler
import torch.utils.checkpoint

SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
"""Operators that torchvision's Python part asks for; a build for another torch lacks them, and no model calls them."""


def import_libraries() -> torch.library.Library | None:
    """Import what models are made of, including what transformers imports only when it is first used."""
    library = None
    try:
        import torchvision
    except RuntimeError:
        library = torch.library.Library("torchvision", "DEF")
        for schema in SCHEMAS:
            library.define(schema)
        import torchvision  # noqa: F401
    import timm  # noqa: F401
    import transformers

    decoders = ("GPT2Model", "LlamaModel", "MistralModel", "Qwen2Model", "Qwen3Model")
    for name in ("ViTModel", "BertModel", "DistilBertModel", "ASTModel", *decoders):
        getattr(transformers, name)
        getattr(transformers, name.replace("Model", "Config"))
    return library


def peak_of(events: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """Largest running sum of bytes, and when it was reached; ``events`` are (time, bytes) in any order."""
    live = peak = at = 0
    for time_, size in sorted(events, key=lambda event: event[0]):
        live += size
        if live > peak:
            peak, at = live, time_
    return peak, at


def profiled(body: Callable[[], object]) -> tuple[int, list[str]]:
    """Peak of the allocator's bytes during ``body``, and the operators that were running then, outermost first."""
    profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True)
    with profile:
        body()
    recorded: Any = profile.profiler
    events = recorded.kineto_results.events()
    peak, at = peak_of((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    running = [e for e in events if e.name() != "[memory]" and e.start_ns() <= at <= e.start_ns() + e.duration_ns()]
    return peak, [e.name() for e in sorted(running, key=lambda e: -e.duration_ns())]


def measured(configuration: dict[str, Any]) -> dict[str, Any]:
    """Bytes at the peak of a configuration, where they were reached, and the seconds of processor time."""
    from memory.steps import work

    started = time.process_time()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    peak, running = profiled(lambda: work(configuration))
    assert "edgefl" not in sys.modules
    return {"bytes": peak, "at": running, "seconds": time.process_time() - started}


def in_a_fork(configuration: dict[str, Any]) -> dict[str, Any]:
    """``measured`` in a child process; ``failed`` says in one line why there is no answer."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        with tempfile.TemporaryFile() as said:
            os.dup2(said.fileno(), 2)  # profilers of some builds of torch write lines "USDT: ..."
            try:
                answer = measured(configuration)
            except BaseException as error:
                place = traceback.extract_tb(error.__traceback__)[-1]
                line = " ".join(str(error).split())[:300]
                answer = {"failed": f"{type(error).__name__}: {line} ({Path(place.filename).name}:{place.lineno})"}
            os.write(writing, json.dumps(answer).encode())
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    if not text:
        return {"failed": f"the process ended with status {os.waitstatus_to_exitcode(status)}"}
    answer: dict[str, Any] = json.loads(text)
    return answer


def main() -> int:
    """Answer configurations until standard input ends."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    warnings.simplefilter("ignore")
    kept = import_libraries()
    import memory.steps  # noqa: F401 - once, not in every fork

    threads = len(os.listdir("/proc/self/task"))
    assert threads == 1 and "edgefl" not in sys.modules, f"{threads} threads"
    for line in sys.stdin:
        print(json.dumps(in_a_fork(json.loads(line))), flush=True)
    del kept
    return 0


if __name__ == "__main__":
    sys.exit(main())
