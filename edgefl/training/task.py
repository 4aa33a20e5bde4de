"""Tasks (one work for one client or the server, with its input tensors) and their reports.

Tasks and reports can be encoded as bytes and sent to other processes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol, TypedDict

import safetensors.torch
import torch
from torch import Tensor

from edgefl.plain_data import from_data, to_data
from edgefl.runs.kept import Stored
from edgefl.training.attack import Attack
from edgefl.work import Description, Form, Result, Trace, Work
from edgefl.work.description import Scalar
from edgefl.work.packed import placed, split
from edgefl.work.sums import Key, Means, Totals, listed, unlisted


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
class Sum:
    """How the changes of several clients are added up where they train: denominators, and weight and factor of each.

    Changes that aren't finite are left out, unless ``keep_non_finite``.
    """

    totals: Totals
    weights: tuple[tuple[float, float], ...]
    keep_non_finite: bool


@dataclass(frozen=True)
class Task:
    """A work, as its form and its scalars, with its input tensors.

    ``client`` is None for the server.  ``inputs`` maps item names (or names that a payload's codec makes) to tensors.
    With ``kept``, what the client kept for itself, they hold the complete model of the stage.
    ``seed`` is specific to this client and round.  ``attack`` is what an attacker does, None for an honest client.
    ``others`` are tasks of other clients with this work and these inputs.  They are trained one after the other, and
    the report has the sum of what they change, as ``sum`` says.
    ``peak`` are the predicted bytes at its peak, None if it isn't known; they aren't sent.
    """

    form: Form
    scalars: Mapping[str, Scalar]
    inputs: Mapping[str, Tensor]
    client: int | None
    seed: int
    metered: bool = False
    attack: Attack | None = None
    kept: Kept | None = None
    others: tuple[Task, ...] = ()
    sum: Sum | None = None
    peak: int | None = None

    @cached_property
    def work(self) -> Work:
        """The work that is run: the form bound to the scalars."""
        return self.form.bound(self.scalars)

    def tensors(self) -> Mapping[str, Tensor]:
        """The inputs with what the client kept.  Raises RunError if its file can't be read."""
        return {**self.inputs, **self.kept.tensors()} if self.kept else self.inputs

    def encode(self) -> tuple[str, bytes]:
        """The task as JSON text and safetensors bytes, to be sent to another process."""
        head = {"form": self.form.encode(), **self.facts()}
        return json.dumps(head), serialised(self.inputs if isinstance(self.kept, Stored) else self.tensors())

    @classmethod
    def decode(cls, head: str, body: bytes) -> Task:
        """Restore a task from the output of ``encode``."""
        raw = json.loads(head)
        return cls.of(Form.decode(raw["form"]), deserialised(body), raw)

    def facts(self) -> dict[str, Any]:
        """All but the form and the inputs, as plain data."""
        kept = to_data(self.kept) if isinstance(self.kept, Stored) else None
        facts = {
            name: to_data(getattr(self, name)) for name in ("scalars", "client", "seed", "metered", "attack", "sum")
        }
        return {**facts, "kept": kept, "others": [task.facts() for task in self.others]}

    @classmethod
    def of(cls, form: Form, inputs: Mapping[str, Tensor], facts: Mapping[str, Any]) -> Task:
        """The task with these ``facts``."""
        types = {"attack": Attack, "kept": Stored, "sum": Sum}
        parts = {
            name: raw and from_data(types[name], raw) if name in types else raw
            for name, raw in facts.items()
            if name != "form"
        }
        others = tuple(cls.of(form, inputs, each) for each in facts["others"])
        return cls(form, inputs=inputs, **{**parts, "others": others})


@dataclass(frozen=True)
class Measured:
    """Measured cost of the metered steps, which a prediction covers too.

    ``peak_memory_bytes`` is the allocator's peak; None if it couldn't be had, because another profiler of torch is
    running in the process.  ``trace`` has the FLOPs, and the live storage by part.
    """

    peak_memory_bytes: int | None
    trace: Trace


class HostFigures(TypedDict, total=False):
    """What differs between equal runs: wall seconds, resident memory and number of the process that ran a task."""

    wall_seconds: float
    rss_bytes: int
    process: int


class ReportFacts(TypedDict):
    """A report without its tensors, as plain data."""

    payloads: list[str]
    metrics: Mapping[str, float]
    loss: float | None
    updates: int
    seed: int | None
    measured: tuple[int | None, Any] | None
    host: HostFigures
    others: list[ReportFacts]
    sums: Sequence[Key] | None
    refused: str | None


@dataclass(frozen=True)
class Report:
    """The outcome of a task: its result, the measurement if the task was metered, and figures of the host.

    ``seed`` is the task's, by which a report is known to answer it.  ``host`` has wall time, memory and process id,
    which differ between equal runs.  ``others`` are the reports of the task's ``others``.  ``sums`` are the means over
    them all of what they changed, if the task asked for them; reports of clients have no payloads then, and ``refused``
    says why one isn't among them.
    """

    result: Result
    measured: Measured | None = None
    seed: int | None = None
    host: HostFigures = field(default_factory=HostFigures)
    others: tuple[Report, ...] = ()
    sums: Means | None = None
    refused: str | None = None

    def encode(self) -> tuple[str, bytes]:
        """The report as JSON text and safetensors bytes, to be sent to another process."""
        return json.dumps(self.facts()), serialised(self.tensors())

    def tensors(self) -> dict[str, Tensor]:
        """What is sent and kept, by names that ``of`` knows."""
        r = self.result
        tensors = {f"{i}/{n}": t for i, named in enumerate(r.payloads.values()) for n, t in named.items()}
        tensors |= {f"kept/{n}": t for n, t in r.kept.items()}
        for i, other in enumerate(self.others):
            tensors |= {f"others/{i}/{n}": t for n, t in other.tensors().items()}
        return tensors | {f"sums/{i}": tensor for i, tensor in enumerate(listed(self.sums or {})[0])}

    def facts(self) -> ReportFacts:
        """All but the tensors, as plain data."""
        r = self.result
        return {
            "payloads": list(r.payloads),
            "metrics": r.metrics,
            "loss": r.loss,
            "updates": r.updates,
            "seed": self.seed,
            "measured": (m.peak_memory_bytes, to_data(m.trace)) if (m := self.measured) else None,
            "host": self.host,
            "others": [other.facts() for other in self.others],
            "sums": None if self.sums is None else listed(self.sums)[1],
            "refused": self.refused,
        }

    @classmethod
    def decode(cls, head: str, body: bytes) -> Report:
        """Restore a report from the output of ``encode``."""
        return cls.of(json.loads(head), deserialised(body))

    @classmethod
    def of(cls, raw: ReportFacts, tensors: Mapping[str, Tensor]) -> Report:
        """The report with these facts and tensors."""
        payloads: dict[str, dict[str, Tensor]] = {name: {} for name in raw["payloads"]}
        kept, means = {}, {}
        theirs: list[dict[str, Tensor]] = [{} for _ in raw["others"]]
        for key, tensor in tensors.items():
            side, rest = key.split("/", 1)
            if side == "others":
                index, name = rest.split("/", 1)
                theirs[int(index)][name] = tensor
            elif side == "kept":
                kept[rest] = tensor
            elif side == "sums":
                means[int(rest)] = tensor
            else:
                payloads[raw["payloads"][int(side)]][rest] = tensor
        others = tuple(cls.of(each, own) for each, own in zip(raw["others"], theirs, strict=True))
        report = cls._of(raw, payloads, kept, others)
        keys = raw["sums"]
        return report if keys is None else replace(report, sums=unlisted([means[i] for i in range(len(keys))], keys))

    @classmethod
    def in_buffer(cls, raw: ReportFacts, work: Description, buffer: Tensor) -> Report:
        """The report with these facts, of a task whose ``work`` put its payloads into ``buffer``."""
        return cls._of(raw, {p.name: placed(p).packed(part) for p, part in split(buffer, work.up)}, {})

    @classmethod
    def _of(
        cls,
        raw: ReportFacts,
        payloads: Mapping[str, Mapping[str, Tensor]],
        kept: Mapping[str, Tensor],
        others: tuple[Report, ...] = (),
    ) -> Report:
        measured = raw["measured"] and Measured(raw["measured"][0], from_data(Trace, raw["measured"][1]))
        result = Result(payloads, raw["metrics"], kept, raw["loss"], updates=raw["updates"])
        return cls(result, measured, raw["seed"], raw["host"], others, refused=raw["refused"])


def serialised(tensors: Mapping[str, Tensor]) -> bytes:
    """Tensors as safetensors bytes."""
    # safetensors refuses tensors that share storage: those of a packed payload get a storage each on the same memory
    seen: set[int] = set()
    separate = {}
    for name, tensor in tensors.items():
        whole = tensor.contiguous()
        shares = whole.untyped_storage().nbytes() > whole.nbytes
        if whole.data_ptr() in seen:
            whole = whole.clone()
        elif shares and whole.numel() and whole.device.type == "cpu":
            bytes_ = whole.detach().reshape(-1).view(torch.uint8)
            memory = memoryview(bytes_.numpy())  # type: ignore[arg-type]
            whole = torch.frombuffer(memory, dtype=whole.dtype).view(whole.shape)
        seen.add(whole.data_ptr())
        separate[name] = whole
    return safetensors.torch.save(separate)


def deserialised(body: bytes) -> dict[str, Tensor]:
    """The tensors of safetensors bytes."""
    # the tensors may share read-only buffers with ``body``; works copy tensors before they change them
    return dict(safetensors.torch.load(body))
