"""``Node`` runs assignments on one device, one after the other."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Protocol

import psutil
import torch
from torch import Tensor, nn

from edgefl import models, registry, seeds
from edgefl.errors import EdgeflError, OutOfHostMemory, TrainingError
from edgefl.training.assignment import Assignment
from edgefl.training.summed import Adder
from edgefl.work import (
    CUDA_ROUNDING,
    NO_METER,
    SERVER,
    AllocatorPeak,
    Description,
    Form,
    Meter,
    Pass,
    Source,
    Update,
    Work,
    digest,
    run,
)
from edgefl.work.halves import Exchanging, client_part, run_halves
from edgefl.work.meter.allocator_peak import is_profiling
from edgefl.work.packed import Buffers, buffer_bytes
from edgefl.work.torch_device import is_out_of_memory, threads, warm
from edgefl.work.update import HostFigures


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
    """Runs assignments sequentially on one device.  Modules are reused where the model's description is the same.

    With ``one_module`` only the last one is kept, so that an assignment finds the memory that was predicted for it.
    """

    def __init__(self, sources: Sources, device: torch.device, *, one_module: bool = False):
        self.sources, self.device, self._one_module = sources, device, one_module
        self._modules: dict[str, tuple[nn.Module, frozenset[str]]] = {}
        self._buffers = Buffers()
        self._adder = Adder(self._buffers.take)
        warm(device)

    def _module(self, form: Description, seed: int, inputs: Mapping[str, Tensor]) -> nn.Module:
        key = form.model_key if isinstance(form, Form) else digest(form.model)
        module, names = self._modules.get(key, (None, frozenset()))
        # a reused module must not keep parameters or buffers of another client that the inputs don't replace
        # (test_assignment.py shows what the next client would get)
        if module is None or names - inputs.keys():
            if self._one_module:
                self._modules.clear()
                module = None
            with seeds.seeding_globals(seeds.key(seed, "module"), self.device):
                module = models.build(form.model).to(self.device)
            self._modules[key] = module, frozenset(module.state_dict())
        return module

    def run_assignment(self, assignment: Assignment, buffer: Tensor | None = None) -> Update:
        """Run an assignment.  Its payloads are put into ``buffer``, if that is given; see ``edgefl.work.run``.

        Raises TrainingError, which names the client or the server, if the work fails, OutOfHostMemory if the memory of
        this machine doesn't suffice.
        """
        if assignment.sum is not None:
            return self._adder.run_and_add(assignment, self.run_assignment)
        started = time.perf_counter()
        source = self.sources.server() if assignment.client is None else self.sources.client(assignment.client)
        with self._failing(assignment), threads(1):  # with two, ten steps of a transformer layer give other bits
            work, inputs = assignment.work, assignment.form.starting_tensors(assignment.tensors())
            if buffer is None and assignment.attack is None and (size := buffer_bytes(work.up)) is not None:
                buffer = self._buffers.take(size)
            if work.split:
                update = self._run_split(assignment, inputs, source, buffer)
                client = SERVER if assignment.client is None else assignment.client
                return replace(update, client=client, seed=assignment.seed, host=_host(started))
            module = self._module(assignment.form, assignment.seed, inputs)
            meter = Meter(CUDA_ROUNDING if self.device.type == "cuda" else 1) if assignment.metered else NO_METER
            watch = self._watch(work, module, inputs) if assignment.metered else None
            sent = None
            if assignment.attack is not None:
                source, sent = assignment.attack.source(source), assignment.attack.attacked_upload
            data: Source = _Lapped(source, watch) if watch else source
            update = run(
                work, inputs, data, module=module, device=self.device,
                seed=assignment.seed, meter=meter, sent=sent, watch=watch, buffer=buffer,
            )  # fmt: skip
        client, peak = SERVER if assignment.client is None else assignment.client, watch.bytes if watch else None
        return replace(update, client=client, seed=assignment.seed, peak_memory_bytes=peak, host=_host(started))

    def _run_split(
        self, assignment: Assignment, inputs: Mapping[str, Tensor], source: Source, buffer: Tensor | None
    ) -> Update:
        """Run both halves of a work; the client's is measured by itself, with the answers that it got."""
        work, record = assignment.work, list[Exchanging]() if assignment.metered else None

        def module_of(half: Work) -> nn.Module:
            return self._module(half, assignment.seed, inputs)

        update = run_halves(
            work, inputs, source, module_of, device=self.device, seed=assignment.seed, buffer=buffer, record=record
        )
        if record is None:
            return update
        first, answers = client_part(work), iter(record)
        own = {item.name: inputs[item.name] for payload in first.down for item in payload.items}
        meter, module = Meter(CUDA_ROUNDING if self.device.type == "cuda" else 1), module_of(first)
        watch = self._watch(first, module, own)
        again = run(
            first, own, _Lapped(source, watch) if watch else source, module=module, device=self.device,
            seed=assignment.seed, meter=meter, watch=watch,
            peer=lambda _: {name: tensor.clone() for name, tensor in next(answers)[1].items()},
        )  # fmt: skip
        return replace(update, trace=again.trace, peak_memory_bytes=watch.bytes if watch else None)

    @contextmanager
    def _failing(self, assignment: Assignment) -> Iterator[None]:
        """Name the client or the server in the error of an assignment that fails."""
        try:
            yield
        except registry.PASSED:
            raise
        except BaseException as error:
            self._modules.clear()  # a failed work may leave its module in an undefined state
            if isinstance(error, EdgeflError):
                raise
            raise _failure(assignment, error) from error

    def _watch(self, work: Work, module: nn.Module, inputs: Mapping[str, Tensor]) -> AllocatorPeak | None:
        """The watch on the allocator for a work; None while another profiler is running."""
        if self.device.type == "cpu" and is_profiling():
            return None
        # on a CPU tables are used as they were received; on a GPU they are copied
        tables = {item.name for payload in work.down for item in payload.items if item.is_beside_model}
        received = [inputs[name] for name in tables & inputs.keys()] if self.device.type == "cpu" else []
        return AllocatorPeak(self.device, [*module.parameters(), *module.buffers(), *received])


class _Lapped:
    """A source that calls ``lap`` of a watch every ``every`` batches, between two steps: else its events would pile up.

    Fields of a batch that NumPy allocated are copied, because torch's allocator doesn't know of them, and the measured
    peak would lack them.
    """

    def __init__(self, source: Source, watch: AllocatorPeak, every: int = 64):
        self._source, self._watch, self._every = source, watch, every
        self._batches = 0
        self.spec, self.counts, self.size = source.spec, source.counts, source.size

    def batches(self, pass_: Pass, seed: int) -> Iterator[tuple[str, dict[str, Tensor]]]:
        """The batches of the source, with fields that torch's allocator made."""
        for pattern, batch in self._source.batches(pass_, seed):
            self._batches += 1
            if self._batches % self._every == 0:
                self._watch.lap()
            owned = {n: v if v.untyped_storage().resizable() else v.clone() for n, v in batch.items()}
            del batch
            yield pattern, owned
            del owned  # else it is in memory while the source makes the next, and the peak counts both


def _host(started: float, assignments: int = 1) -> HostFigures:
    """Figures of the host for each of the ``assignments`` that began at ``started``."""
    rss = _process(os.getpid()).memory_info().rss
    return {"wall_seconds": (time.perf_counter() - started) / assignments, "rss_bytes": rss, "process": os.getpid()}


@cache
def _process(pid: int) -> psutil.Process:
    return psutil.Process(pid)


def _failure(assignment: Assignment, error: BaseException) -> EdgeflError:
    """The error of an assignment whose work failed."""
    if is_out_of_memory(error):
        return OutOfHostMemory(f"the memory of this machine doesn't suffice for {assignment.title}")
    kind, node = assignment.form.kind, assignment.node
    return TrainingError(f"the work of kind {kind!r} failed on {node}: {_describe_error(error)}")


def _describe_error(error: BaseException) -> str:
    """What failed in a work, in one line, with the plug-in if its code was running."""
    fault = registry.plug_ins().fault(error)
    return str(fault) if fault else registry.error_text(error)
