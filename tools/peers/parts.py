"""Clocks around edgefl's public functions, which split the time of its main thread by part.

A part is a room of edgefl, or some functions of one (``ROOMS``).  Every public function and method there is wrapped;
its time counts for its part, less that of wrapped functions of other parts that it calls.  Steps are timed at torch's
own functions, and waiting at those of Python, so that a change of the engine's inside needs no change here.
"""

from __future__ import annotations

import importlib
import inspect
import json
import multiprocessing.connection
import os
import pkgutil
import selectors
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import torch
from pydantic import BaseModel
from torch import nn
from torch.nn import functional as F

TRAIN, BATCHES, COPY, METER, AGGREGATE = "train", "batches", "copy", "metering", "aggregate"
CHECKPOINT, RECORDS, CLOCK, WAIT = "checkpoint", "records", "clock and planning", "waiting for workers"
PARTS = (TRAIN, BATCHES, COPY, METER, AGGREGATE, CHECKPOINT, RECORDS, CLOCK, WAIT)
OUTSIDE = "outside"
"""Time that belongs to no round: the tool's own callback."""

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
    "edgefl.simulation.finite": AGGREGATE,
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
}
"""The part of a room, a module or a function; the longest prefix counts.  None: of whoever calls it."""
IN_WORKERS = ("edgefl.data", "edgefl.work", "edgefl.training", "edgefl.methods")
"""Rooms that are wrapped in worker processes; the others aren't used there."""
STEPPED = (BATCHES,)
"""Parts whose generators are timed while they make their next value; other generators aren't wrapped."""
FLUSH = 0.02
"""Seconds of work after which a worker process writes its times; it also does so before it waits."""


class Clock:
    """Seconds of the main thread by part, by the clock ``now``; time outside all parts isn't counted."""

    def __init__(self, file: Path | None = None, now: Callable[[], float] = time.perf_counter):
        self.seconds: Counter[str] = Counter()
        self._stack: list[str] = []
        self._now = now
        self._last = now()
        self._thread = threading.main_thread().ident
        self._file, self._written = file, 0.0

    def inside(self, part: str) -> bool:
        """Whether a call needs no clock: it is of the part that is running, or of another thread."""
        stack = self._stack
        return bool(stack and stack[-1] == part) or threading.get_ident() != self._thread

    def enter(self, part: str) -> None:
        """Begin a part; the one that was running is stopped until ``leave``."""
        if part == WAIT and not self._stack:
            self._write()
        now = self._now()
        if self._stack:
            self.seconds[self._stack[-1]] += now - self._last
        self._stack.append(part)
        self._last = now

    def leave(self) -> None:
        """End the part that is running."""
        now = self._now()
        self.seconds[self._stack.pop()] += now - self._last
        self._last = now
        if not self._stack and now - self._written > FLUSH:
            self._write()

    def _write(self) -> None:
        """Write the seconds to the file, if there is one; a reader never sees half of them."""
        if self._file is not None:
            part = self._file.with_suffix(".part")
            part.write_text(json.dumps(self.seconds), encoding="utf-8")
            os.replace(part, self._file)
            self._written = self._now()


def timed(function: Callable[..., Any], part: str, clock: Clock) -> Callable[..., Any]:
    """The function with its time counted for a part; a generator function's while its values are made."""
    if inspect.isgeneratorfunction(function):
        return _stepped(function, part, clock)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if clock.inside(part):
            return function(*args, **kwargs)
        clock.enter(part)
        try:
            return function(*args, **kwargs)
        finally:
            clock.leave()

    return call


_END = object()


def _next(values: Iterator[Any]) -> Any:
    """The next value, or ``_END``."""
    return next(values, _END)


def _stepped(function: Callable[..., Iterator[Any]], part: str, clock: Clock) -> Callable[..., Iterator[Any]]:
    advance = timed(_next, part, clock)

    @wraps(function)
    def each(*args: Any, **kwargs: Any) -> Iterator[Any]:
        values = function(*args, **kwargs)
        while (value := advance(values)) is not _END:
            yield value

    return each


def part_of(name: str) -> str | None:
    """The part of a module, or of ``module:Class.method``; None if it has none of its own."""
    while name:
        if name in ROOMS:
            return ROOMS[name]
        name = name[: max(name.rfind("."), name.rfind(":"), 0)]
    return None


def modules_of(rooms: tuple[str, ...]) -> Iterator[ModuleType]:
    """All modules of these rooms, imported; those that this version of edgefl lacks are left out."""
    for room in rooms:
        try:
            package = importlib.import_module(room)
        except ModuleNotFoundError:
            continue
        yield package
        for found in pkgutil.walk_packages(getattr(package, "__path__", ()), f"{room}."):
            yield importlib.import_module(found.name)


def wrap(rooms: tuple[str, ...], clock: Clock) -> dict[str, int]:
    """Wrap the public functions and methods of these rooms; returns how many of each part."""
    counts: Counter[str] = Counter()
    replaced: dict[int, Callable[..., Any]] = {}
    for module in list(modules_of(rooms)):
        for name, thing in list(vars(module).items()):
            if name.startswith("_") or getattr(thing, "__module__", None) != module.__name__:
                continue
            if isinstance(thing, FunctionType) and (part := _wrapped(f"{module.__name__}:{name}", thing)):
                replaced[id(thing)] = timed(thing, part, clock)
                counts[part] += 1
            elif isinstance(thing, type) and not issubclass(thing, BaseModel | BaseException):
                counts.update(_wrap_methods(module.__name__, thing, clock))
    for module in [m for n, m in sys.modules.items() if n.partition(".")[0] == "edgefl" and m is not None]:
        for name, thing in list(vars(module).items()):
            if isinstance(thing, FunctionType) and id(thing) in replaced:
                setattr(module, name, replaced[id(thing)])
    return dict(counts)


def _wrapped(name: str, function: FunctionType) -> str | None:
    """The part for which a function is wrapped; None if it isn't."""
    part = part_of(name)
    return None if inspect.isgeneratorfunction(function) and part not in STEPPED else part


def _wrap_methods(module: str, owner: type, clock: Clock) -> Iterator[str]:
    """Wrap the public methods that a class defines; yields the part of each."""
    for name, thing in list(vars(owner).items()):
        inner = thing.__func__ if isinstance(thing, staticmethod | classmethod) else thing
        if name.startswith("_") and name != "__call__" or not isinstance(inner, FunctionType):
            continue
        if part := _wrapped(f"{module}:{owner.__qualname__}.{name}", inner):
            outer = timed(inner, part, clock)
            setattr(owner, name, type(thing)(outer) if isinstance(thing, staticmethod | classmethod) else outer)
            yield part


def wrap_libraries(clock: Clock) -> None:
    """Wrap torch's forward and backward passes and optimizers, and Python's ways to wait."""
    for owner, names in (
        (nn.Module, ("__call__",)),
        (torch.autograd, ("backward", "grad")),
        (torch.optim.Optimizer, ("zero_grad",)),
        *((kind, ("step",)) for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)),
        (F, ("cross_entropy",)),
    ):
        for name in names:
            setattr(owner, name, timed(getattr(owner, name), TRAIN, clock))
    for owner, names in (
        (threading.Condition, ("wait",)),
        (multiprocessing.connection, ("wait",)),
        (multiprocessing.connection.Connection, ("recv", "recv_bytes", "recv_bytes_into", "poll")),
        (selectors.DefaultSelector, ("select",)),
    ):
        for name in names:
            setattr(owner, name, timed(getattr(owner, name), WAIT, clock))


CLOCK_OF: Clock | None = None
"""The clock of this process; None before ``start``."""


def start(folder: str) -> None:
    """Start the clocks of this process; a worker process writes its times to ``folder``."""
    global CLOCK_OF
    if CLOCK_OF is not None:
        return
    # a spawned process imports its main module before it knows its parent
    worker = multiprocessing.current_process().name != "MainProcess"
    CLOCK_OF = Clock(Path(folder) / f"{os.getpid()}.json" if worker else None)
    rooms = IN_WORKERS if worker else tuple({".".join(name.split(":")[0].split(".")[:2]) for name in ROOMS})
    wrap(rooms, CLOCK_OF)
    wrap_libraries(CLOCK_OF)


@contextmanager
def outside() -> Iterator[None]:
    """A span of time that counts for no part, if the clocks run."""
    if CLOCK_OF is None:
        yield
        return
    CLOCK_OF.enter(OUTSIDE)
    try:
        yield
    finally:
        CLOCK_OF.leave()


class Reading:
    """Times since the reading before, of this process and of its workers together."""

    def __init__(self, folder: str):
        self._folder = Path(folder)
        self._own: Counter[str] = Counter()
        self._workers: Counter[str] = Counter()

    def next(self) -> dict[str, dict[str, float]]:
        """``{"own": {part: seconds}, "workers": {part: seconds}}`` since the last call."""
        assert CLOCK_OF is not None
        own = Counter(CLOCK_OF.seconds)
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
