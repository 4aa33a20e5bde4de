"""Where the main thread of edgefl's processes is, by part: a timer looks at its stack every two milliseconds.

A part is a room of edgefl, or some functions of one (``ROOMS``).  The time between two looks counts for the innermost
function that has a part.  Steps are seen at torch's own functions, and waiting at those of Python, so that a change of
the engine's inside needs no change here.

Each process writes its spans, in which it was in one part, by the clock that all processes of a machine share.
"""

from __future__ import annotations

import atexit
import json
import multiprocessing
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

TRAIN, BATCHES, COPY, METER, AGGREGATE = "train", "batches", "copy", "metering", "aggregate"
CHECKPOINT, RECORDS, CLOCK, WAIT = "checkpoint", "records", "clock and planning", "waiting for workers"
PARTS = (TRAIN, BATCHES, COPY, METER, AGGREGATE, CHECKPOINT, RECORDS, CLOCK, WAIT)
OUTSIDE = "outside"
"""Time that belongs to no round: the tool's own turns."""

ROOMS = {
    "edgefl.data": BATCHES,
    "edgefl.work": COPY,
    "edgefl.work.paired_batches": BATCHES,
    "edgefl.work.meter": METER,
    "edgefl.training": COPY,
    "edgefl.training.refusal": AGGREGATE,
    "edgefl.training.summed": AGGREGATE,
    "edgefl.work.sums": AGGREGATE,
    "edgefl.methods": AGGREGATE,
    "edgefl.methods.state": COPY,
    "edgefl.simulation": CLOCK,
    "edgefl.simulation.simulation": None,
    "edgefl.simulation.simulation:Simulation.checkpoint": CHECKPOINT,
    "edgefl.simulation.checkpoint": CHECKPOINT,
    "edgefl.simulation.learning.training:Training.aggregate": AGGREGATE,
    "edgefl.simulation.learning.training:FiniteCheck": AGGREGATE,
    "edgefl.simulation.records": RECORDS,
    "edgefl.planning": CLOCK,
    "edgefl.cost": CLOCK,
    "edgefl.devices": CLOCK,
    "edgefl.schedules": CLOCK,
    "edgefl.runs": RECORDS,
    "edgefl.runs.checkpoints": CHECKPOINT,
    "edgefl.runs.kept": CHECKPOINT,
    "edgefl.runs.best": CHECKPOINT,
    "edgefl.runs.durable": None,
    "edgefl.runs.digests": None,
    "edgefl.runs.directory:RunDirectory.checkpoint": CHECKPOINT,
    "torch.nn.modules.module:Module._call_impl": TRAIN,
    "torch.nn.functional:cross_entropy": TRAIN,
    "torch.autograd:backward": TRAIN,
    "torch.autograd:grad": TRAIN,
    "torch.optim.optimizer:Optimizer.zero_grad": TRAIN,
    "torch.optim.sgd:SGD.step": TRAIN,
    "torch.optim.adam:Adam.step": TRAIN,
    "torch.optim.adamw:AdamW.step": TRAIN,
    "threading:Condition.wait": WAIT,
    "multiprocessing.connection:wait": WAIT,
    "multiprocessing.connection:_ConnectionBase.recv": WAIT,
    "multiprocessing.connection:_ConnectionBase.recv_bytes": WAIT,
    "multiprocessing.connection:_ConnectionBase.recv_bytes_into": WAIT,
    "multiprocessing.connection:_ConnectionBase.poll": WAIT,
    "selectors": WAIT,
    "bench.jobs:Turns": OUTSIDE,
}
"""The part of a room, a module or a function; the longest prefix counts.  None: of whoever calls it."""
EVERY = 0.002
"""Seconds between two looks."""
FLUSH = 0.1
"""Seconds after which a worker process writes its times."""
ROUND = "round"
"""In the place of a part: a moment at which a round ended."""


def part_of(name: str) -> str | None:
    """The part of a module, or of ``module:Class.method``; None if it has none of its own."""
    while name:
        if name in ROOMS:
            return ROOMS[name]
        name = name[: max(name.rfind("."), name.rfind(":"), 0)]
    return None


class Span(NamedTuple):
    """A time in which a thread was in one part, in seconds of the clock; ``ROUND`` for the end of a round."""

    part: str
    begin: float
    end: float


class Watch:
    """Seconds of a thread by part, by the clock ``now``; a worker's are written to a ``file``.

    ``spans`` are those that ``write_spans`` hasn't written.
    """

    def __init__(self, file: Path | None = None, now: Callable[[], float] = time.perf_counter):
        self.seconds: Counter[str] = Counter()
        self.spans: list[Span] = []
        # by number, since codes of equal functions are equal; a kept code's number isn't given to another
        self._known: dict[int, tuple[CodeType, str | None]] = {}
        self._file, self._now = file, now
        self._last = self._written = now()

    def look(self, frame: FrameType | None) -> None:
        """Count the time since the last look for the innermost function of this stack that has a part."""
        part = None
        while frame is not None and part is None:
            code = frame.f_code
            if id(code) not in self._known:
                self._known[id(code)] = code, part_of(f"{frame.f_globals.get('__name__', '')}:{code.co_qualname}")
            part, frame = self._known[id(code)][1], frame.f_back
        now = self._now()
        if part is not None:
            self.seconds[part] += now - self._last
            before = self.spans[-1] if self.spans else None
            if before is not None and (before.part, before.end) == (part, self._last):
                self.spans[-1] = before._replace(end=now)
            else:
                self.spans.append(Span(part, self._last, now))
        self._last = now
        if self._file is not None and now - self._written > FLUSH:
            half = self._file.with_suffix(".part")  # a reader never sees half of it
            half.write_text(json.dumps(self.seconds), encoding="utf-8")
            os.replace(half, self._file)
            self.write_spans(self._file.with_suffix(SPANS))
            self._written = now

    def ended_round(self) -> None:
        """Note that a round has ended now."""
        self.spans.append(Span(ROUND, self._now(), self._now()))

    def write_spans(self, file: Path) -> None:
        """Write the spans since the last call to the end of a file, a line each."""
        with file.open("a", encoding="utf-8") as lines:
            lines.writelines(json.dumps(span) + "\n" for span in self.spans)
        self.spans = []


SPANS = ".spans"
"""The suffix of a process's file of spans, whose name is the number of the process; ``OWN`` is the run's."""
OWN = "own"


def read_spans(folder: Path) -> dict[str, list[Span]]:
    """The spans of each process that wrote some."""
    return {
        file.stem: [Span(*json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]
        for file in sorted(folder.glob(f"*{SPANS}"))
    }


WATCH: Watch | None = None
"""The watch of this process; None before ``start``."""


def start(folder: str) -> None:
    """Watch the main thread of this process, which calls this; a worker process writes its times to ``folder``."""
    global WATCH
    if WATCH is not None:
        return
    worker = multiprocessing.current_process().name != "MainProcess"
    WATCH = watch = Watch(Path(folder) / f"{os.getpid()}.json" if worker else None)

    def ring(_: int, frame: FrameType | None) -> None:
        watch.look(frame)
        signal.setitimer(signal.ITIMER_REAL, EVERY)  # only now: a slow look must not be looked at itself

    signal.signal(signal.SIGALRM, ring)
    atexit.register(signal.signal, signal.SIGALRM, signal.SIG_IGN)  # Python's end brings back what kills
    signal.setitimer(signal.ITIMER_REAL, EVERY)


class Reading:
    """Times since the reading before, of this process and of its workers together."""

    def __init__(self, folder: str):
        self._folder = Path(folder)
        self._own: Counter[str] = Counter()
        self._workers: Counter[str] = Counter()

    def next(self) -> dict[str, dict[str, float]]:
        """``{"own": {part: seconds}, "workers": {part: seconds}}`` since the last call."""
        assert WATCH is not None
        WATCH.ended_round()
        WATCH.write_spans(self._folder / f"{OWN}{SPANS}")
        own = Counter(WATCH.seconds)
        workers: Counter[str] = Counter()
        for file in self._folder.glob("*.json"):
            workers.update(json.loads(file.read_text(encoding="utf-8")))
        # a Counter's own difference drops what isn't above 0, and update adds
        difference = {
            "own": {part: own[part] - self._own[part] for part in PARTS if part in own},
            "workers": {part: workers[part] - self._workers[part] for part in PARTS if part in workers},
        }
        self._own, self._workers = own, workers
        return difference
