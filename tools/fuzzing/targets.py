"""What is done with each kind of hostile input: the functions behind the commands, in this process.

Each target works in the folder of a case, which is the working directory.  It returns how many of its calls were
accepted and how many refused with an ``EdgeflError``; every other exception is let through.
"""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np

import edgefl
from edgefl.console import main
from edgefl.devices.availability_trace import read_trace
from edgefl.devices.browsing import describe
from edgefl.errors import EdgeflError
from edgefl.results.verify import verify
from edgefl.scenario.suite import read_suite
from fuzzing.printed import unprintable

MOST_CHARACTERS = 1_000
"""Of a line of a message: more is no short line."""

OUTSIDE = "outside"
"""A folder beside a run, which nothing that a run holds may change."""


_EXPLAIN = ["explain", "run", "--round", "1"]
SHOWING = (_EXPLAIN, [*_EXPLAIN, "--client", "0"], ["compare", "run", "--full"], ["compare", "run", "--as", "csv"])
"""Commands that print names of a run."""

FORMULA = re.compile(r"[=+@\t\r]|-(?!\d|\.|inf\b|nan\b|$)")
"""What a spreadsheet computes instead of showing it."""


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
    fault = ""
    if not all(line.strip() for line in lines):
        fault = "an empty line"
    elif len(lines) > several:
        fault = f"{len(lines)} lines for {several} error(s)"
    elif any(len(line) > MOST_CHARACTERS for line in lines):
        fault = f"a line of {max(map(len, lines))} characters"
    else:
        fault = unprintable("".join(lines))
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


def suites() -> Counts:
    """Read a suite, with the scenario of each variant."""
    counts: Counts = {}
    attempt(counts, lambda: read_suite("suite.yaml"))
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
            trace.until(records, times)
    attempt(counts, lambda: edgefl.validate("scenario.yaml"))
    return counts


def tables() -> Counts:
    """Validate a scenario whose data are the table or folder."""
    counts: Counts = {}
    attempt(counts, lambda: edgefl.validate("scenario.yaml"))
    return counts


def runs() -> Counts:
    """Read all of a run, verify it, resume it, and read it again; and print it, as commands do."""
    counts: Counts = {}
    before = _content(Path(OUTSIDE))
    for _ in range(2):
        run = attempt(counts, lambda: edgefl.read_run("run"))
        if run is not None:
            for part in (run, *(attempt(counts, lambda run=run: run.runs) or {}).values()):
                for name in ("scenario", "environment", "models", "evaluation", "is_finished", "result", "rounds",
                             "clients", "eligibility", "host", "tokenizer_path"):  # fmt: skip
                    attempt(counts, lambda part=part, name=name: getattr(part, name))
                attempt(counts, part.weights)
                for kind in attempt(counts, lambda part=part: part.models) or {}:
                    attempt(counts, lambda part=part, kind=kind: part.model(kind))
        attempt(counts, lambda: verify("run"))
        attempt(counts, lambda: edgefl.run(resume="run"))
        for command in SHOWING:
            _shown(counts, command)
        if _content(Path(OUTSIDE)) != before:
            raise Escaped(f"a file outside the run was changed: {sorted(_content(Path(OUTSIDE)))}")
    return counts


def _shown(counts: Counts, command: Sequence[str]) -> None:
    """Run a command that prints names of a run.  Raises BadMessage for what a terminal or a spreadsheet would obey."""
    out, err = StringIO(), StringIO()
    code: Any = 0
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main(command)
        except SystemExit as end:
            code = end.code
    counts["accepted" if not code else "refused"] = counts.get("accepted" if not code else "refused", 0) + 1
    fault = unprintable(out.getvalue()) or unprintable(err.getvalue())
    if code not in (None, 0, 1, 2):
        fault = f"exit code {code}"
    elif err.getvalue().count("edgefl: error") > 1:
        fault = "several errors"
    elif "csv" in command:
        cells = [cell for row in csv.reader(StringIO(out.getvalue())) for cell in row]
        fault = fault or next((f"the formula {cell[:40]!r}" for cell in cells if FORMULA.match(cell)), "")
    if fault:
        raise BadMessage(f"{' '.join(command[:1])}: {fault}")


class Disagreement(Exception):
    """``validate`` and ``run`` say different things of one scenario."""


def modules() -> Counts:
    """Validate and run a scenario with a plug-in's tower.  Raises Disagreement unless both say the same."""
    answers = []
    for words in (["validate", "scenario.yaml"], ["run", "scenario.yaml", "-o", "out"]):
        out, err = StringIO(), StringIO()
        code: Any = 0
        with redirect_stdout(out), redirect_stderr(err):
            try:
                main([*words, "--plugin", "tower.py"])
            except SystemExit as end:
                code = end.code or 0
        said = err.getvalue()
        if (fault := unprintable(said)) or "Traceback" in said:
            raise BadMessage(f"{words[0]} shows {fault or 'a traceback'}")
        why = said[said.index("edgefl: error") :].strip() if code else ""
        answers.append((code, re.sub(r"mangle_\d+|0x[0-9a-f]+", "...", why)))  # torch.jit counts its classes
    (valid, why), (ran, how) = answers
    if not valid and ("the model diverged" in how or "LinAlgError" in how):
        return {"values": 1}  # whether losses are finite, or a matrix positive definite, no tensor without data shows
    if (valid, why) != (ran, how):
        raise Disagreement(f"validate: {valid} {why[:400]} | run: {ran} {how[:400]}")
    if ran and Path("out").exists():
        raise Disagreement(f"a refused run leaves its folder: {how[:200]}")
    return {"refused" if ran else "accepted": 1}


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
    "scenarios": scenarios, "suites": suites, "profiles": profiles, "traces": traces, "tables": tables, "runs": runs,
    "modules": modules, "faults": faults,
}  # fmt: skip
