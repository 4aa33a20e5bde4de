"""The tool's side of the turns: contestants as child processes that play one round when they are told to.

Outcomes are paired by the turn: ``play`` lets contestants take turns, each turn beginning with another one.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from measuring import in_turn

from bench.jobs import Job

MEMORY_PAUSE = 0.05
"""Seconds between two looks at a contestant's memory in its last round, which isn't compared."""
PATIENCE = 600.0
"""Seconds that a round, a start or an end may take."""


class Failed(Exception):
    """A contestant that can't go on; the message is one line."""


@dataclass
class Outcome:
    """What was measured of a contestant: seconds of its compared rounds, of its start and of all its turns together.

    ``processor`` has the processor time of the compared rounds, summed over its processes, in seconds.
    ``first`` is from the start of its process to the end of its first round.  ``pss`` is the largest sum of the
    proportional set sizes of its processes, in bytes.  ``said`` is what it said at the end of each compared turn.
    """

    rounds: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    first: float = 0.0
    whole: float = 0.0
    pss: int = 0
    said: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Started:
    """How a contestant is started."""

    command: Sequence[str]
    environment: Mapping[str, str]


@dataclass
class Pairing:
    """Contestants that took turns: the outcome of each, or the reason why there is none."""

    outcomes: dict[str, Outcome] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    others: list[float] = field(default_factory=list)
    """Processor cores that other programs used in each turn."""


def _family(process: psutil.Process) -> list[psutil.Process]:
    """A process and all below it."""
    try:
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return []  # it has ended


def _thread_seconds(pid: int) -> float:
    """Processor time of a process's threads, of which the kernel counts nanoseconds; 0 if it has ended."""
    total = 0
    for file in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        try:
            total += int(file.read_text().split()[0])
        except OSError:
            pass  # the thread has just ended
    return total / 1e9


def pss_of(process: psutil.Process) -> int:
    """Sum of the proportional set sizes of a process and all below it, in bytes."""
    total = 0
    for each in _family(process):
        try:
            total += each.memory_full_info().pss
        except (psutil.Error, AttributeError):
            pass  # it has just ended
    return total


class Contestant:
    """A child process; ``start`` plays its first round, ``turn`` one more each, ``end`` lets it finish."""

    def __init__(self, started: Started, folder: Path, name: str):
        self.outcome = Outcome()
        self._complaints = folder / f"{name}.txt"
        self._began = time.perf_counter()
        with self._complaints.open("wb") as complaints:
            self._child = subprocess.Popen(
                started.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=complaints,
                env=dict(started.environment), cwd=folder,
            )  # fmt: skip
        self._process = psutil.Process(self._child.pid)
        self._seen = b""

    def start(self) -> dict[str, Any]:
        """Wait for the end of the first round; returns what the contestant says of it.  Raises Failed."""
        facts = self._answer()
        self.outcome.first = self.outcome.whole = time.perf_counter() - self._began
        self._look()
        return facts

    def turn(self, compared: bool = True, rounds: int = 1) -> float:
        """Let it play ``rounds`` without a pause; returns the seconds of one, their mean.

        What isn't compared is looked at for memory.  Raises Failed.
        """
        watch = None if compared else _Watch(self._process)
        used = self.processor_seconds()
        began = time.perf_counter()
        for _ in range(rounds):
            self._go()
        for _ in range(rounds):
            facts = self._answer()
        whole = time.perf_counter() - began
        seconds = whole / rounds
        self.outcome.whole += whole
        if compared:
            self.outcome.rounds.append(seconds)
            self.outcome.processor.append((self.processor_seconds() - used) / rounds)
            self.outcome.said.append(facts)
        if watch is not None:
            self.outcome.pss = max(self.outcome.pss, watch.end())
            self._look()
        return seconds

    def end(self) -> Outcome:
        """Let it write its results and end.  Raises Failed if it ends with an error."""
        began = time.perf_counter()
        self._go()
        try:
            status = self._child.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise Failed(f"it didn't end within {PATIENCE:g} s") from None
        self.outcome.whole += time.perf_counter() - began
        if status:
            raise Failed(self._complaint())
        return self.outcome

    def processor_seconds(self) -> float:
        """Processor time of the threads that its processes have now."""
        return sum(_thread_seconds(each.pid) for each in _family(self._process))

    def kill(self) -> None:
        """End its processes, each by its own number."""
        for each in reversed(_family(self._process)):
            try:
                each.kill()
            except psutil.Error:
                pass
        self._child.wait()
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:
                    pass

    def _look(self) -> None:
        self.outcome.pss = max(self.outcome.pss, pss_of(self._process))

    def _go(self) -> None:
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(b"\n")
            self._child.stdin.flush()
        except OSError:
            raise Failed(self._complaint()) from None

    def _answer(self) -> dict[str, Any]:
        assert self._child.stdout is not None
        pipe, until = self._child.stdout.fileno(), time.monotonic() + PATIENCE
        with selectors.DefaultSelector() as waiting:  # select alone takes no pipe beyond the thousandth open file
            waiting.register(pipe, selectors.EVENT_READ)
            while b"\n" not in self._seen:
                if not waiting.select(max(0.0, until - time.monotonic())):
                    raise Failed(f"no round ended within {PATIENCE:g} s")
                given = os.read(pipe, 4096)
                if not given:
                    self._child.wait()
                    raise Failed(self._complaint())
                self._seen += given
        line, _, self._seen = self._seen.partition(b"\n")
        try:
            facts: dict[str, Any] = json.loads(line)
        except ValueError:
            raise Failed(f"it answered {line[:80]!r}") from None
        return facts

    def _complaint(self) -> str:
        """The last line that it wrote to stderr."""
        lines = self._complaints.read_text(encoding="utf-8", errors="replace").split("\n")
        said = [line.strip() for line in lines if line.strip()]
        return said[-1][:200] if said else f"it ended with status {self._child.poll()} and no message"


class _Watch(threading.Thread):
    """Looks at the memory of a process and all below it until ``end``."""

    def __init__(self, process: psutil.Process):
        super().__init__(daemon=True)
        self._process, self._over, self._most = process, threading.Event(), 0
        self.start()

    def run(self) -> None:
        """Look now and then."""
        while not self._over.wait(MEMORY_PAUSE):
            self._most = max(self._most, pss_of(self._process))

    def end(self) -> int:
        """The largest sum seen, in bytes."""
        self._over.set()
        self.join()
        return self._most


@contextmanager
def _playing(pairing: Pairing, name: str, children: dict[str, Contestant]) -> Iterator[None]:
    """Take a contestant that fails out of the pairing, with its reason."""
    try:
        yield
    except Failed as failure:
        pairing.reasons[name] = str(failure)
        pairing.outcomes.pop(name, None)
        if name in children:
            children.pop(name).kill()


def play(job: Job, contestants: Mapping[str, Started], turns: int, row: int, folder: Path, unseen: int = 0) -> Pairing:
    """Let contestants take turns: a first round each, ``turns`` of ``row`` compared rounds, and a last round.

    ``unseen`` turns before the compared ones are played and not kept.
    """
    pairing, children = Pairing(), dict[str, Contestant]()
    try:
        for name, started in contestants.items():
            with _playing(pairing, name, children):
                children[name] = Contestant(started, folder, name)
                said = children[name].start()
                if (said["parameters"], said["clients"]) != (job.parameters, job.cohort):
                    raise Failed(f"it trained {said['clients']} clients with {said['parameters']} parameters")
        for turn in range(-unseen, turns):
            before, busy = psutil.cpu_times(), _own_seconds(children)
            for name in in_turn(list(children), turn):
                with _playing(pairing, name, children):
                    children[name].turn(compared=turn >= 0, rounds=row)
            if turn >= 0:
                pairing.others.append(_others(before, busy, children))
        for name in list(children):
            with _playing(pairing, name, children):
                children[name].turn(compared=False)
                pairing.outcomes[name] = children[name].end()
    finally:
        for child in children.values():
            child.kill()
    return pairing


def _own_seconds(children: dict[str, Contestant]) -> float:
    """Processor seconds of the contestants so far."""
    return sum(child.processor_seconds() for child in children.values())


def _others(before: Any, busy: float, children: dict[str, Contestant]) -> float:
    """Processor cores that programs other than the contestants used since ``before``."""
    now = psutil.cpu_times()
    idle = (now.idle - before.idle) + (now.iowait - before.iowait)
    whole = sum(now[:8]) - sum(before[:8])
    own = _own_seconds(children) - busy
    return max(0.0, (whole - idle - own) / whole * (psutil.cpu_count() or 1)) if whole else 0.0
