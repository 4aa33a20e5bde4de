"""What is done with each kind of hostile input: the functions behind the commands, in this process.

Each target works in the folder of a case, which is the working directory.  It returns how many of its calls were
accepted and how many refused with an ``EdgeflError``; every other exception is let through.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np

import edgefl
from edgefl.commands.verify.verify import verify
from edgefl.devices.availability_trace import read_trace
from edgefl.devices.browsing import describe
from edgefl.errors import EdgeflError

MOST_CHARACTERS = 1_000
"""Of a line of a message: more is no short line."""

OUTSIDE = "outside"
"""A folder beside a run, which nothing that a run holds may change."""


class BadMessage(Exception):
    """An ``EdgeflError`` whose message isn't one short line, or a list of them."""


class Escaped(Exception):
    """Something outside the run's folder was changed."""


Counts = dict[str, int]


def attempt(counts: Counts, call: Callable[[], Any]) -> Any:
    """What ``call`` returns; None if it refuses its input.  Raises BadMessage for a refusal that is no short line."""
    try:
        answer = call()
    except EdgeflError as error:
        counts["refused"] = counts.get("refused", 0) + 1
        check_message(error)
        return None
    counts["accepted"] = counts.get("accepted", 0) + 1
    return answer


def check_message(error: EdgeflError) -> None:
    """Raise BadMessage unless the message is short lines of printable text; several only where errors are several."""
    lines = str(error).split("\n")
    several = len(getattr(error, "errors", ())) or 1
    fault = None
    if not all(line.strip() for line in lines):
        fault = "an empty line"
    elif len(lines) > several:
        fault = f"{len(lines)} lines for {several} error(s)"
    elif any(len(line) > MOST_CHARACTERS for line in lines):
        fault = f"a line of {max(map(len, lines))} characters"
    elif any(ord(character) < 32 or ord(character) == 127 for line in lines for character in line):
        fault = "a control character"
    if fault:
        raise BadMessage(f"{type(error).__name__} with {fault}: {str(error)[:200]!r}") from error


def scenarios() -> Counts:
    """Validate a scenario from its file, or from plain data, with overrides."""
    counts: Counts = {}
    overrides = Path("overrides.txt")
    given = overrides.read_text(encoding="utf-8").splitlines() if overrides.exists() else []
    if Path("scenario.json").exists():
        data = json.loads(Path("scenario.json").read_text(encoding="utf-8"))
        attempt(counts, lambda: edgefl.validate(data, given))
    else:
        attempt(counts, lambda: edgefl.validate("scenario.yaml", given))
    return counts


def profiles() -> Counts:
    """Describe a device, link or fleet, and validate a scenario that uses it."""
    counts: Counts = {}
    attempt(counts, lambda: describe("./mine.yaml"))
    attempt(counts, lambda: edgefl.validate("scenario.yaml"))
    return counts


def traces() -> Counts:
    """Read a trace, ask it about times, and validate a scenario that uses it."""
    counts: Counts = {}
    (path,) = Path(".").glob("trace.*")
    for period in (None, 86400.0):
        trace = attempt(counts, lambda period=period: read_trace(str(path), period))
        if trace is not None:
            records = np.arange(len(trace)).repeat(4)
            times = np.tile([0.0, 1.0, 1e5, 1e12], len(trace))
            for ask in (trace.inside, trace.end, trace.next):
                ask(records, times)
    attempt(counts, lambda: edgefl.validate("scenario.yaml"))
    return counts


def tables() -> Counts:
    """Validate a scenario whose data are the table or folder."""
    counts: Counts = {}
    attempt(counts, lambda: edgefl.validate("scenario.yaml"))
    return counts


def runs() -> Counts:
    """Read all of a run, verify it, resume it, and read it again."""
    counts: Counts = {}
    before = _content(Path(OUTSIDE))
    for _ in range(2):
        run = attempt(counts, lambda: edgefl.read_run("run"))
        if run is not None:
            for part in (run, *(attempt(counts, lambda run=run: run.runs) or {}).values()):
                for name in ("scenario", "environment", "models", "evaluation", "finished", "result", "rounds",
                             "clients", "eligibility", "host", "tokenizer_path"):  # fmt: skip
                    attempt(counts, lambda part=part, name=name: getattr(part, name))
                attempt(counts, part.weights)
                for kind in attempt(counts, lambda part=part: part.models) or {}:
                    attempt(counts, lambda part=part, kind=kind: part.model(kind))
        attempt(counts, lambda: verify("run"))
        attempt(counts, lambda: edgefl.run(resume="run"))
        if _content(Path(OUTSIDE)) != before:
            raise Escaped(f"a file outside the run was changed: {sorted(_content(Path(OUTSIDE)))}")
    return counts


def faults() -> Counts:
    """Fail in the way that the file ``fault`` names, to show that the harness finds it."""
    counts: Counts = {}
    fault = Path("fault").read_text(encoding="utf-8")
    if fault == "traceback":
        return {"accepted": 1 // 0}
    if fault == "exit":
        sys.exit(3)
    if fault in ("refusal", "empty message"):
        attempt(counts, _raising("x: too large" if fault == "refusal" else ""))
    elif fault == "memory":
        bytearray(2 * 2**30)
    elif fault == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif fault == "sleep":
        time.sleep(600)
    elif fault == "loop in C":
        deque(repeat(0), maxlen=0)  # without end, and never asks for signals
    while fault == "loop":
        pass
    return counts


def _raising(message: str) -> Callable[[], None]:
    def fail() -> None:
        raise EdgeflError(message)

    return fail


def _content(folder: Path) -> dict[str, bytes]:
    if not folder.is_dir():
        return {}
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


TARGETS: dict[str, Callable[[], Counts]] = {
    "scenarios": scenarios, "profiles": profiles, "traces": traces, "tables": tables, "runs": runs, "faults": faults,
}  # fmt: skip
