"""An update: what a node's work gave, from the worker to the mean."""

from __future__ import annotations

import math
from collections.abc import Container, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict

from torch import Tensor

from edgefl.plain_data import from_data, to_data
from edgefl.work.description import Address, Work
from edgefl.work.meter.trace import StepTrace
from edgefl.work.packed import payload_layout, split_buffer
from edgefl.work.slices import Cut
from edgefl.work.sums import Key, Means, changing, exact

SERVER = -1
"""In place of a client's number."""


class HostFigures(TypedDict, total=False):
    """What differs between equal runs: wall seconds, resident memory and number of the process that ran a task."""

    wall_seconds: float
    rss_bytes: int
    process: int


@dataclass
class Exchanged:
    """What the halves of a split work have exchanged: how often, and serialised bytes."""

    trips: int = 0
    upload_bytes: int = 0
    download_bytes: int = 0


@dataclass(frozen=True)
class Update:
    """What a work gave: a node makes it, it travels, the server keeps it, and ``Method.aggregate`` receives it.

    A node fills what it sent and what was measured; ``work``, ``base`` and what stands between them and ``loss`` are
    the server's, which sets them as the update lands.
    """

    client: int
    """Number of the client; SERVER for a work of the server."""
    kind: str
    """Its kind."""
    samples: Mapping[str, int]
    """Its private samples by pattern."""
    work: Work
    """The work that it did, as the stage has cut it."""
    payloads: Mapping[str, Mapping[str, Tensor]]
    """``{payload: {item: tensor}}``, decoded."""
    base: Mapping[Address, Tensor]
    """What it started from, by address; the server's current values under ``asynchronous``."""
    base_round: int = 0
    """The round in which it was sent off."""
    staleness: int = 0
    """How often the model has changed since."""
    weight_factor: float = 1.0
    """The round policy's factor on its weight, applied after weights are normalised: the discount s(t) of its
    staleness, times ``round.mixing`` under ``asynchronous``."""
    equal: bool = False
    """Whether it weighs as much as every other update in the mean of the parameters (``round.weighting``), then
    ``weight`` is 1."""
    loss: float | None = None
    """The mean loss of its training steps; None without training."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """What its steps have put into ``Context.metrics``; empty under ``training.mode: none``."""
    updates: int = 1
    """Updates of its optimizer; 1 under ``training.mode: none``."""
    variant: Hashable = None
    """The client's variant."""
    dispatch: int = 0
    """Number of the dispatch in which its client was sent off."""
    kept: Mapping[str, Tensor] = field(default_factory=dict)
    """What the client keeps for itself, by item name."""
    seed: int | None = None
    """The seed of its training, by which the server knows that it answers what was asked."""
    trace: StepTrace | None = None
    """Measured FLOPs and live storage, if the work was metered."""
    peak_memory_bytes: int | None = None
    """The allocator's measured peak; None if the work wasn't metered, or another profiler was running."""
    host: HostFigures = field(default_factory=HostFigures)
    """What differs between equal runs."""
    exchanged: Exchanged | None = None
    """What was exchanged with the server while it trained, if its work is split."""
    refused: str | None = None
    """Why it isn't among ``means``."""
    others: tuple[Update, ...] = ()
    """The updates of clients that trained together with this one."""
    means: Means | None = None
    """What they all changed, added up where they trained; their payloads are empty then."""

    @property
    def total(self) -> int:
        """Number of samples over all patterns."""
        return sum(self.samples.values())

    @property
    def weight(self) -> int | float:
        """Weight before normalising in a mean of parameters: the number of samples, or 1 if ``equal``."""
        return 1.0 if self.equal else sum(self.samples.values())

    def uploaded_tensors(self) -> Iterable[tuple[Address, Tensor]]:
        """Address and value of every tensor sent up; slices for a narrower model (``cuts``)."""
        for payload in self.work.up:
            for item in payload.items:
                yield item.source, self.payloads[payload.name][item.name]

    def changing(self) -> Iterator[tuple[Address, Tensor, Tensor]]:
        """Address, value and starting value of every tensor sent up that is averaged: floating, and no table."""
        for address, _, value, base in changing(self.work.up, self.payloads, self.base):
            yield address, value, base

    def norm(self, without: Container[Address] = ()) -> float:
        """L2 norm of the change of all floating tensors sent but tables and those ``without``; 0 for meta tensors."""
        changes = (
            exact(value.to(base.dtype)) - exact(base)
            for address, value, base in self.changing()
            if address not in without and not value.is_meta
        )
        return math.sqrt(sum(float(change.double().square().sum()) for change in changes))

    def clipping(self, largest: float | None) -> float:
        """The factor that brings the norm down to ``largest`` (Sun et al. 2019), 1 if it is small enough or None.

        The norm is over everything that is averaged: all floating tensors sent but tables, buffers included.
        """
        if largest is None:
            return 1.0
        norm = self.norm()
        return min(1.0, largest / norm) if norm and norm < math.inf else 1.0

    def cuts(self) -> dict[Address, Cut]:
        """The part of the server's tensor that was sent, for addresses of which not all was sent."""
        return {i.source: i.cut for p in self.work.up for i in p.items if i.cut is not None}

    # between processes: plain data, and tensors by the names that ``from_data`` knows ---------------------------------

    def to_data(self) -> dict[str, Any]:
        """What a node fills but for the tensors, as plain data."""
        return {
            "payloads": list(self.payloads),
            "metrics": self.metrics,
            "loss": self.loss,
            "updates": self.updates,
            "seed": self.seed,
            "trace": self.trace and to_data(self.trace),
            "peak_memory_bytes": self.peak_memory_bytes,
            "host": self.host,
            "exchanged": self.exchanged and to_data(self.exchanged),
            "refused": self.refused,
            "clients": [other.client for other in self.others],
            "others": [other.to_data() for other in self.others],
            "means": None if self.means is None else list(self.means),
        }

    def tensors(self) -> dict[str, Tensor]:
        """What is sent and kept."""
        tensors = {f"{i}/{n}": t for i, named in enumerate(self.payloads.values()) for n, t in named.items()}
        tensors |= {f"kept/{n}": t for n, t in self.kept.items()}
        for i, other in enumerate(self.others):
            tensors |= {f"others/{i}/{n}": t for n, t in other.tensors().items()}
        return tensors | {f"means/{i}": tensor for i, tensor in enumerate((self.means or {}).values())}

    @classmethod
    def from_data(
        cls, raw: Mapping[str, Any], work: Work, client: int | None, tensors: Mapping[str, Tensor] | Tensor
    ) -> Update:
        """The update of a work of a client, or of the server (None).

        ``tensors`` are as ``tensors()`` named them, or the buffer of its payloads.
        """
        payloads: dict[str, Mapping[str, Tensor]]
        found: dict[str, dict[str, Tensor]] = {}
        if isinstance(tensors, Tensor):
            payloads = {p.name: payload_layout(p).view_buffer(part) for p, part in split_buffer(tensors, work.up)}
        else:
            for key, tensor in tensors.items():
                side, name = key.split("/", 1)
                found.setdefault(side, {})[name] = tensor
            payloads = {name: found.get(str(i), {}) for i, name in enumerate(raw["payloads"])}
        theirs: list[dict[str, Tensor]] = [{} for _ in raw["others"]]
        for key, tensor in found.get("others", {}).items():
            index, name = key.split("/", 1)
            theirs[int(index)][name] = tensor
        others = zip(raw["others"], raw["clients"], theirs, strict=True)
        keys, means = raw["means"], found.get("means", {})
        return cls(
            SERVER if client is None else client, work.kind, {}, work, payloads, {},
            loss=raw["loss"], metrics=raw["metrics"], updates=raw["updates"], kept=found.get("kept", {}),
            seed=raw["seed"], trace=raw["trace"] and from_data(StepTrace, raw["trace"]),
            peak_memory_bytes=raw["peak_memory_bytes"],
            host=raw["host"], exchanged=raw["exchanged"] and from_data(Exchanged, raw["exchanged"]),
            refused=raw["refused"],
            others=tuple(cls.from_data(each, work, of, own) for each, of, own in others),
            means=None if keys is None else {key: means[str(i)] for i, key in enumerate(from_data(list[Key], keys))},
        )  # fmt: skip
