"""The six steps of ``gpu_check.py`` and the folder of their results."""

from __future__ import annotations

import datetime
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from gpu.models import MODELS
from gpu.results import Json, read, write
from gpu.table import mib, percent

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = str(ROOT / "tools" / "gpu_check.py")
GRACE = 20.0
"""Seconds between the interrupt of a command at its deadline and its kill."""


@dataclass(frozen=True)
class Check:
    """Folder and limits of a step; ``deadline`` is in seconds of ``time.monotonic``."""

    folder: Path
    device: str
    minutes: float
    deadline: float
    models: int


@dataclass(frozen=True)
class Ended:
    """A command's output, its exit code (None if its time was over) and the last line that it printed."""

    out: str
    code: int | None
    message: str

    @property
    def verdict(self) -> Json:
        """Fields for the step's result: ``failed`` with the reason, ``cut`` if its time was over, or none."""
        if self.code is None:
            return {"cut": True}
        return {"failed": f"exit code {self.code}: {self.message}"} if self.code else {}

    def last(self) -> Json:
        """The last complete line of JSON in the output; empty if there is none."""
        for line in reversed(self.out.splitlines(keepends=True)):
            if line.endswith("\n") and line.startswith("{"):
                return dict(json.loads(line))
        return {}


def call(check: Check, name: str, *command: str) -> Ended:
    """Run a Python program of this checkout until it ends or the deadline passes; its output goes to ``logs/``."""
    logs = check.folder / "logs"
    logs.mkdir(exist_ok=True)
    out, log = logs / f"{name}.out", logs / f"{name}.log"
    with out.open("wb") as stdout, log.open("wb") as stderr:
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        env = {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "COLUMNS": "200"}
        process = subprocess.Popen([sys.executable, *command], stdout=stdout, stderr=stderr, cwd=ROOT, env=env)
        code: int | None = None
        try:
            code = process.wait(max(0.0, check.deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(GRACE)
            except subprocess.TimeoutExpired:
                pass
        finally:
            process.kill()
            process.wait()
    printed, logged = (path.read_text(errors="replace") for path in (out, log))
    lines = [line.strip() for line in (logged.strip() or printed).splitlines() if line.strip()]
    return Ended(printed, code, lines[-1].strip("= ") if lines else "nothing was said")


ENDS = ("passed", "failed", "error", "skipped")


def do_tests(check: Check) -> Json:
    """Run ``pytest -m gpu``; the result lists the tests by outcome."""
    ended = call(check, "tests", "-m", "pytest", "-m", "gpu", "-v", "--tb=short", "--color=no", "tests/gpu")
    outcomes = re.findall(rf"^(tests/.+?) ({'|'.join(ENDS).upper()})\b", ended.out, re.MULTILINE)
    reasons = re.findall(r"^(?:FAILED|ERROR) (tests/.+)$", ended.out, re.MULTILINE)
    ends = {end: [test for test, outcome in outcomes if outcome == end.upper()] for end in ENDS}
    return {"ends": ends, "reasons": reasons, **ended.verdict}


def do_quickstart(check: Check) -> Json:
    """Run ``edgefl run quickstart``; the result has final metrics and errors of predicted memory by schedule."""
    from edgefl.errors import RunError
    from edgefl.runs import read_run

    folder = check.folder / "quickstart"
    shutil.rmtree(folder, ignore_errors=True)
    ended = call(check, "quickstart", "-m", "edgefl", "run", "quickstart", "--set",
                 f"executor.device={check.device}", "--out", str(folder))  # fmt: skip
    schedules: Json = {}
    try:
        runs = read_run(folder).runs
    except RunError:  # it ended before its first record
        return {"schedules": schedules, **ended.verdict}
    for label, run in runs.items():
        errors = [c["memory_error"] for c in run.records("clients") if c["memory_error"] is not None]
        schedules[label] = {
            "finished": run.is_finished,
            "metrics": run.result.metrics if run.is_finished else {},
            "measured_works": len(errors),
            "worst_memory_error": max(errors, key=abs, default=None),
        }
    return {"schedules": schedules, **ended.verdict}


GPU_BYTES, MOST_AT_ONCE = 8 * 2**30, 8
"""GPU memory for each model that is measured at the same time, and how many are at most; the largest take 5 GiB."""


def at_once(check: Check) -> int:
    """How many models are measured at the same time: one on a CPU, on a GPU as many as its memory and cores allow.

    Each has its own process and allocator, and what is measured are bytes: they don't disturb each other.
    """
    there = read(check.folder / "machine.json").get("memory_bytes", 0) // GPU_BYTES
    return max(1, min(there, (os.cpu_count() or 1) // 2, MOST_AT_ONCE))


def do_memory(check: Check) -> Json:
    """Measure every model without a result file; each model runs in its own process."""
    folder = check.folder / "memory"
    folder.mkdir(exist_ok=True)
    due = [index for index in range(check.models) if not (folder / f"{index:02d}.json").exists()]
    due.sort(key=lambda index: "gru" not in MODELS[index].title)  # of which least is known
    with ThreadPoolExecutor(at_once(check)) as pool:
        try:
            ended = [pool.submit(measure, check, index, folder / f"{index:02d}.json") for index in due]
            cut = False in [each.result() for each in ended]
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    rows = [read(path) for path in sorted(folder.glob("*.json"))]
    failed = sum("failed" in row for row in rows)
    return {
        "models": rows,
        "of": len(MODELS),
        **({"cut": True} if cut else {}),
        **({"failed": f"{failed} of {len(rows)} models"} if failed else {}),
    }


def measure(check: Check, index: int, path: Path) -> bool:
    """Measure a model and write its result; False if the step's time is over."""
    if time.monotonic() >= check.deadline:
        return False
    model = MODELS[index]
    ended = call(check, f"memory-{index:02d}", PROGRAM, "--part", str(index), "--device", check.device)
    if ended.code is None:
        return False
    row = {"name": model.name, "title": model.title, **ended.last(), **ended.verdict}
    write(path, row)
    summary = row.get("failed") or (
        f"predicted {mib(row['predicted_bytes'])}, allocated {mib(row['allocated_bytes'])}, {percent(row['error'])}"
    )
    print(f"  {index + 1} of {check.models}: {model.title}: {summary}", flush=True)
    return True


def do_calibrate(check: Check) -> Json:
    """Run ``edgefl devices calibrate``; the result has the numbers of the profile."""
    quick = ["--quick"] if check.minutes < 2 else []
    ended = call(check, "calibrate", "-m", "edgefl", "devices", "calibrate", "--device", check.device, "--as", "json",
                 "--force", "-o", str(check.folder / "calibrated.yaml"), *quick)  # fmt: skip
    profile = json.loads(ended.out) if ended.code == 0 else {"devices": [None], "notes": []}
    return {"device": profile["devices"][0], "notes": profile["notes"], "quick": bool(quick), **ended.verdict}


def do_throughput(check: Check) -> Json:
    """Measure steps per second; the result has the pairs of runs that ended in time."""
    ended = call(check, "throughput", PROGRAM, "--part", "throughput", "--device", check.device)
    return {"clients": ended.last().get("clients", {}), **ended.verdict}


def do_packed(check: Check) -> Json:
    """Train in several workers on one GPU, and on two if there are; the result has the measurements that ended."""
    ended = call(check, "packed", PROGRAM, "--part", "packed", "--device", check.device)
    found = {"ceilings": {}, "clients": {}, **ended.last(), **ended.verdict}
    rows = [row for client in found["clients"].values() for row in client["workers"]]
    wrong = sum(row["ran_out"] or not row["same_bytes"] for row in rows)
    return {**found, **({"failed": f"{wrong} of {len(rows)} packings"} if wrong else {})}


@dataclass(frozen=True)
class Step:
    """A step with its typical minutes by device; ``no_cpu`` is the reason why a CPU skips it."""

    title: str
    run: Callable[[Check], Json]
    minutes: Mapping[str, float]
    no_cpu: str = ""


STEPS = {
    "tests": Step("pytest -m gpu", do_tests, {"cuda": 5}, "its tests are skipped without a CUDA device"),
    "quickstart": Step("edgefl run quickstart", do_quickstart, {"cuda": 3, "cpu": 3}),
    "memory": Step("predicted against allocated memory", do_memory, {"cuda": 6, "cpu": 40}),
    "calibrate": Step("edgefl devices calibrate", do_calibrate, {"cuda": 1.5, "cpu": 1.5}),
    "throughput": Step("steps a second against a bare loop", do_throughput, {"cuda": 1, "cpu": 0.5}),
    "packed": Step("several workers on a GPU", do_packed, {"cuda": 4, "cpu": 2}),
}


def due(name: str, check: Check, named: bool) -> bool:
    """Whether a step has to run.

    A step without a result is due.  ``--only`` continues a step that ran out of time, and a larger ``--models``
    continues the memory step.
    """
    result = read(check.folder / f"{name}.json")
    if not result or (named and result.get("cut")):
        return True
    return name == "memory" and not result.get("cut") and len(result["models"]) < check.models


def forget(name: str, folder: Path) -> None:
    """Remove the result of a step."""
    (folder / f"{name}.json").unlink(missing_ok=True)
    if name == "memory":
        shutil.rmtree(folder / "memory", ignore_errors=True)


def run_step(name: str, check: Check) -> Json:
    """Run a step and write its result."""
    started = time.monotonic()
    step = STEPS[name]
    result = step.run(check) if check.device == "cuda" or not step.no_cpu else {"skipped": step.no_cpu}
    seconds = time.monotonic() - started
    result |= {"seconds": seconds, "minutes": check.minutes, "date": datetime.date.today().isoformat()}
    write(check.folder / f"{name}.json", result)
    return result
