"""Cells on the nodes of a Ray cluster: each job is an actor, and its messages are what a generator of Ray's yields."""

from __future__ import annotations

import os
import sys
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch

from edgefl import registry
from edgefl.cells.cells import Nodes
from edgefl.cells.fingerprint import texts_of
from edgefl.cells.workers import Cell, Work, WorkerEnded, serve_cell, tell_warnings
from edgefl.data import DataOptions, data_fingerprint
from edgefl.errors import EdgeflError, RunError, TrainingError, text_of
from edgefl.machine.kernel_scratch import kernels
from edgefl.runs.durable import wait_until_free, writing
from edgefl.runs.progress import OnProgress, messages
from edgefl.scenario import Scenario
from edgefl.training.on_ray.cluster import (
    START_SECONDS,
    Greeting,
    check_reachable,
    check_versions,
    connect,
    disconnect,
    greeting,
    greetings,
    import_ray,
)

OPTION = "--address"
FREE_SECONDS = {True: 120.0, False: 10.0}
"""Seconds that a cell waits for the end of a process that writes its run, by whether a lost job had begun it.

Else it may be a job of a command that was killed a moment ago.  A choice, not measured: with less, a cell fails
because the process that wrote its run hasn't ended yet.
"""
DECIDE_DATA = {"source", "folders", "columns", "size", "vocabulary"}
"""Fields of the section ``data`` that name what is read."""
LONGEST_PATH = 4096
"""Linux's ``PATH_MAX``: a longer text of a scenario is no path, and isn't looked up."""


def check_address(jobs: int, address: str) -> None:
    """Raise RunError unless cells can run side by side at this address, as far as can be told without a connection."""
    if jobs < 2:
        raise RunError(f"{OPTION} is where cells run side by side: say how many at a time with --jobs N, 2 or more")
    if not isinstance(address, str) or address.startswith("ray://"):
        raise RunError(f"{OPTION} {address!r:.60}: run edgefl on a node of the Ray cluster, with HOST:PORT or auto")
    with _refusing():
        import_ray(OPTION)
        check_reachable(address, OPTION)


@dataclass(frozen=True)
class _Share:
    """What a job takes of a node."""

    cpus: int
    gpus: int

    @classmethod
    def from_nodes(cls, nodes: Nodes) -> _Share:
        """What the most demanding scenario needs.  Raises RunError for one that asks for workers on Ray itself."""
        cpus, gpus = 1, 0
        for scenario in nodes.scenarios:
            options, trains = scenario.executor, nodes.trains and scenario.training.mode == "real"
            if options.name == "ray" and trains:
                raise RunError(
                    f"{OPTION} runs each cell in one job, and {scenario.name} asks for workers on Ray itself: add "
                    "--set executor.name=inline, or leave out --address and --jobs"
                )
            if options.name == "processes" and trains:
                cpus = max(cpus, options.workers)
            if options.device_type == "cuda" or (options.device_type == "auto" and torch.cuda.is_available()):
                gpus = max(gpus, len(options.devices))
        return cls(cpus, gpus)

    def places(self, node: Mapping[str, Any]) -> int:
        """How many jobs a node of the cluster has room for."""
        has = node["Resources"]
        places = has.get("CPU", 0.0) // self.cpus
        return int(min(places, has.get("GPU", 0.0) // self.gpus) if self.gpus else places)

    def __str__(self) -> str:
        gpus = f" and {self.gpus} GPU{'s' if self.gpus > 1 else ''}" if self.gpus else ""
        return f"{self.cpus} processor{'s' if self.cpus > 1 else ''}{gpus}"


# --- on a node -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NodeRequirements:
    """What cells need of a node, as plain data.

    The folder that relative paths start from, edgefl's environment variables, plug-ins, files of the command in the
    folders that cells write to, files that scenarios name with their sizes, and data sections as JSON with what the
    data are made of.
    """

    folder: str
    variables: dict[str, str]
    registered: registry.ForWorkers
    marks: list[str] = field(default_factory=list)
    files: dict[str, int] = field(default_factory=dict)
    data: list[tuple[str, list[Any]]] = field(default_factory=list)

    def lacking(self) -> str:
        """Why cells can't run here, empty if they can; sets this process up for them."""
        os.environ.update(self.variables)
        try:
            os.chdir(self.folder)
        except OSError as error:
            return f"has no {self.folder}, the folder that edgefl was started in ({error.strerror})"
        for mark in self.marks:
            if not Path(mark).is_file():
                return f"doesn't see {Path(mark).parent}: put it on a file system that all nodes share"
        for name, size in self.files.items():
            path = Path(name).expanduser()
            if not path.exists():
                return f"lacks {name}, which a scenario names"
            if size >= 0 and path.stat().st_size != size:
                return f"has another {name}, of {path.stat().st_size} bytes instead of {size}"
        try:
            registry.adopt(self.registered)
            for options, ours in self.data:
                theirs = _without_folders(data_fingerprint(DataOptions.model_validate_json(options)))
                if theirs != ours:
                    return f"would make data of {theirs}, and this one of {ours}: install the same packages"
        except BaseException as error:  # a plug-in may raise anything
            return f"can't open the data or load plug-ins: {text_of(error) or type(error).__name__}"
        return ""


class Actor:
    """A Ray actor that runs cells one after the other, each in the same thread, so that messages can be read."""

    def __init__(self, path: list[str]):
        sys.path[:] = [*path, *(folder for folder in sys.path if folder not in path)]
        self._thread = ThreadPoolExecutor(1)
        self._messages: SimpleQueue[tuple[Any, ...]] = SimpleQueue()

    def hello(self, wanted: tuple[Any, ...]) -> Greeting:
        """Where this is, the versions there, its processor's instruction sets, and why cells can't run here, if so."""
        hello = greeting("")
        try:
            return hello | {"why_not": NodeRequirements(*wanted).lacking(), "kernels": kernels("cpu")}
        except Exception as error:  # of another edgefl, whose version tells
            return hello | {"why_not": f"fails: {error!r}", "kernels": ""}

    def run(self, work: Work, cell: Cell, again: bool) -> Iterator[tuple[Any, ...]]:
        """Run a cell and yield its messages; the last is its outcome."""
        if cell.folder is not None:
            wait_until_free(cell.folder, FREE_SECONDS[again])
        tell_warnings(self._messages.put)
        self._thread.submit(self._run, work, cell)
        while True:
            message = self._messages.get()
            yield message
            if message[0] == "outcome":
                return

    def _run(self, work: Work, cell: Cell) -> None:
        try:
            self._messages.put(("outcome", serve_cell(work, cell, self._messages.put)))
        except BaseException:  # what ends a worker process: here it would only end the thread
            os._exit(1)


# --- in the command --------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Job:
    """An actor, what it says first, and the messages of its cell."""

    ray: Any
    work: Work
    actor: Any
    hello: Any
    host: str = ""
    index: int | None = None
    begun: bool = False
    messages: Any = None

    def give(self, cell: Cell, *, again: bool) -> None:
        self.messages = self.actor.run.options(num_returns="streaming").remote(self.work, cell, again)

    def take(self) -> tuple[Any, ...]:
        try:
            if not self.begun:
                hello = self.ray.get(self.hello)
                check_versions(hello)
                _check_node(hello)
                self.host, self.begun = hello["host"], True
                return ("begun",)
            message: tuple[Any, ...] = self.ray.get(next(self.messages))
        except Exception as error:
            self.end()
            cause = getattr(error, "cause", None) or error
            said = str(cause).strip().splitlines() or [repr(cause)]
            raise WorkerEnded(f"its job on node {self.host} was lost ({said[0]})" if self.begun else said[0]) from error
        if message[0] == "outcome":
            self.messages = None
        return message

    def end(self) -> None:
        """End the actor at once."""
        with suppress(Exception):  # its process has ended, or Ray has
            self.ray.kill(self.actor)


class Actors:
    """Jobs on the nodes of a Ray cluster, an actor for each."""

    def __init__(self, work: Work, nodes: Nodes, on_progress: OnProgress):
        self._work, self._nodes, self._on_message = work, nodes, messages(on_progress)
        self._jobs: list[_Job] = []
        self._marks: list[Path] = []
        self._made: list[Path] = []
        self._ours = False

    def first(self, number: int) -> list[_Job]:
        """That many jobs, after it was checked that cells can run on their nodes.  Raises RunError if not."""
        self._share = _Share.from_nodes(self._nodes)
        with _refusing():
            self._ray = import_ray(OPTION)
            if not self._ray.is_initialized():
                connect(self._ray, self._nodes.address)
                self._ours = True
            room = sum(self._share.places(node) for node in self._ray.nodes() if node["Alive"])
            if room < number:
                raise RunError(
                    f"{number} jobs need {self._share} each, and the nodes of the Ray cluster have room for {room}"
                )
            self._on_message(f"starting {number} jobs on Ray")
            self._wanted = _node_requirements(self._nodes.scenarios)
            jobs = [self.start_worker() for _ in range(number)]
            ours = kernels("cpu")
            for job, hello in zip(jobs, greetings(self._ray, [job.hello for job in jobs]), strict=True):
                _check_node(hello)
                job.host, job.begun = hello["host"], True
                if hello["kernels"] != ours:
                    warnings.warn(
                        f"node {job.host} has another processor or torch build ({hello['kernels']}) than this one "
                        f"({ours}): results there may differ in their last digits",
                        RuntimeWarning,
                        stacklevel=2,
                    )
        self._unmark()
        return jobs

    def start_worker(self) -> _Job:
        """A job that hasn't begun; it begins when a node has room for it."""
        if not self._marks:
            self._mark()
        remote = self._ray.remote(num_cpus=self._share.cpus, num_gpus=self._share.gpus, max_restarts=0)(Actor)
        actor = remote.remote(sys.path)
        marks = [str(mark) for mark in self._marks]
        wanted = self._wanted
        told = (wanted.folder, wanted.variables, wanted.registered, marks, wanted.files, wanted.data)
        job = _Job(self._ray, self._work, actor, actor.hello.remote(told))
        self._jobs.append(job)
        return job

    def ready(self, workers: Sequence[_Job]) -> list[_Job]:
        """Those that have a message; waits for the first.  Raises RunError if none can begin for a long time."""
        if all(job.begun for job in workers):
            self._unmark()
        waited = [(job, job.messages if job.begun else job.hello) for job in workers]
        refs = [ref for _, ref in waited if ref is not None]
        busy = any(job.messages is not None for job in workers)
        found, _ = self._ray.wait(refs, num_returns=1, timeout=None if busy else START_SECONDS)
        if not found:
            error = RunError(
                f"no node of the Ray cluster has had room for a job in {START_SECONDS:g} s; what was done is kept: go "
                "on with edgefl run --resume, or with the same command of a sweep or an analysis"
            )
            error.exit_code = 1
            raise error
        return [job for job, ref in waited if any(ref is each for each in found)]

    def close(self, workers: Sequence[_Job]) -> None:
        """End all jobs; leave the cluster, unless the caller had connected to it."""
        for job in self._jobs:
            job.end()
        self._jobs.clear()
        self._unmark()
        if self._ours:
            self._ours = False
            disconnect(self._ray)

    def _mark(self) -> None:
        """Write a file to each folder, by which nodes see that it is the same one."""
        name = f".edgefl-{uuid.uuid4().hex}"
        for folder in dict.fromkeys(folder.absolute() for folder in self._nodes.folders):
            with writing(folder):
                self._made += [path for path in (folder, *folder.parents) if not path.exists()]
                folder.mkdir(parents=True, exist_ok=True)
                (folder / name).touch()
            self._marks.append(folder / name)

    def _unmark(self) -> None:
        for mark in self._marks:
            mark.unlink(missing_ok=True)
        self._marks.clear()
        for folder in self._made:  # the innermost first
            with suppress(OSError):  # cells write there
                folder.rmdir()
        self._made.clear()


def _node_requirements(scenarios: Sequence[Scenario]) -> NodeRequirements:
    variables = {name: value for name, value in os.environ.items() if name.startswith("EDGEFL_")}
    files: dict[str, int] = {}
    for text in {text for scenario in scenarios for text in texts_of(scenario.to_data())}:
        if ("/" in text or "." in text) and len(text) < LONGEST_PATH:
            with suppress(OSError, ValueError, RuntimeError):  # it is no path, or no home folder is known
                path = Path(text).expanduser()
                if path.exists():
                    files[text] = path.stat().st_size if path.is_file() else -1
    data = []
    sections = {s.data.model_dump_json(include=DECIDE_DATA): s.data for s in scenarios}
    for options in sections.values():
        with suppress(EdgeflError):  # the cell says so
            data.append((options.model_dump_json(), _without_folders(data_fingerprint(options))))
    return NodeRequirements(os.getcwd(), variables, registry.for_workers(), [], files, data)


def _without_folders(parts: Sequence[Any]) -> list[Any]:
    """What data are made of, without the times of files, which copies on other nodes may not have."""
    return [
        {name: value for name, value in part.items() if name != "folder"} if isinstance(part, Mapping) else None
        for part in parts
    ]


def _check_node(hello: Mapping[str, Any]) -> None:
    if hello["why_not"]:
        raise RunError(f"node {hello['host']} {hello['why_not']}")


@contextmanager
def _refusing() -> Iterator[None]:
    """Raise the refusals of a cluster as RunError: they are no fault of a cell's scenario."""
    try:
        yield
    except TrainingError as error:
        raise RunError(str(error)) from error
