"""Tries cases in a process of their own, within limits of time and memory, and says what each one showed."""

from __future__ import annotations

import json
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from fuzzing.case import Case

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 5.0
"""Most processor time of a case."""

BYTES = 2**30
"""Most memory by which the process may grow in a case."""

FIRST_SECONDS = 60.0
"""Processor time of the second try of a slow case: what only fills the cache is fast in the third."""

MOST_WALL = 600.0
ASLEEP = 4.0
"""A process that uses no processor time for so many seconds waits for something that never comes."""

MOST_CACHE = 2**30
"""Bytes of the cache that are kept between cases."""


@dataclass(frozen=True)
class Finding:
    """Something that isn't success, and isn't a refusal in short lines either.

    Equal causes have equal signatures: kind of failure, and function of edgefl.
    """

    signature: str
    message: str
    traceback: str


@dataclass
class Tally:
    """How many cases were tried, and how many calls of theirs were accepted and refused."""

    cases: int = 0
    accepted: int = 0
    refused: int = 0

    def __str__(self) -> str:
        return f"{self.cases:,} cases, {self.accepted:,} calls accepted, {self.refused:,} refused"


class Judge:
    """A process that tries cases.  Use it in ``with``; its folders are removed at the end.

    ``cache`` is edgefl's cache for the cases; without one it is a folder of its own.
    """

    def __init__(self, cache: Path | None = None) -> None:
        self.tallies: dict[str, Tally] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._child = 0
        self._home = Path(tempfile.mkdtemp(prefix="edgefl-fuzz-"))
        self._cache = cache or self._home / "cache"

    def __enter__(self) -> Judge:
        return self

    def __exit__(self, *error: object) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
        shutil.rmtree(self._home, ignore_errors=True)

    def judge(self, case: Case) -> Finding | None:
        """Try a case.  None if every call succeeded or was refused in short lines.

        A case that is too slow is tried twice more, since the first may have built data for the cache.
        """
        tally = self.tallies.setdefault(case.kind, Tally())
        tally.cases += 1
        answer = self._try(case, SECONDS)
        if "finding" in answer and answer["finding"]["signature"].startswith("too slow"):
            answer = self._try(case, FIRST_SECONDS)
            if "finding" not in answer:
                answer = self._try(case, SECONDS)
        if "finding" in answer:
            found = answer["finding"]
            line = f" (line {found['line']})" if found.get("line") else ""
            return Finding(found["signature"], found["message"] + line, found["traceback"])
        tally.accepted += answer["counts"].get("accepted", 0)
        tally.refused += answer["counts"].get("refused", 0)
        return None

    def _try(self, case: Case, seconds: float) -> dict[str, Any]:
        if self._process is None:
            self._start()
        assert self._process is not None and self._process.stdin is not None
        self._clean_cache()
        folder = self._home / "case"
        case.write(folder)
        request = {"kind": case.kind, "folder": str(folder), "seconds": seconds, "bytes": BYTES}
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            return self._answer(seconds)
        finally:
            shutil.rmtree(folder)

    def _start(self) -> None:
        path = os.pathsep.join([str(ROOT), str(ROOT / "tools"), os.environ.get("PYTHONPATH", "")])
        environment = {
            **os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "EDGEFL_CACHE": str(self._cache),
            "EDGEFL_DATA": str(self._home / "no-data"),
            "ARROW_DEFAULT_MEMORY_POOL": "system",  # its own one reserves a GiB at first
        }  # fmt: skip
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fuzzing.worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment,
            cwd=self._home, bufsize=0,
        )  # fmt: skip
        self._child = self._line(120)["ready"]

    def _answer(self, seconds: float) -> dict[str, Any]:
        """The answer to a request.  A process that sleeps, or computes in C beyond ``seconds``, is ended."""
        slow = None
        try:
            answer = self._line(MOST_WALL, seconds)
        except TimeoutError as error:
            slow = f"{error} in {self._place()}"
            os.kill(self._child, signal.SIGKILL)
            answer = self._line(60)
        if "ended" not in answer:
            return answer
        self._child = self._line(60)["ready"]
        what = f"hangs: {slow}" if slow else f"the process ended by {answer['ended']}"
        text = "ended from outside" if slow else "a crash, or memory beyond the limit"
        return {"finding": {"signature": what, "message": text, "traceback": ""}}

    def _place(self) -> str:
        """The function of edgefl in which the child is."""
        os.kill(self._child, signal.SIGUSR1)
        time.sleep(0.5)
        frame = re.search(r'File ".*?/(edgefl/[^"]*)", line \d+ in (\S+)', (self._home / "stack").read_text())
        return f"{frame[1]}:{frame[2]}" if frame else "outside edgefl"

    def _line(self, wall: float, seconds: float | None = None) -> dict[str, Any]:
        """The next line of the process.

        Raises TimeoutError after ``wall`` seconds; with ``seconds`` also where the child used twice as much processor
        time, which is checked in Python only, or slept for ``ASLEEP`` seconds.
        """
        assert self._process is not None and self._process.stdout is not None
        started = awake = time.monotonic()
        first = used = _used(self._child)[0] if seconds else 0.0
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while not selector.select(0.5):
                now, before = time.monotonic(), used
                if seconds:
                    used, sleeps = _used(self._child)
                    awake = awake if sleeps and used == before else now
                    if now > awake + ASLEEP:
                        raise TimeoutError("it waits for something")
                    if used > first + 2 * seconds:
                        raise TimeoutError("it computes outside of Python")
                if now > started + wall:
                    raise TimeoutError("nothing is heard")
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the process that tries cases has ended")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _clean_cache(self) -> None:
        """Remove a cache of its own now and then, once it is large."""
        if self._cache.parent != self._home or sum(tally.cases for tally in self.tallies.values()) % 500:
            return
        if sum(path.stat().st_size for path in self._cache.rglob("*") if path.is_file()) > MOST_CACHE:
            shutil.rmtree(self._cache)


def _used(number: int) -> tuple[float, bool]:
    """Processor time of a process and its children in seconds, and whether all of them sleep."""
    try:
        process = psutil.Process(number)
        family = [process, *process.children(recursive=True)]
        return sum(sum(each.cpu_times()[:2]) for each in family), all(
            each.status() in (psutil.STATUS_SLEEPING, psutil.STATUS_DISK_SLEEP) for each in family
        )
    except psutil.NoSuchProcess:
        return 0.0, False
