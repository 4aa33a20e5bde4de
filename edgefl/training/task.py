"""A task: one work for one node, ready to run anywhere; and what comes back."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import psutil
import safetensors.torch
import torch
from torch import Tensor, nn

from edgefl import models, seeds
from edgefl.errors import EdgeflError, TrainingError
from edgefl.work import CUDA_ROUNDING, Meter, Result, Source, Trace, Work, digest, run
from edgefl.work.torch_device import warm


@dataclass(frozen=True)
class Task:
    """A work with the tensors that it starts from.

    ``client`` is None for the server; ``inputs`` are by item name, or as payloads' codecs encode them, and hold the
    whole model at its stage, whether it travelled or was kept; ``seed`` is of this client and round alone.
    """

    work: Work
    inputs: Mapping[str, Tensor]
    client: int | None
    seed: int
    metered: bool = False

    def encode(self) -> tuple[str, bytes]:
        """JSON and safetensors, for another process."""
        head = {"work": self.work.encode(), "client": self.client, "seed": self.seed, "metered": self.metered}
        return json.dumps(head), _packed(self.inputs)

    @classmethod
    def decode(cls, head: str, body: bytes) -> Task:
        """The task that ``encode`` wrote."""
        raw = json.loads(head)
        return cls(Work.decode(raw["work"]), _unpacked(body), raw["client"], raw["seed"], raw["metered"])


@dataclass(frozen=True)
class Measured:
    """Measured twins of the predicted cost; FLOPs and peak are of the metered steps, as in a prediction.

    ``peak_memory_bytes`` is live tensor storage on a CPU and the allocator's peak on CUDA.
    """

    peak_memory_bytes: int
    trace: Trace


@dataclass(frozen=True)
class Report:
    """What a task gave: its result, its measurement if metered, and figures of the host (outside every equality)."""

    result: Result
    measured: Measured | None = None
    host: Mapping[str, Any] = field(default_factory=dict)

    def encode(self) -> tuple[str, bytes]:
        """JSON and safetensors, for another process."""
        r = self.result
        tensors = {f"{i}/{n}": t for i, named in enumerate(r.payloads.values()) for n, t in named.items()}
        tensors |= {f"kept/{n}": t for n, t in r.kept.items()}
        head = {
            "payloads": list(r.payloads),
            "metrics": r.metrics,
            "loss": r.loss,
            "measured": self.measured and [self.measured.peak_memory_bytes, self.measured.trace.to_json()],
            "host": self.host,
        }
        return json.dumps(head), _packed(tensors)

    @classmethod
    def decode(cls, head: str, body: bytes) -> Report:
        """The report that ``encode`` wrote."""
        raw, tensors = json.loads(head), _unpacked(body)
        payloads: dict[str, dict[str, Tensor]] = {name: {} for name in raw["payloads"]}
        kept = {}
        for key, tensor in tensors.items():
            side, rest = key.split("/", 1)
            if side == "kept":
                kept[rest] = tensor
            else:
                payloads[raw["payloads"][int(side)]][rest] = tensor
        measured = raw["measured"] and Measured(raw["measured"][0], Trace.from_json(raw["measured"][1]))
        return cls(Result(payloads, raw["metrics"], kept, raw["loss"]), measured, raw["host"])


def _packed(tensors: Mapping[str, Tensor]) -> bytes:
    # the format has no aliases: what stands under two names is written twice
    seen: set[int] = set()
    alone = {}
    for name, tensor in tensors.items():
        place = tensor.untyped_storage()._cdata
        alone[name] = tensor.clone(memory_format=torch.contiguous_format) if place in seen else tensor.contiguous()
        seen.add(place)
    return safetensors.torch.save(alone)


def _unpacked(body: bytes) -> dict[str, Tensor]:
    # safetensors' buffers are read-only to torch's eyes; a work changes only what it copied
    return dict(safetensors.torch.load(body))


class Sources(Protocol):
    """Where the data of every node come from (edgefl.data.Federation)."""

    def client(self, index: int) -> Source:
        """A client's private data."""
        ...

    def server(self) -> Source:
        """The server's data: validation, test, public."""
        ...


class Node:
    """Runs tasks one after the other on one device, with one resident module per model description."""

    def __init__(self, sources: Sources, device: torch.device):
        self.sources, self.device = sources, device
        self._modules: dict[str, nn.Module] = {}
        warm(device)

    def _module(self, task: Task, inputs: Mapping[str, Tensor]) -> nn.Module:
        key = digest(task.work.model)
        module = self._modules.get(key)
        # what the work doesn't bring, buffers included, must not be left over from another node
        if module is None or module.state_dict().keys() - inputs.keys():
            with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
                torch.manual_seed(seeds.key(task.seed, "module"))
                module = self._modules[key] = models.build(task.work.model).to(self.device)
        return module

    def run(self, task: Task) -> Report:
        """Do a task.  Raises TrainingError, naming the node, if the work fails."""
        started = time.perf_counter()
        source = self.sources.server() if task.client is None else self.sources.client(task.client)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # with more, sums differ from machine to machine
        try:
            inputs = task.work.received(task.inputs)
            module = self._module(task, inputs)
            meter = Meter(CUDA_ROUNDING if self.device.type == "cuda" else 1) if task.metered else None
            base = self._before(module) if meter else 0
            result = run(task.work, inputs, source, module=module, device=self.device, seed=task.seed, meter=meter)
            measured = None
            if result.trace is not None:
                peak = result.trace.peak_memory_bytes
                if self.device.type == "cuda":
                    peak = torch.cuda.max_memory_allocated(self.device) - base
                measured = Measured(peak, result.trace)
        except Exception as error:
            self._modules.clear()  # a module that failed half-way is no resident
            if isinstance(error, EdgeflError):
                raise
            node = "the server" if task.client is None else f"client {task.client}"
            raise TrainingError(f"the work of kind {task.work.kind!r} failed on {node}: {error!r}") from error
        finally:
            torch.set_num_threads(threads)
        rss = psutil.Process().memory_info().rss
        host = {"wall_seconds": time.perf_counter() - started, "rss_bytes": rss, "process": os.getpid()}
        return Report(result, measured, host)

    def _before(self, module: nn.Module) -> int:
        """Bytes on the device that are not this work's."""
        if self.device.type != "cuda":
            return 0
        torch.cuda.synchronize(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        resident = (*module.parameters(), *module.buffers())
        own = sum(-(-t.untyped_storage().nbytes() // CUDA_ROUNDING) * CUDA_ROUNDING for t in resident)
        return torch.cuda.memory_allocated(self.device) - own
