"""Tasks (one work for one client or the server, with its input tensors), their reports, and ``Node``, which runs them.

Tasks and reports can be encoded as bytes and sent to other processes.
"""

from __future__ import annotations

import gc
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from typing import Any, Protocol, cast

import psutil
import safetensors.torch
import torch
from torch import Tensor, nn

from edgefl import models, registry, seeds
from edgefl.errors import EdgeflError, OutOfHostMemory, TrainingError
from edgefl.runs.kept import Stored
from edgefl.training.attack import Attack
from edgefl.work import CUDA_ROUNDING, AllocatorPeak, Meter, Pass, Result, Source, Trace, Work, digest, run
from edgefl.work.metering.allocator import profiling
from edgefl.work.packed import Buffers, placed, space, split
from edgefl.work.stacking import CantStack, Stacked, told_alone
from edgefl.work.torch_device import ran_out, seeded, threads, warm

MOST_MODELS = 256
"""Descriptions of models whose digests are kept."""


class Kept(Protocol):
    """What a client kept for itself, on disk: tensors by item name."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the items."""
        ...

    def tensors(self) -> Mapping[str, Tensor]:
        """The tensors, read now.  Raises RunError if they can't be read."""
        ...


@dataclass(frozen=True)
class Task:
    """A work with its input tensors.

    ``client`` is None for the server.  ``inputs`` maps item names (or names that a payload's codec makes) to tensors.
    With ``kept``, what the client kept for itself, they hold the complete model of the stage.
    ``seed`` is specific to this client and round.  ``attack`` is what an attacker does, None for an honest client.
    ``others`` are tasks of other clients with this work and these inputs that are trained at once with it, on
    ``places`` places.  ``peak`` are the predicted bytes at its peak, None if it isn't known; they aren't sent.
    """

    work: Work
    inputs: Mapping[str, Tensor]
    client: int | None
    seed: int
    metered: bool = False
    attack: Attack | None = None
    kept: Kept | None = None
    others: tuple[Task, ...] = ()
    places: int = 0
    peak: int | None = None

    def tensors(self) -> Mapping[str, Tensor]:
        """The inputs with what the client kept.  Raises RunError if its file can't be read."""
        return {**self.inputs, **self.kept.tensors()} if self.kept else self.inputs

    def encode(self) -> tuple[str, bytes]:
        """The task as JSON text and safetensors bytes, to be sent to another process."""
        head = {"work": self.work.encode(), **self.facts()}
        return json.dumps(head), _packed(self.inputs if isinstance(self.kept, Stored) else self.tensors())

    @classmethod
    def decode(cls, head: str, body: bytes) -> Task:
        """Restore a task from the output of ``encode``."""
        raw = json.loads(head)
        return cls.of(Work.decode(raw["work"]), _unpacked(body), raw)

    def facts(self) -> dict[str, Any]:
        """All but the work and the inputs, as plain data."""
        return {
            "client": self.client,
            "seed": self.seed,
            "metered": self.metered,
            "attack": self.attack and asdict(self.attack),
            "kept": self.kept.to_json() if isinstance(self.kept, Stored) else None,
            "others": [task.facts() for task in self.others],
            "places": self.places,
        }

    @classmethod
    def of(cls, work: Work, inputs: Mapping[str, Tensor], facts: Mapping[str, Any]) -> Task:
        """The task with these ``facts``."""
        attack = facts["attack"] and Attack(**facts["attack"])
        kept = facts["kept"] and Stored.from_json(facts["kept"])
        others = tuple(cls.of(work, inputs, each) for each in facts["others"])
        return cls(
            work, inputs, facts["client"], facts["seed"], facts["metered"], attack, kept, others, facts["places"]
        )


@dataclass(frozen=True)
class Measured:
    """Measured cost of the metered steps, which a prediction covers too.

    ``peak_memory_bytes`` is the allocator's peak; None if it couldn't be had, because another profiler of torch is
    running in the process.  ``trace`` has the FLOPs, and the live storage by part.
    """

    peak_memory_bytes: int | None
    trace: Trace


@dataclass(frozen=True)
class Report:
    """The outcome of a task: its result, the measurement if the task was metered, and figures of the host.

    ``seed`` is the task's, by which a report is known to answer it.  ``host`` has wall time, memory and process id,
    which differ between equal runs.  ``others`` are the reports of the task's ``others``.
    """

    result: Result
    measured: Measured | None = None
    seed: int | None = None
    host: Mapping[str, Any] = field(default_factory=dict)
    others: tuple[Report, ...] = ()

    def encode(self) -> tuple[str, bytes]:
        """The report as JSON text and safetensors bytes, to be sent to another process."""
        return json.dumps(self.facts()), _packed(self.tensors())

    def tensors(self) -> dict[str, Tensor]:
        """What is sent and kept, by names that ``of`` knows."""
        r = self.result
        tensors = {f"{i}/{n}": t for i, named in enumerate(r.payloads.values()) for n, t in named.items()}
        tensors |= {f"kept/{n}": t for n, t in r.kept.items()}
        for i, other in enumerate(self.others):
            tensors |= {f"others/{i}/{n}": t for n, t in other.tensors().items()}
        return tensors

    def facts(self) -> dict[str, Any]:
        """All but the tensors, as plain data."""
        r = self.result
        return {
            "payloads": list(r.payloads),
            "metrics": r.metrics,
            "loss": r.loss,
            "updates": r.updates,
            "seed": self.seed,
            "measured": self.measured and [self.measured.peak_memory_bytes, self.measured.trace.to_json()],
            "host": self.host,
            "others": [other.facts() for other in self.others],
        }

    @classmethod
    def decode(cls, head: str, body: bytes) -> Report:
        """Restore a report from the output of ``encode``."""
        return cls.of(json.loads(head), _unpacked(body))

    @classmethod
    def of(cls, raw: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Report:
        """The report with these facts and tensors."""
        payloads: dict[str, dict[str, Tensor]] = {name: {} for name in raw["payloads"]}
        kept = {}
        theirs: list[dict[str, Tensor]] = [{} for _ in raw["others"]]
        for key, tensor in tensors.items():
            side, rest = key.split("/", 1)
            if side == "others":
                index, name = rest.split("/", 1)
                theirs[int(index)][name] = tensor
            elif side == "kept":
                kept[rest] = tensor
            else:
                payloads[raw["payloads"][int(side)]][rest] = tensor
        others = tuple(cls.of(each, own) for each, own in zip(raw["others"], theirs, strict=True))
        return cls._of(raw, payloads, kept, others)

    @classmethod
    def in_buffer(cls, raw: Mapping[str, Any], work: Work, buffer: Tensor) -> Report:
        """The report with these facts, of a task whose ``work`` put its payloads into ``buffer``."""
        return cls._of(raw, {p.name: placed(p).packed(part) for p, part in split(buffer, work.up)}, {})

    @classmethod
    def _of(
        cls,
        raw: Mapping[str, Any],
        payloads: Mapping[str, Mapping[str, Tensor]],
        kept: Mapping[str, Tensor],
        others: tuple[Report, ...] = (),
    ) -> Report:
        measured = raw["measured"] and Measured(raw["measured"][0], Trace.from_json(raw["measured"][1]))
        result = Result(payloads, raw["metrics"], kept, raw["loss"], updates=raw["updates"])
        return cls(result, measured, raw["seed"], raw["host"], others)


def _packed(tensors: Mapping[str, Tensor]) -> bytes:
    # safetensors refuses tensors that share storage: clone all but the first
    seen: set[int] = set()
    separate = {}
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage()._cdata
        separate[name] = tensor.clone(memory_format=torch.contiguous_format) if storage in seen else tensor.contiguous()
        seen.add(storage)
    return safetensors.torch.save(separate)


def _unpacked(body: bytes) -> dict[str, Tensor]:
    # the tensors may share read-only buffers with ``body``; works copy tensors before they change them
    return dict(safetensors.torch.load(body))


class Sources(Protocol):
    """The data of all nodes; ``edgefl.data.Federation`` implements this protocol."""

    def client(self, index: int) -> Source:
        """The private data of the client with this index."""
        ...

    def server(self) -> Source:
        """The server's data: the splits validation, test and public."""
        ...


def free_memory() -> None:
    """Free what this process can free: unreachable objects, and what torch keeps of the GPU's memory."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


class Node:
    """Runs tasks sequentially on one device.  Modules are reused between tasks with the same model description.

    With ``one_module`` only the last one is kept, so that a task finds the memory that was predicted for it.
    """

    def __init__(self, sources: Sources, device: torch.device, *, one_module: bool = False):
        self.sources, self.device, self._one_module = sources, device, one_module
        self._modules: dict[str, tuple[nn.Module, frozenset[str]]] = {}
        self._keys: dict[int, tuple[Mapping[str, Any], str]] = {}
        self._stacked = Stacked(device)
        self._buffers = Buffers()
        warm(device)

    def _module(self, task: Task, inputs: Mapping[str, Tensor]) -> nn.Module:
        key = self._key(task.work.model)
        module, names = self._modules.get(key, (None, frozenset()))
        # a reused module must not keep parameters or buffers of another client that the inputs don't replace
        if module is None or names - inputs.keys():
            if self._one_module:
                self._modules.clear()
                module = None
            with seeded(seeds.key(task.seed, "module"), self.device):
                module = models.build(task.work.model).to(self.device)
            self._modules[key] = module, frozenset(module.state_dict())
        return module

    def _key(self, model: Mapping[str, Any]) -> str:
        """The digest of a model's description, which many tasks share."""
        if id(model) not in self._keys:
            if len(self._keys) >= MOST_MODELS:
                self._keys.clear()
            self._keys[id(model)] = model, digest(model)
        return self._keys[id(model)][1]

    def run(self, task: Task, buffer: Tensor | None = None) -> Report:
        """Run a task.  Its payloads are put into ``buffer``, if that is given; see ``edgefl.work.run``.

        Raises TrainingError, which names the client or the server, if the work fails, OutOfHostMemory if the memory of
        this machine doesn't suffice.
        """
        if task.others:
            return self._together(task)
        started = time.perf_counter()
        source = self.sources.server() if task.client is None else self.sources.client(task.client)
        with self._failing(task), threads(1):
            inputs = task.work.received(task.tensors())
            module = self._module(task, inputs)
            meter = Meter(CUDA_ROUNDING if self.device.type == "cuda" else 1) if task.metered else None
            watch = self._watch(task.work, module, inputs) if meter else None
            sent = None
            if task.attack is not None:
                source, sent = task.attack.source(source), task.attack.sent
            data = cast(Source, _Lapped(source, watch)) if watch else source
            if buffer is None and task.attack is None and (size := space(task.work.up)) is not None:
                buffer = self._buffers.take(size)
            result = run(
                task.work, inputs, data, module=module, device=self.device,
                seed=task.seed, meter=meter, sent=sent, watch=watch, buffer=buffer,
            )  # fmt: skip
            measured = Measured(watch.bytes if watch else None, result.trace) if result.trace is not None else None
        return Report(result, measured, task.seed, _host(started))

    def _together(self, task: Task) -> Report:
        """Run a task and its ``others`` at once; one by one if their work can't be stacked, which is told once."""
        started, tasks = time.perf_counter(), (replace(task, others=(), places=0), *task.others)
        try:
            with self._failing(task), threads(1):
                inputs = task.work.received(task.inputs)
                sources = [self.sources.server() if t.client is None else self.sources.client(t.client) for t in tasks]
                results = self._stacked.run(
                    task.work, inputs, sources, [t.seed for t in tasks], self._module(task, inputs), task.places
                )
        except CantStack as error:
            told_alone(task.work.kind, str(error))
            reports = [self.run(each) for each in tasks]
            return replace(reports[0], others=tuple(reports[1:]))
        host = _host(started, len(tasks))
        reports = [Report(result, None, t.seed, host) for result, t in zip(results, tasks, strict=True)]
        return replace(reports[0], others=tuple(reports[1:]))

    @contextmanager
    def _failing(self, task: Task) -> Iterator[None]:
        """Name the client or the server in the error of a task that fails."""
        try:
            yield
        except CantStack:
            raise
        except (Exception, SystemExit) as error:
            self._modules.clear()  # a failed work may leave its module in an undefined state
            if isinstance(error, EdgeflError):
                raise
            raise _failure(task, error) from error

    def _watch(self, work: Work, module: nn.Module, inputs: Mapping[str, Tensor]) -> AllocatorPeak | None:
        """The watch on the allocator for a work; None while another profiler is running."""
        if self.device.type == "cpu" and profiling():
            return None
        # on a CPU tables are used as they were received; on a GPU they are copied
        tables = {item.name for payload in work.down for item in payload.items if item.beside}
        received = [inputs[name] for name in tables & inputs.keys()] if self.device.type == "cpu" else []
        return AllocatorPeak(self.device, [*module.parameters(), *module.buffers(), *received])


class _Lapped:
    """A source that calls ``lap`` of a watch every ``every`` batches, between two steps.

    Fields of a batch that NumPy allocated are copied, because torch's allocator doesn't know of them.
    """

    def __init__(self, source: Source, watch: AllocatorPeak, every: int = 64):
        self._source, self._watch, self._every = source, watch, every
        self._batches = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def batches(self, pass_: Pass, seed: int) -> Iterator[tuple[str, dict[str, Tensor]]]:
        """The batches of the source, with fields that torch's allocator made."""
        for pattern, batch in self._source.batches(pass_, seed):
            self._batches += 1
            if self._batches % self._every == 0:
                self._watch.lap()
            owned = {n: v if v.untyped_storage().resizable() else v.clone() for n, v in batch.items()}
            del batch
            yield pattern, owned
            del owned


def _host(started: float, tasks: int = 1) -> dict[str, Any]:
    """Figures of the host for each of the ``tasks`` that began at ``started``."""
    rss = _process(os.getpid()).memory_info().rss
    return {"wall_seconds": (time.perf_counter() - started) / tasks, "rss_bytes": rss, "process": os.getpid()}


@cache
def _process(pid: int) -> psutil.Process:
    return psutil.Process(pid)


def _failure(task: Task, error: BaseException) -> EdgeflError:
    """The error of a task whose work failed."""
    clients = [t.client for t in (task, *task.others)]
    node = "the server" if clients == [None] else f"client {clients[0]}"
    if len(clients) > 1:
        node = f"clients {', '.join(map(str, clients))}"
    if ran_out(error):
        return OutOfHostMemory(
            f"the memory of this machine doesn't suffice for the work of kind {task.work.kind!r} of {node}"
        )
    return TrainingError(f"the work of kind {task.work.kind!r} failed on {node}: {_said(error)}")


def _said(error: BaseException) -> str:
    """What failed in a work, in one line, with the plug-in if its code was running."""
    fault = registry.plug_ins().fault(error)
    return str(fault) if fault else repr(error)
