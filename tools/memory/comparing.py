"""Both sides of every configuration, and the report."""

from __future__ import annotations

import datetime
import json
import os
import selectors
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from memory.drawing import Json, described

HERE = Path(__file__).resolve().parent
SHARE, FLOOR = 0.001, 4096
"""A prediction may differ by this share of the allocated bytes, and always by FLOOR bytes."""
LIMIT = 300.0
"""Seconds after which a side is given up."""


class Side:
    """A process that answers configurations; it is started anew after an answer that didn't come in time."""

    def __init__(self, program: str):
        self.program = program
        self._process: subprocess.Popen[bytes] | None = None
        self._said: Any = None

    def _start(self) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - it is closed with the process
        return subprocess.Popen(
            [sys.executable, str(HERE / self.program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self._said, env=environment, start_new_session=True, bufsize=0,
        )  # fmt: skip

    def ask(self, configuration: Json) -> None:
        """Send a configuration."""
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._process = self._start()
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(configuration).encode() + b"\n")

    def answer(self, limit: float = LIMIT) -> Json:
        """The answer to what was asked last; ``failed`` if there is none."""
        assert self._process is not None and self._process.stdout is not None
        pipe, text, until = self._process.stdout, b"", time.monotonic() + limit
        with selectors.DefaultSelector() as selector:  # ``select`` takes no descriptor above 1023
            selector.register(pipe, selectors.EVENT_READ)
            while not text.endswith(b"\n"):
                ready = selector.select(max(0.0, until - time.monotonic()))
                part = os.read(pipe.fileno(), 1 << 16) if ready else b""
                if not part:
                    why = "the process ended" if ready else f"no answer in {limit:g} s"
                    self._said.seek(0)
                    lines = [s for s in self._said.read().decode(errors="replace").splitlines() if s.strip()]
                    self.close()
                    return {"failed": f"{why}: {lines[-1][:300]}" if lines else why}
                text += part
        found: Json = json.loads(text)
        return found

    def close(self) -> None:
        """End the process and those that it started."""
        if self._process is None:
            return
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._said):
            if pipe:
                pipe.close()
        self._process = None


@dataclass(frozen=True)
class Compared:
    """A configuration's predicted and allocated bytes; ``failed`` says what went wrong, "" if nothing did."""

    id: str
    description: str
    predicted: int
    allocated: int
    failed: str
    at: str
    parts: Json
    seconds: tuple[float, float]

    @property
    def error(self) -> int:
        """Predicted less allocated bytes."""
        return self.predicted - self.allocated

    @property
    def relative(self) -> float:
        """The error as a share of the allocated bytes."""
        return self.error / self.allocated if self.allocated else 0.0

    @property
    def outside(self) -> bool:
        """Whether the error is larger than allowed, or unknown."""
        return bool(self.failed) or abs(self.error) > max(SHARE * self.allocated, FLOOR)

    def line(self) -> str:
        """The comparison in one line."""
        if self.failed:
            return f"{self.id}: {self.description}: {self.failed}"
        mark = "!" if self.outside else ""
        return (
            f"{self.id}: {self.description}: predicted {self.predicted:,}, allocated {self.allocated:,}, "
            f"error {self.error:+,} B ({self.relative:+.2%}){mark}"
        )


def compared(configuration: Json, prediction: Json, measurement: Json) -> Compared:
    """Both sides' answers to a configuration."""
    sides = {"edgefl": prediction, "by hand": measurement}
    failed = "; ".join(f"{name}: {answer['failed']}" for name, answer in sides.items() if "failed" in answer)
    return Compared(
        configuration["id"], described(configuration), prediction.get("bytes", 0), measurement.get("bytes", 0), failed,
        " > ".join(measurement.get("at", [])), prediction.get("parts", {}),
        (prediction.get("seconds", 0.0), measurement.get("seconds", 0.0)),
    )  # fmt: skip


def compare(configurations: Sequence[Json], workers: int, on_result: Callable[[Compared], object]) -> list[Compared]:
    """Predict and measure every configuration, in order; ``workers`` at a time, each with a process for each side."""
    local, sides = threading.local(), list[Side]()

    def both(configuration: Json) -> Compared:
        if not hasattr(local, "pair"):
            local.pair = Side("predicting.py"), Side("measuring.py")
            sides.extend(local.pair)
        for side in local.pair:
            side.ask(configuration)
        prediction, measurement = (side.answer() for side in local.pair)
        result = compared(configuration, prediction, measurement)
        on_result(result)
        return result

    try:
        with ThreadPoolExecutor(workers) as pool:
            return list(pool.map(both, configurations))
    finally:
        for side in sides:
            side.close()


# report ---------------------------------------------------------------------------------------------------------------


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that ``share`` of all values don't exceed."""
    ordered = sorted(values)
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


def summary(results: Sequence[Compared]) -> Json:
    """Count, failures, and absolute errors: median, 90 %, worst; those outside count failures too."""
    known = [r for r in results if not r.failed]
    found: Json = {
        "configurations": len(results),
        "failed": len(results) - len(known),
        "outside": sum(r.outside for r in results),
    }
    for name, errors in (
        ("bytes", [float(abs(r.error)) for r in known]),
        ("relative", [abs(r.relative) for r in known]),
    ):
        if errors:
            found[name] = {"median": statistics.median(errors), "90%": quantile(errors, 0.9), "worst": max(errors)}
    return found


def report(results: Sequence[Compared], worst: int = 10) -> Iterator[str]:
    """The summary, the failures, and the configurations with the largest errors."""
    total = summary(results)
    yield f"{total['configurations']} configurations, {total['failed']} failed"
    if "bytes" in total:
        size, share = total["bytes"], total["relative"]
        yield f"error in bytes: median {size['median']:,.0f}, 90 % {size['90%']:,.0f}, worst {size['worst']:,.0f}"
        yield f"error as a share: median {share['median']:.4%}, 90 % {share['90%']:.4%}, worst {share['worst']:.4%}"
    yield f"outside max({SHARE:.1%}, {FLOOR:,} B): {total['outside']}"
    for result in results:
        if result.failed:
            yield f"failed: {result.line()}"
    ranked = sorted((r for r in results if not r.failed), key=lambda r: -abs(r.error) / max(SHARE * r.allocated, FLOOR))
    for result in ranked[:worst]:
        yield result.line()
        yield f"    at {result.at or 'no operator'}"


def to_data(seed: int, results: Sequence[Compared]) -> Json:
    """The summary and every comparison as plain data."""
    rows = [{**asdict(r), "error": r.error, "relative": r.relative, "outside": r.outside} for r in results]
    return {"seed": seed, "summary": summary(results), "configurations": rows}


def recorded(command: str, results: Sequence[Compared]) -> Json:
    """The figures that pages repeat (docs/evidence/figures/memory.json); those without a figure aren't outside."""
    total, errors = summary(results), [abs(r.error) for r in results if not r.failed]
    return {
        "from": f"`{command}` on {datetime.date.today():%d %B %Y}",
        "goal": f"{100 * SHARE:g} % or {FLOOR // 1024} KiB",
        "configurations": total["configurations"],
        "median_error_bytes": round(statistics.median(errors)),
        "equal": errors.count(0),
        "within_90_percent_bytes": round(quantile(errors, 0.9)),
        "largest_error_bytes": max(errors),
        "outside_goal": total["outside"] - total["failed"],
        "without_figure": total["failed"],
    }
