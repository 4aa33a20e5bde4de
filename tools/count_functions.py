"""Count the functions of edgefl that a rate, a price and a client's update pass through, by tracing a real command.

    python tools/count_functions.py [--only rate,price,update] [--out FILE]

Prints each function with its line and what held the value there, in the order in which they were first called, and the
counts.  It measures the edgefl that it imports, so it compares two checkouts.

**The learning rate**: a scenario of two clients and two rounds with the rate 0.0123456789 is run twice in this process,
and the second run, which finds its predictions in the cache, is traced from the command to the first optimizer of torch
that is made.  Two sets are counted:

- the *way*: functions that hand the rate on.  They return it, or they have it among their arguments and are running
  when the optimizer is made.
- all that it *reaches*: functions that have it among their arguments.  Most of them never look at it: who gets a work
  gets its rate.

The way begins behind the scenario: functions that get or return the rate within a whole scenario only are left out, and
so are the modules that read a scenario and write it into the run's folder (``BESIDE``).

**The price**: ``edgefl profile`` of the same scenario is run twice, and the second time is traced until it has printed.
The price is the seconds and the joules of the client's row: ``download_seconds``, ``compute_seconds``,
``upload_seconds``, ``virtual_seconds``, ``energy_joules``.  A function counts if one of these numbers is among its
arguments, or in what it returns.

**The update**: the same scenario with two worker processes is run twice, and the whole second run is traced.  Looked
for are objects of the class of a client's update, ``--carriers``; what holds one carries it too.  A function of the
main process counts if such an object is among its arguments or in what it returns.  Constructors don't count.  A
training's future isn't looked into, because it holds an update from a moment that no two runs share.

A value is *among* arguments, to the last bit, if an argument is it or holds it: as a value of a dictionary, an element
of a sequence, a set or an array of numbers, or a field of a dataclass or of a pydantic model, however deep.  Other
objects aren't looked into.  ``self`` is an argument as any other, but of other classes than these it isn't looked into
either, though they may be sequences: a method of a dataclass that holds the value counts.  Functions without a name
(lambdas, comprehensions) and functions that decorators of other packages make don't count.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from importlib import import_module
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel

import edgefl
from edgefl.console.app import main as command

RATE = 0.0123456789
PRICED = ("download_seconds", "compute_seconds", "upload_seconds", "virtual_seconds", "energy_joules")
WHOLE = ("Scenario", "Document")
"""Types of a whole scenario."""
BESIDE = (
    "yaml_lines", "scenario.", "runs.", "records.record", "records.reading", "cells.fingerprint",
    "results.recorded_rounds", "commands.explain", "commands.export", "commands.report",
)  # fmt: skip
"""Beginnings of the modules that read and write scenarios."""
CARRIERS = "edgefl.methods:Update"
COUNTED = ("rate", "price", "update")
CONSTRUCTORS = ("__new__", "__init__", "__post_init__")
DEEPEST = 40
"""Levels of holders; only a holder that holds itself has more."""
LEAVES = (str, bytes, int, float, type, range, np.ndarray, torch.Tensor)
"""What holds nothing that is looked for."""
PLAIN = (dict, list, tuple, set, frozenset, BaseModel)

SCENARIO = {
    "edgefl": 1,
    "name": "two-clients",
    "seed": 3,
    "data": {"source": "glyphs", "clients": {"image": 2}, "samples": 16, "validation": 20, "test": 20},
    "model": {"image": {"blocks": 1, "width": 16, "heads": 2}},
    "method": "fedavg",
    "schedule": {"name": "end-to-end", "rounds": 2},
    "training": {"batch": 8, "optimizer": "sgd", "lr": RATE},
    "round": {"cohort": 1.0},
    "executor": {"name": "inline", "device": "cpu"},
    "fleet": {"devices": {"raspberry-pi-4-4gb": 1.0}},
}


def _looked_into(name: str, value: Any) -> bool:
    return name != "self" or is_dataclass(value) or isinstance(value, PLAIN)


@dataclass
class Seen:
    """A function that a value entered or left, and what held it first: the types from the argument to the value.

    ``given`` and ``returned`` are these holders, empty if it wasn't; ``running`` says that it ran when the trace ended.
    """

    function: str
    line: int
    given: str = ""
    returned: str = ""
    running: bool = False

    @property
    def on_the_way(self) -> bool:
        """Whether it handed the value on."""
        return bool(self.returned) or (bool(self.given) and self.running)


def one_of(numbers: Collection[float]) -> Callable[[Any], bool]:
    """Whether a value is one of these numbers, or an array with one of them."""
    alone, array = frozenset(numbers), np.array(sorted(numbers))

    def is_sought(value: Any) -> bool:
        if isinstance(value, np.ndarray):
            return value.dtype.kind == "f" and bool(np.isin(value, array).any())
        return isinstance(value, float) and value in alone

    return is_sought


class Search:
    """Finds values in arguments; remembers what frozen dataclasses hold, because most of them are seen often."""

    def __init__(self, is_sought: Callable[[Any], bool]):
        self.is_sought = is_sought
        self._known: dict[int, tuple[Any, tuple[str, ...] | None]] = {}

    def held(self, value: Any, depth: int = 0) -> tuple[str, ...] | None:
        """Names of the types from ``value`` down to one that is looked for; None if it holds none."""
        kind = type(value)
        if self.is_sought(value):
            return (kind.__name__,)
        if value is None or depth > DEEPEST or isinstance(value, LEAVES):
            return None
        frozen = is_dataclass(value) and value.__dataclass_params__.frozen  # type: ignore[attr-defined]
        if frozen and id(value) in self._known:
            return self._known[id(value)][1]
        below = None
        for part in _parts(value):
            if (below := self.held(part, depth + 1)) is not None:
                below = (kind.__name__, *below)
                break
        if frozen:
            self._known[id(value)] = value, below  # the reference keeps its id from being given to another
        return below


def _parts(value: Any) -> Iterator[Any]:
    """What a mapping, a sequence, a dataclass or a pydantic model holds; nothing for other objects."""
    if isinstance(value, BaseModel):
        yield from value.__dict__.values()
    elif is_dataclass(value):
        yield from (getattr(value, field.name, None) for field in fields(value))
    elif isinstance(value, dict):
        yield from tuple(value.values())
    elif isinstance(value, Sequence | set | frozenset):
        yield from tuple(value)


class Tracer:
    """Notes the functions of edgefl that a value enters or leaves, in order, ``until`` this function is called.

    Holders of the types ``without`` don't count, and functions of modules whose names begin as one of ``beside``.
    """

    def __init__(
        self,
        is_sought: Callable[[Any], bool],
        until: CodeType | None = None,
        without: Collection[str] = (),
        beside: tuple[str, ...] = (),
    ):
        self.search, self.until, self.without, self.beside, self.over = Search(is_sought), until, without, beside, False
        self.root = str(Path(edgefl.__file__).parent) + os.sep
        self._seen: dict[CodeType, Seen] = {}

    @property
    def seen(self) -> list[Seen]:
        """The functions that had the value, in order."""
        return [each for each in self._seen.values() if each.given or each.returned]

    def __call__(self, frame: FrameType, event: str, result: Any) -> None:
        """What ``sys.setprofile`` calls."""
        code = frame.f_code
        if code is self.until and not self.over:
            self.over = True
            self._note_running(frame)
        if self.over or code.co_name.startswith("<") or not code.co_filename.startswith(self.root):
            return
        seen = self._seen.get(code)
        if seen is None:
            module = code.co_filename.removeprefix(self.root).removesuffix(".py").replace(os.sep, ".")
            if module.startswith(self.beside):
                return
            seen = self._seen[code] = Seen(f"edgefl.{module}:{code.co_qualname}", code.co_firstlineno)
        if event == "call" and not seen.given:
            more = bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)  # *args and **kwargs
            given = frame.f_locals
            names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + more]
            seen.given = self._held(
                [given[name] for name in names if name in given and _looked_into(name, given[name])]
            )
        elif event == "return" and not seen.returned:
            seen.returned = self._held([result])

    def _held(self, values: list[Any]) -> str:
        """What holds a value that is looked for, in words; empty if nothing does."""
        for value in values:
            held = self.search.held(value)
            if held is not None and not set(held) & set(self.without):
                return " > ".join(held)
        return ""

    def _note_running(self, frame: FrameType | None) -> None:
        while frame is not None:
            if frame.f_code in self._seen:
                self._seen[frame.f_code].running = True
            frame = frame.f_back

    @contextlib.contextmanager
    def tracing(self) -> Iterator[None]:
        """Trace all threads."""
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)


def rate(folder: Path, scenario: Path) -> list[Seen]:
    """The functions that a learning rate enters or leaves before the optimizer is made."""
    quietly(lambda: command(["run", str(scenario), "--out", str(folder / "first")]))
    tracer = Tracer(one_of((RATE,)), torch.optim.SGD.__init__.__code__, WHOLE, BESIDE)
    with tracer.tracing():
        quietly(lambda: command(["run", str(scenario), "--out", str(folder / "second")]))
    return tracer.seen


def price(scenario: Path) -> list[Seen]:
    """The functions that the seconds and joules of a client enter or leave until the table is printed."""
    (row,) = edgefl.profile(str(scenario))["rows"]
    tracer = Tracer(one_of([float(row[name]) for name in PRICED]))
    with tracer.tracing():
        quietly(lambda: command(["profile", str(scenario)]))
    return tracer.seen


def update(folder: Path, scenario: Path, carriers: tuple[type, ...]) -> list[Seen]:
    """The functions of the main process that a client's update enters or leaves in a run with two workers."""
    document = {**SCENARIO, "executor": {"name": "processes", "workers": 2, "device": "cpu"}}
    scenario.write_text(json.dumps(document), encoding="utf-8")
    quietly(lambda: command(["run", str(scenario), "--out", str(folder / "third")]))
    tracer = Tracer(lambda value: isinstance(value, carriers))
    with tracer.tracing():
        quietly(lambda: command(["run", str(scenario), "--out", str(folder / "fourth")]))
    return [each for each in tracer.seen if each.function.rpartition(".")[2] not in CONSTRUCTORS]


def class_named(name: str) -> type:
    """The class of ``module:name``."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)


def quietly(run: Callable[[], object]) -> None:
    """Run a command without its output."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            run()
        except SystemExit as end:
            if end.code:
                raise


def shown(title: str, functions: list[Seen]) -> None:
    """Print a list."""
    print(f"{title}: {len(functions)}")
    for number, each in enumerate(functions, start=1):
        held = [f"given {each.given}"] * bool(each.given) + [f"returned {each.returned}"] * bool(each.returned)
        print(f"{number:4}  {each.function} ({each.line})  {', '.join(held)}")
    print()


def main() -> None:
    """Print the lists and counts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default=",".join(COUNTED), help="what is counted, with commas; default: %(default)s")
    parser.add_argument(
        "--carriers", default=CARRIERS, metavar="MODULE:CLASS",
        help="the class of a client's update, or several with commas where it has one after another; "
        "default: %(default)s",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, help="a file for the lists")
    options = parser.parse_args()
    only = options.only.split(",")
    if unknown := set(only) - set(COUNTED):
        parser.error(f"--only: unknown {', '.join(sorted(unknown))}; allowed: {', '.join(COUNTED)}")
    found: dict[str, list[Seen]] = {}
    with tempfile.TemporaryDirectory() as name:
        os.environ["EDGEFL_CACHE"] = str(Path(name) / "cache")
        scenario = Path(name) / "scenario.yaml"
        scenario.write_text(json.dumps(SCENARIO), encoding="utf-8")
        if "rate" in only:
            seen = rate(Path(name), scenario)
            found["a learning rate reaches"] = [each for each in seen if each.given]
            found["the way of a learning rate"] = [each for each in seen if each.on_the_way]
        if "price" in only:
            found["a price"] = price(scenario)
        if "update" in only:
            carriers = tuple(map(class_named, options.carriers.split(",")))
            found["a client's update"] = update(Path(name), scenario, carriers)
    for title, functions in found.items():
        shown(title, functions)
    if options.out:
        lists = {title: [each.__dict__ for each in functions] for title, functions in found.items()}
        options.out.write_text(json.dumps(lists, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
