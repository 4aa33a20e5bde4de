"""Shared test helpers: a source of random samples, small works, and steps for single purposes.

Entry points register the steps, like those of a plug-in, in this process and in workers.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from edgefl import models
from edgefl.models import ModelOptions
from edgefl.records.record import Record
from edgefl.records.writing import line
from edgefl.runs.folders import RECORDS
from edgefl.work import (
    NO_METER,
    Context,
    Edit,
    Item,
    Meter,
    NoMeter,
    Pass,
    Payload,
    Step,
    TensorSpec,
    Update,
    Work,
    run,
)
from edgefl.work.steps import ClassifyStep

FACTS = {
    "image": {"channels": 1, "size": 16, "classes": 5},
    "text": {"vocabulary": 40, "tokens": 6, "classes": 5},
}
TOWER_FACTS: dict[str, dict[str, int]] = {
    "image": {"channels": 3, "size": 32, "classes": 5},
    "text": {"vocabulary": 60, "classes": 5},
    "audio": {"bins": 36, "frames": 46, "classes": 5},
    "motion": {"readings": 32, "channels": 6, "classes": 5},
}
PUBLISHED_FACTS: dict[str, dict[str, int]] = {
    "image": {"channels": 3, "size": 224, "classes": 5},
    "text": {"vocabulary": 30522, "classes": 5},
    "audio": {"bins": 128, "frames": 1024, "classes": 5},
    "motion": {"readings": 128, "channels": 9, "classes": 6},
}
"""Shapes and class counts that the data give a tower: small, and of published models."""
CPU = torch.device("cpu")


def declared(scenario: Mapping[str, Any]) -> dict[str, Any]:
    """The scenario with declared data of glyphs' shapes and sample counts, for tests that don't train."""
    data = {name: value for name, value in scenario["data"].items() if name != "size"}
    image = {"channels": 1, "size": scenario["data"].get("size", 32), "classes": 12}
    shapes = {"image": image, "text": {"vocabulary": 1000, "classes": 12}}
    return {**scenario, "data": {**data, "source": "declared", "shapes": shapes}}


@dataclass(frozen=True)
class Toy:
    """A Source of ``samples`` random samples that depend on the seed alone."""

    samples: int = 40
    classes: int = 5

    def spec(self, pass_: Pass, pattern: str) -> dict[str, TensorSpec]:
        size, tokens = FACTS["image"]["size"], FACTS["text"]["tokens"]
        fields = {"image": TensorSpec((pass_.batch, 1, size, size)), "text": TensorSpec((pass_.batch, tokens), "int64")}
        return {**{m: fields[m] for m in pattern.split("-")}, "label": TensorSpec((pass_.batch,), "int64")}

    def counts(self, pass_: Pass) -> dict[str, int]:
        batches = self.samples // pass_.batch if pass_.train else -(-self.samples // pass_.batch)
        return dict.fromkeys(pass_.patterns, batches)

    def size(self, pass_: Pass) -> int:
        return self.samples * len(pass_.patterns)

    def batches(self, pass_: Pass, seed: int) -> Iterator[tuple[str, dict[str, Tensor]]]:
        draw = torch.Generator().manual_seed(seed if pass_.train else 0)
        for pattern, count in self.counts(pass_).items():
            for index in range(count):
                batch = {
                    name: torch.rand(spec.shape, generator=draw)
                    if spec.dtype == "float32"
                    else torch.randint(0, self.classes, spec.shape, generator=draw)
                    for name, spec in self.spec(pass_, pattern).items()
                }
                batch["label"][max(self.samples - index * pass_.batch, 0) :] = -1
                yield pattern, batch


def described(
    modalities: Sequence[str] = ("image",),
    *,
    blocks: int = 2,
    width: int = 16,
    checkpointing: bool = False,
    **more: Any,
) -> dict[str, Any]:
    tower = {"blocks": blocks, "width": width, "heads": 2}
    tokens = FACTS["text"]["tokens"]
    options = ModelOptions(image={**tower, "patch": 4, **more}, text={**tower, "tokens": tokens, **more})
    task = "classify" if len(modalities) == 1 else "retrieve"
    return models.describe(options, modalities, task, FACTS, checkpointing=checkpointing)


def skeleton(description: Mapping[str, Any]) -> nn.Module:
    """The module on the meta device, for names and shapes."""
    with torch.device("meta"):
        return models.build(description)


def training_pass(modalities: Sequence[str] = ("image",), batch: int = 8, **args: Any) -> Pass:
    return Pass(
        "classify" if len(modalities) == 1 else "contrast", "private", ("-".join(modalities),), batch, True, args,
        ("proximal",) if "proximal" in args else (),
    )  # fmt: skip


def scoring_pass(modalities: Sequence[str] = ("image",), batch: int = 16) -> Pass:
    step = "score-classify" if len(modalities) == 1 else "score-retrieve"
    return Pass(step, "validation", ("-".join(modalities),), batch, False)


def make_work(
    modalities: Sequence[str] = ("image",),
    passes: tuple[Pass, ...] | None = None,
    *,
    gate: str = "",
    optimizer: Mapping[str, Any] | None = None,
    model: Mapping[str, Any] | None = None,
    **more: Any,
) -> Work:
    """A client's work at full depth; ``gate`` is "trainable" or "frozen" to gate partners in every block."""
    model = model or described(modalities)
    module = skeleton(model)
    names = [n for n, _ in module.named_parameters()]
    items = tuple(Item(n, tuple(p.shape), "float32", f"own/{n}") for n, p in module.named_parameters())
    down: tuple[Payload, ...] = (Payload("model", items),)
    edits: tuple[Edit, ...] = ()
    if gate:
        layers = [n for n, x in module.named_modules() if isinstance(x, nn.Linear) and ".blocks." in n]
        edits = (Edit("gate", {"layers": layers}),)
        partners = tuple(
            Item(f"{n}.partner", tuple(module.get_submodule(n).weight.shape), "float32", f"other/{n}.weight")  # type: ignore[arg-type, union-attr]
            for n in layers
        )
        down = (*down, Payload("partner", partners, "trained"))
        names += [f"{n}.gate" for n in layers]
        if gate == "trainable":
            names += [f"{n}.partner" for n in layers]
    return Work(
        "own",
        model,
        tuple(names),
        (training_pass(modalities),) * 2 if passes is None else passes,
        down,
        (Payload("model", items),),
        edits,
        optimizer or {"name": "adamw", "lr": 1e-3, "implementation": "fused"},
        **more,
    )


def inputs_of(work: Work, seed: int = 0) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return {i.name: torch.randn(i.shape, generator=draw) * 0.05 for p in work.down for i in p.items}


def do(
    work: Work, source: Any = None, *, seed: int = 1, meter: Meter | NoMeter = NO_METER, module: Any = None
) -> Update:
    """Execute a work on the CPU, on a new module if none is given."""
    module = module or models.build(work.model)
    return run(work, inputs_of(work), source or Toy(), module=module, device=CPU, seed=seed, meter=meter)


class SideLinear(nn.Linear):
    """``y = W x + b + up down x``: a linear layer beside which a product of two small matrices trains."""

    def forward(self, x: Tensor) -> Tensor:
        beside = nn.functional.linear(nn.functional.linear(x, self.down), self.up)  # type: ignore[arg-type]
        return super().forward(x) + beside


class SideMatrices:
    """An edit: every layer in ``args.layers`` gets ``down`` `[rank, in]` and ``up`` `[out, rank]`, which is 0."""

    @staticmethod
    def names(edit: Edit) -> set[str]:
        return {f"{layer}.{name}" for layer in edit.args["layers"] for name in ("down", "up")}

    @staticmethod
    def restrict(edit: Edit, active: Any, received: set[str]) -> Edit:
        return edit

    @staticmethod
    def apply(edit: Edit, module: nn.Module, received: Mapping[str, Tensor]) -> None:
        for name in edit.args["layers"]:
            layer: Any = module.get_submodule(name)
            device, rank = layer.weight.device, edit.args["rank"]
            layer.down = nn.Parameter(torch.randn(rank, layer.in_features, device=device))
            layer.up = nn.Parameter(torch.zeros(layer.out_features, rank, device=device))
            layer.__class__ = SideLinear

    @staticmethod
    def fold(edit: Edit, module: nn.Module) -> None:
        for name in edit.args["layers"]:
            layer: Any = module.get_submodule(name)
            with torch.no_grad():
                layer.weight.add_(layer.up @ layer.down)
            del layer.down, layer.up
            layer.__class__ = nn.Linear


@cache
def _temporary() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="edgefl-toys-")


class Memory:
    """A journal that keeps all records and checkpoints in memory."""

    def __init__(self) -> None:
        self.tables: dict[str, list[Mapping[str, Any]]] = {}
        self.states: dict[int, tuple[dict[str, Tensor], Mapping[str, Any]]] = {}

    @property
    def kept_folder(self) -> Path:
        """Where every journal keeps what clients keep: files are named by their content, and none is removed."""
        return Path(_temporary().name) / "kept"

    def append(self, *records: Record) -> None:
        for record in records:
            self.append_lines(type(record), [line(record)])

    def append_lines(self, cls: type[Record], lines: Sequence[bytes]) -> None:
        """The tables hold what a run's folder would: dictionaries of JSON data."""
        self.tables.setdefault(RECORDS[cls], []).extend(json.loads(each) for each in lines)

    def checkpoint(self, round: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        self.states[round] = dict(tensors), state


class CopyingMemory(Memory):
    """A journal whose states are as a disk gives them back: plain JSON, tensors that nobody else holds."""

    def checkpoint(self, round: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """As Memory does, copied."""
        super().checkpoint(round, {n: t.clone() for n, t in tensors.items()}, json.loads(json.dumps(state)))


class Prototypes(Step):
    """Cross-entropy between features and a received table of class prototypes ``[classes, dim]``."""

    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> Tensor:
        feature = ctx.client_model.feature(pattern, batch[pattern])
        return nn.functional.cross_entropy(feature @ ctx.received["prototypes"].T, batch["label"])


class Pulled(Step):
    """Cross-entropy plus a weighted term, which the graph omits if its weight is zero."""

    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> Tensor:
        logits = ctx.client_model.logits(pattern, batch[pattern])
        loss = nn.functional.cross_entropy(logits, batch["label"])
        pull = ctx.work.scalars["pull"]
        return loss + pull * torch.softmax(logits, -1).square().sum() if pull else loss


class Broken(Step):
    """Raise ValueError at the second batch."""

    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> Tensor:
        ctx.notes["seen"] = ctx.notes.get("seen", 0) + 1
        if ctx.notes["seen"] == 2:
            raise ValueError("the toy is broken")
        return ctx.client_model.logits(pattern, batch[pattern]).sum()


class Killer(Step):
    """Kill its process with SIGKILL, like a system that is out of memory."""

    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> Tensor:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


class Unlucky(ClassifyStep):
    """Classification on a host that fails it ``args.times`` times in the way ``args.how``, counted in ``args.file``."""

    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> Tensor:
        path = Path(pass_.args["file"])
        failures = len(path.read_text()) if path.exists() else 0
        if failures < pass_.args["times"]:
            with path.open("a") as file:
                file.write("x")
            if pass_.args["how"] == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            elif pass_.args["how"] == "hang":
                time.sleep(600)
            else:
                torch.empty(2**46)  # 256 TiB
        return super().loss(ctx, batch, pattern, pass_)


class Meeting(ClassifyStep):
    """Classification that goes on when ``args.processes`` processes have left their number in ``args.folder``."""

    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> Tensor:
        folder, until = Path(pass_.args["folder"]), time.monotonic() + 120
        (folder / str(os.getpid())).touch()
        while len(list(folder.iterdir())) < pass_.args["processes"]:
            if time.monotonic() > until:
                raise TimeoutError(f"fewer than {pass_.args['processes']} processes came")
            time.sleep(0.01)
        return super().loss(ctx, batch, pattern, pass_)


@torch.library.custom_op("toys::my_bmm", mutates_args=())
def my_bmm(a: Tensor, b: Tensor) -> Tensor:
    """A matrix product without a registered FLOP formula."""
    return a @ b


@my_bmm.register_fake
def _(a: Tensor, b: Tensor) -> Tensor:
    return a @ b


class OwnOperator(Step):
    """Use a matmul operator that has no FLOP formula."""

    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> None:
        feature = ctx.client_model.feature(pattern, batch[pattern])
        torch.ops.toys.my_bmm(feature, feature.T)
