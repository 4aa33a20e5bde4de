"""A client's round and an evaluation written by hand: the model, its batches, losses, and the optimizer's steps."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from memory.drawing import WIDTHS, blocks_of, towers_of
from memory.models import MultiwayModel, TowerModel, add_gates, freeze, narrowed, scale
from memory.packed import pack, without_weights

Json = dict[str, Any]
PAIR = ("image", "text")
Batch = dict[str, Tensor]


@dataclass
class Round:
    """What is in memory during a round besides the optimizer."""

    configuration: Json
    model: Any
    tables: dict[str, Tensor] = field(default_factory=dict)
    outputs: dict[str, Tensor] = field(default_factory=dict)
    before: Any = None

    @property
    def scenario(self) -> Json:
        """The scenario."""
        scenario: Json = self.configuration["scenario"]
        return scenario

    @property
    def shapes(self) -> Json:
        """Shapes of the data."""
        shapes: Json = self.scenario["data"]["shapes"]
        return shapes

    @property
    def method(self) -> Json:
        """The method's options."""
        method: Json = self.scenario["method"]
        return method

    @property
    def modalities(self) -> list[str]:
        """Modalities of the client."""
        kind: str = self.configuration["kind"]
        return kind.split("-")

    @property
    def tokens(self) -> int:
        """Length of a text."""
        model = self.scenario["model"]
        return int((model.get("text") or model["multiway"])["tokens"])

    @property
    def training(self) -> Json:
        """How clients train."""
        training: Json = self.scenario["training"]
        return training


@dataclass
class Sweep:
    """One pass over a data split: ``count`` batches of ``batch`` samples with these fields."""

    loss: Callable[[Round, Batch], Tensor | None]
    fields: list[str]
    batch: int
    count: int
    train: bool = True
    finish: Callable[[Round], None] | None = None
    start: Callable[[Round], None] | None = None


# model --------------------------------------------------------------------------------------------------------------


def stage_of(configuration: Json) -> tuple[Json, Json]:
    """Depth of each tower, and the first of its blocks that trains."""
    scenario = configuration["scenario"]
    schedule, stage = scenario["schedule"], configuration["stage"]
    full = {name: blocks_of(tower) for name, tower in towers_of(scenario["model"]).items()}
    if schedule["name"] in ("end-to-end", "heterofl"):
        return full, dict.fromkeys(full, 0)
    stages = schedule["stages"]
    depth = {m: n * stage // stages for m, n in full.items()}
    layerwise = schedule["name"] == "layerwise"
    first = {m: n * (stage - 1) // stages if layerwise else 0 for m, n in full.items()}
    return depth, first


MOST_BLOCKS = 1000
"""More than any drawn tower has."""


def make_model(configuration: Json) -> TowerModel | MultiwayModel:
    """The client's model at its stage, with what doesn't train frozen and gates in place."""
    scenario = configuration["scenario"]
    options, shapes = scenario["model"], scenario["data"]["shapes"]
    depth, first = stage_of(configuration)
    asked, method, schedule = scenario["training"]["checkpointing"], scenario["method"], scenario["schedule"]
    recompute = int(asked.split()[0]) if isinstance(asked, str) else MOST_BLOCKS * asked
    if schedule["name"] == "heterofl":
        share = WIDTHS[configuration["stage"] - 1]
        options = options | {name: narrowed(tower, share) for name, tower in towers_of(options).items()}
    model: TowerModel | MultiwayModel
    if "multiway" in options:
        model = MultiwayModel(options["multiway"], shapes, depth["multiway"], recompute)
    else:
        kind = configuration["kind"]
        task = scenario["data"]["tasks"].get(kind, "classify")
        with without_weights() if "adapter" in scenario else nullcontext():
            model = TowerModel(options, shapes, kind.split("-"), task, depth, recompute)
    if configuration["work"] == "evaluate":
        model.requires_grad_(False)
        return model
    if schedule["name"] == "heterofl" and schedule["scaler"]:
        for name, tower in model.towers.items():  # type: ignore[union-attr]
            part = options[name]["width"] / scenario["model"][name]["width"]
            if part < 1:
                scale(tower.blocks, part)  # type: ignore[arg-type]
    if schedule["name"] == "layerwise" and configuration["stage"] > 1:
        freeze(model, first)
    if method["name"] == "fedcola":
        own = configuration["kind"]
        shared = min(depth["image"], depth["text"])
        blocks = model.towers[own].blocks[first[own] : shared]  # type: ignore[union-attr]
        add_gates(blocks, method["complementary"], method["partner"] == "trainable")
    if "adapter" in scenario:
        pack(model, options, scenario["adapter"]["rank"])
    return model


class EightBit(torch.optim.Optimizer):
    """bitsandbytes' AdamW, which gets large parameters in pieces of 2^18 numbers, and makes their states at once."""

    def __init__(self, parameters: list[nn.Parameter], lr: float, weight_decay: float):
        from bitsandbytes.optim import AdamW8bit

        super().__init__(parameters, {})
        self.pieces = {p: [nn.Parameter(piece) for piece in p.detach().view(-1).split(2**18)] for p in parameters}
        options = {"lr": lr, "weight_decay": weight_decay}
        self.inner = {
            p: AdamW8bit(pieces, min_8bit_size=4096 if p.numel() < 4096 else 1, **options)
            for p, pieces in self.pieces.items()
        }
        for inner in self.inner.values():  # one pair of maps
            inner.name2qmap = self.inner[parameters[0]].name2qmap

    def step(self, closure: Any = None) -> None:
        """Hand each gradient on to the pieces."""
        for parameter, pieces in self.pieces.items():
            if parameter.grad is not None:
                for piece, gradient in zip(pieces, parameter.grad.view(-1).split(2**18), strict=True):
                    piece.grad = gradient
                inner = self.inner[parameter]
                for index, piece in enumerate(pieces):
                    if not inner.state[piece]:
                        inner.init_state(inner.param_groups[0], piece, 0, index)
                inner.step()
                inner.zero_grad(set_to_none=True)


def make_optimizer(training: Json, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """torch's optimizer of these parameters, or bitsandbytes'."""
    if training["optimizer"] == "adamw-8bit":
        return EightBit(parameters, training["lr"], training["weight_decay"])
    how = training["implementation"]
    common = {
        "lr": training["lr"], "weight_decay": training["weight_decay"],
        "foreach": how == "foreach", "fused": how == "fused",
    }  # fmt: skip
    if training["optimizer"] == "sgd":
        return torch.optim.SGD(parameters, momentum=training["momentum"], **common)
    return (torch.optim.Adam if training["optimizer"] == "adam" else torch.optim.AdamW)(parameters, **common)


# batches ------------------------------------------------------------------------------------------------------------


def make_batch(r: Round, fields: list[str], size: int) -> Batch:
    """Random values in the shapes of the data."""
    shapes, batch = r.shapes, {}
    for name in fields:
        if name == "image":
            side = shapes["image"]["size"]
            batch[name] = torch.randn(size, shapes["image"]["channels"], side, side)
        elif name == "text":
            batch[name] = torch.randint(0, shapes["text"]["vocabulary"], (size, r.tokens))
        elif name == "next":
            batch[name] = torch.randint(-1, shapes["text"]["vocabulary"], (size, r.tokens))
        elif name == "audio":
            batch[name] = torch.randn(size, shapes["audio"]["frames"], shapes["audio"]["bins"])
        else:
            bound = shapes["image"]["classes"] if name == "label" else r.scenario["data"]["public"]
            batch[name] = torch.randint(0, bound, (size,))
    return batch


# losses -------------------------------------------------------------------------------------------------------------


def proximal(r: Round) -> Tensor | float:
    """FedProx's term, of the squared norm or of each tensor's norm."""
    if r.method["name"] != "fedprox":
        return 0.0
    moved = [p - r.before[n] for n, p in r.model.named_parameters() if p.requires_grad]
    if r.method["norm"] == "tensor":
        return r.method["mu"] / 2 * torch.stack([torch.linalg.vector_norm(d) for d in moved]).sum()
    return r.method["mu"] / 2 * torch.stack([d.square().sum() for d in moved]).sum()


def classify(r: Round, batch: Batch) -> Tensor:
    """Cross-entropy."""
    return F.cross_entropy(r.model.classify(batch).float(), batch["label"]) + proximal(r)


class InChunks(torch.autograd.Function):
    """Sum of the next tokens' cross-entropies, and its gradients, for some rows at a time.

    By hand: of ``l = -log softmax(W h)[word]`` the gradient of the scores is ``softmax(W h) - onehot(word)``.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, words: Tensor, target: Tensor, chunk: int) -> Tensor:
        """The sum; gradients wait to be scaled."""
        total, of_words = torch.zeros(()), None
        of_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        half = torch.is_autocast_enabled("cpu")
        used = words.to(torch.bfloat16) if half else words
        for start in range(0, len(hidden), chunk):
            rows, word = hidden[start : start + chunk], target[start : start + chunk, None]
            if half:
                rows = rows.to(torch.bfloat16)
            logs = F.linear(rows, used).float().log_softmax(1)
            real = (word >= 0).float()
            total -= (logs.gather(1, word.clamp_min(0)) * real).sum()
            hits = torch.zeros_like(logs).scatter_(1, word.clamp_min(0), real)
            given = logs.exp().mul_(real).sub_(hits)
            del logs, hits
            given = given.to(used.dtype)
            with torch.autocast("cpu", enabled=False):
                if ctx.needs_input_grad[1]:
                    first, second = given.T.to(words.dtype), rows.to(words.dtype)
                    of_words = first @ second if of_words is None else of_words.addmm_(first, second)
                    del first, second
                if of_hidden is not None:
                    of_hidden[start : start + chunk] = given @ used
            del given
        ctx.waiting = [of_hidden, of_words]
        return total

    @staticmethod
    def backward(ctx: Any, factor: Tensor) -> Any:
        """The gradients that waited."""
        of_hidden, of_words = (None if each is None else each.mul_(factor) for each in ctx.waiting)
        ctx.waiting = None
        return of_hidden, of_words, None, None


def predict(r: Round, batch: Batch) -> Tensor:
    """Cross-entropy of the next tokens, of all at once or in chunks."""
    after = batch["next"].masked_fill(batch["label"][:, None] == -1, -1).flatten()
    hidden = r.model.towers["text"](batch["text"])
    if chunk := r.training["loss_chunk"]:
        lost = InChunks.apply(hidden.flatten(0, 1), r.model.words, after, chunk)
        return lost / (after >= 0).sum().clamp_min(1) + proximal(r)
    scores = F.linear(hidden, r.model.words).float().flatten(0, 1)
    return F.cross_entropy(scores, after, ignore_index=-1) + proximal(r)


def contrast(r: Round, batch: Batch) -> Tensor:
    """CLIP's loss at temperature 0.07, or 0.05 (LW-FedMML)."""
    temperature = 0.05 if r.method["name"] == "fedmml" else 0.07
    a, b = (r.model.embed(m, batch[m]).float() for m in r.modalities)
    logits = (1 / temperature) * a @ b.T
    target = torch.arange(len(a))
    return (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2 + proximal(r)


def distil(r: Round, batch: Batch) -> Tensor:
    """FedMD's digest: distance of the client's representations to the consensus."""
    terms = []
    for modality in r.modalities:
        difference = r.model.embed(modality, batch[modality]).float() - r.tables[modality][batch["index"]]
        mse = r.method["distance"] == "mse"
        distance = difference.square().mean(1) if mse else torch.linalg.vector_norm(difference, dim=1)
        terms.append(r.method["digest"] * distance.mean())
    return torch.stack(terms).sum()


def contrast_public(r: Round, batch: Batch) -> Tensor:
    """CreamFL's contrast with the other modality's table (inter), and with the own table and the past (intra)."""
    index, inter, intra, temperature = batch["index"], [], [], 0.5
    for modality in r.modalities:
        other = "text" if modality == "image" else "image"
        own = r.model.embed(modality, batch[modality]).float()
        if r.method["inter"]:
            inter.append(F.cross_entropy(own @ r.tables[other].T / temperature, index))
        if r.method["intra"]:
            if r.before is None:
                past = r.outputs[f"before.{modality}"][index]
            else:
                with torch.no_grad():
                    past = r.before.embed(modality, batch[modality]).float()
            near = r.tables[modality][index]
            intra.append(F.softplus(((own * past).sum(1) - (own * near).sum(1)) / temperature))
    terms = []
    if intra:
        terms.append(torch.cat(intra).mean())
    if inter:
        term = torch.stack(inter).sum()
        terms.append(term * (terms[0] / term).detach() if r.method["rescale"] and intra else term)
    return r.method["contrast"] * torch.stack(terms).sum()


def both(r: Round, batch: Batch, order: tuple[str, ...]) -> Json:
    """Features of both modalities, with a replacement for one that the client lacks."""
    features: Json = r.model.features(batch)
    some = next(iter(features.values()))
    for modality in order:
        if modality not in features:
            if r.method["mask"] == "prototype":
                features[modality] = r.tables[modality][batch["label"].clamp_min(0)].to(some.dtype)
            else:
                empty = some.new_zeros(len(some), r.model.widths[modality])
                features[modality] = torch.randn_like(empty) if r.method["mask"] == "random" else empty
    return features


def fused_of(r: Round, features: Json) -> Tensor:
    """The joint feature of both modalities."""
    return r.model.fuse(*(features[m] for m in PAIR))


def present(rows: Tensor) -> Tensor:
    """1 for classes that have a prototype."""
    return (rows != 0).any(1).to(rows.dtype)


def completed(r: Round, batch: Batch) -> Tensor:
    """VQA's loss of the fused feature, and from round 2 on the terms of PmcmFL, FedPAC and FedHKD."""
    method, label = r.method, batch["label"]
    fused = fused_of(r, both(r, batch, PAIR))  # no name here, so that the features end with the call
    scores = r.model.scores(fused).float()
    target = torch.zeros_like(scores).scatter_(1, label[:, None], 1.0)
    loss = F.binary_cross_entropy_with_logits(scores, target, reduction="sum") / len(label)
    if r.configuration["round"] == 1 or "fused" not in r.tables:
        return loss
    table, name = r.tables["fused"], method["name"]
    if name == "pmcmfl" and method["contrast"]:
        logits = fused.float() @ table[label].T / 0.07
        loss = loss + method["contrast"] * F.cross_entropy(logits, torch.arange(len(fused)))
    if weight := method["weight"] if name == "fedpac" else method.get("alignment", 0.0):
        near = table[label]
        loss = loss + weight * ((fused.float() - near).square() * present(near)[:, None]).mean()
    if weight := method["predictions"] if name == "fedhkd" else method.get("distillation", 0.0):
        there = present(table)
        guess = (r.model.scores(table).float() / 0.5).softmax(1)
        distances = torch.linalg.vector_norm(guess - r.tables["predicted"], dim=1)
        loss = loss + weight * ((distances * there).sum() / there.sum().clamp_min(1))
    if weight := method["representations"] if name == "fedhkd" else method.get("distillation", 0.0):
        near = table[label]
        loss = loss + weight * (torch.linalg.vector_norm(fused.float() - near, dim=1) * present(near)).mean()
    return loss


# passes without training ----------------------------------------------------------------------------------------------


def representing(r: Round, name: str) -> Sweep:
    """Writes unit vectors of all public samples into tables that exist from the start of the pass."""
    pairs, row = r.scenario["data"]["public"], 0

    def start(r: Round) -> None:
        nonlocal row
        row = 0
        for modality in r.modalities:
            r.outputs[f"{name}.{modality}"] = torch.zeros(pairs, r.model.dimension)

    def loss(r: Round, batch: Batch) -> None:
        nonlocal row
        size = len(next(iter(batch.values())))
        for modality in r.modalities:
            rows = r.outputs[f"{name}.{modality}"][row : row + size]
            rows.copy_(r.model.embed(modality, batch[modality])[: len(rows)])
        row += size

    size = min(r.training["batch"], pairs)
    return Sweep(loss, r.modalities, size, -(-pairs // size), train=False, start=start)


def class_means(r: Round, tables: list[str], of: list[str], size: int, count: int) -> Sweep:
    """Mean features of each class."""

    def start(r: Round) -> None:
        for table in tables:
            r.outputs[f"mean.{table}"] = torch.zeros(r.tables[table].shape)
            r.outputs[f"seen.{table}"] = torch.zeros(len(r.tables[table]))

    def loss(r: Round, batch: Batch) -> None:
        if not of:
            return
        features = both(r, batch, PAIR)
        if "fused" in of or "predicted" in of:
            features["fused"] = r.model.fuse(*(features[m] for m in PAIR))
        if "predicted" in of:
            features["predicted"] = (r.model.scores(features["fused"]).float() / 0.5).softmax(1)
        real = (batch["label"] >= 0).to(torch.float32)
        label = batch["label"].clamp_min(0)
        for table in of:
            r.outputs[f"mean.{table}"].index_add_(0, label, features[table].float() * real[:, None])
            r.outputs[f"seen.{table}"].index_add_(0, label, real)

    def finish(r: Round) -> None:
        for table in tables:
            seen = r.outputs[f"seen.{table}"][:, None]
            r.outputs[f"mean.{table}"].div_(torch.where(seen > 0, seen, 1.0))

    return Sweep(loss, [*r.modalities, "label"], size, count, train=False, start=start, finish=finish)


def scoring(r: Round) -> Sweep:
    """Confusion matrix, and hits among the five best classes."""
    classes = r.shapes["image"]["classes"]

    def start(r: Round) -> None:
        r.outputs["confusion"] = torch.zeros(classes, classes)
        if classes > 5:
            r.outputs["top5"] = torch.zeros(1)

    def loss(r: Round, batch: Batch) -> None:
        scores = r.model.classify(batch)
        guess, real = scores.argmax(-1), (batch["label"] >= 0).to(torch.float32)
        label = batch["label"].clamp_min(0)
        r.outputs["confusion"].view(-1).index_add_(0, label * classes + guess, real)
        if classes > 5:
            own = scores.gather(1, label[:, None])
            above, tied = (scores > own).sum(1), (scores == own).sum(1)
            hits = ((5 - above) / tied.clamp_min(1)).clamp(0, 1)
            r.outputs["top5"][0] += (hits * real).sum()

    def finish(r: Round) -> None:
        confusion = r.outputs["confusion"]
        hits, true, guessed = torch.stack([torch.stack([confusion.diagonal(), confusion.sum(1), confusion.sum(0)])])[0]
        r.outputs["recall"] = (hits / true.clamp_min(1)).mean()
        r.outputs["precision"] = (hits / guessed.clamp_min(1)).mean()

    size, samples = r.scenario["evaluation"]["batch"], r.scenario["data"]["test"]
    return Sweep(
        loss, [*r.modalities, "label"], size, -(-samples // size), train=False, start=start, finish=finish
    )  # fmt: skip


def scoring_tokens(r: Round) -> Sweep:
    """Sums of cross-entropies, hits and tokens."""

    def start(r: Round) -> None:
        r.outputs["sums"] = torch.zeros(3)

    def loss(r: Round, batch: Batch) -> None:
        after = batch["next"].masked_fill(batch["label"][:, None] == -1, -1).flatten()
        hidden = r.model.towers["text"](batch["text"]).flatten(0, 1)
        chunk = r.training["loss_chunk"] or len(hidden)
        for begin in range(0, len(hidden), chunk):
            score(r, hidden[begin : begin + chunk], after[begin : begin + chunk])

    def score(r: Round, hidden: Tensor, after: Tensor) -> None:
        scores = F.linear(hidden, r.model.words).float()
        real = (after >= 0).float()
        r.outputs["sums"][0] += F.cross_entropy(scores, after, ignore_index=-1, reduction="sum")
        r.outputs["sums"][1] += ((scores.argmax(1) == after) * real).sum()
        r.outputs["sums"][2] += real.sum()

    size, samples = r.scenario["evaluation"]["batch"], r.scenario["data"]["test"]
    return Sweep(loss, ["text", "label", "next"], size, -(-samples // size), train=False, start=start)


# rounds ---------------------------------------------------------------------------------------------------------------


def sweeps_of(r: Round) -> Iterator[Sweep]:
    """The passes of a round in order, after the tables that it needs are in memory."""
    name, method, training, kind = r.method["name"], r.method, r.training, r.configuration["kind"]
    samples = r.scenario["data"]["samples"][kind]
    size = min(training["batch"], samples)
    fields = [*r.modalities, "label"]
    task = r.scenario["data"]["tasks"].get(kind, "classify")
    if task == "next-token":
        fields.append("next")
    losses = {"classify": classify, "retrieve": contrast, "next-token": predict}
    private = Sweep(losses[task], fields, size, samples // size)
    pairs = r.scenario["data"]["public"]
    public = min(training["batch"], pairs)
    dimension = r.model.dimension
    if name == "fedmd":
        first = []
        if method["digest"]:
            r.tables = {m: torch.randn(pairs, dimension) for m in r.modalities}
            first = [Sweep(distil, [*r.modalities, "index"], public, pairs // public)]
        yield from (*first, *([private] * training["epochs"]), representing(r, "represented"))
    elif name == "creamfl":
        inter, intra = method["inter"], method["intra"]
        others = ["text" if m == "image" else "image" for m in r.modalities]
        needed = [m for m in PAIR if (intra and m in r.modalities) or (inter and m in others)]
        r.tables = {m: torch.randn(pairs, dimension) for m in needed}
        if intra and method["old"] == "table":
            yield representing(r, "before")
        for _ in range(training["epochs"]):
            yield private
            if needed:
                yield Sweep(contrast_public, [*r.modalities, "index"], public, pairs // public)
        yield representing(r, "represented")
    elif name in ("fedpac", "fedhkd", "pmcmfl"):
        tables = {"fedpac": ["fused"], "fedhkd": ["fused"], "pmcmfl": ["image", "text", "fused"]}[name]
        if method.get("predictions") or method.get("distillation"):
            tables.append("predicted")
        classes = r.shapes["image"]["classes"]
        widths = {**r.model.widths, "fused": r.model.fused_width, "predicted": classes}
        r.tables = {table: torch.randn(classes, widths[table]) for table in tables}
        for _ in range(training["epochs"]):
            yield Sweep(completed, fields, size, samples // size)
        of = tables
        if "-" not in kind:  # what samples of one modality contribute to
            alone = [kind] if name == "pmcmfl" else tables
            of = alone if method.get("prototypes_of") == "all" else []
        yield class_means(r, tables, of, size, -(-samples // size))
    else:
        for _ in range(training["epochs"]):
            yield private


def work(configuration: Json) -> None:
    """Build the model, and do everything that the configuration asks for."""
    attention: AbstractContextManager[Any] = nullcontext()
    choice = configuration["scenario"]["training"]["attention"]
    if configuration["work"] == "evaluate" and choice == "flash":
        choice = "device"
    if choice != "device":
        attention = sdpa_kernel(SDPBackend.MATH if choice == "math" else SDPBackend.FLASH_ATTENTION)
    half = any(tower.get("dtype") == "bfloat16" for tower in towers_of(configuration["scenario"]["model"]).values())
    torch.set_default_dtype(torch.bfloat16 if half else torch.float32)
    model = make_model(configuration)
    torch.set_default_dtype(torch.float32)
    r = Round(configuration, model)
    with attention:
        if configuration["work"] == "evaluate":
            predicts = "next-token" in configuration["scenario"]["data"]["tasks"].values()
            look(r, scoring_tokens(r) if predicts else scoring(r), nullcontext)
        else:
            train(r)


def train(r: Round) -> None:
    """A client's round."""
    training, method = r.training, r.method
    if method["name"] == "fedprox":
        r.before = {n: p.detach().clone() for n, p in r.model.named_parameters() if p.requires_grad}
    if method["name"] == "creamfl" and method["old"] == "copy" and method["intra"]:
        r.before = copy.deepcopy(r.model).requires_grad_(False).eval()
    half = training["precision"] == "bfloat16"

    def precision() -> AbstractContextManager[Any]:
        return torch.autocast("cpu", torch.bfloat16) if half else nullcontext()

    taken = next(r.model.parameters()).dtype
    sweeps = list(sweeps_of(r))
    trained = [p for p in r.model.parameters() if p.requires_grad]
    if training["step_in_backward"]:
        for parameter in trained:
            step_alone(parameter, make_optimizer(training, [parameter]))
    optimizer = make_optimizer(training, trained)
    every, total = training["accumulation"], torch.zeros(())

    def update() -> None:
        if training["clip"]:
            several = training["implementation"] != "for-loop"
            nn.utils.clip_grad_norm_(trained, training["clip"], foreach=several)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for sweep in sweeps:
        if not sweep.train:
            look(r, sweep, precision)
            continue
        r.model.train()
        pending = 0
        for number in range(1, sweep.count + 1):
            given = make_batch(r, sweep.fields, sweep.batch)
            batch = {name: value.to(taken) if value.is_floating_point() else value for name, value in given.items()}
            with precision():
                loss = sweep.loss(r, batch)
            assert loss is not None
            (loss / every if every > 1 else loss).backward()
            pending += 1
            if pending == every or number == sweep.count:
                update()
                pending = 0
            total.add_(loss.detach())
            del given, batch, loss


def step_alone(parameter: nn.Parameter, optimizer: torch.optim.Optimizer) -> None:
    """Let a parameter take its step when its gradient is whole, and lose the gradient."""

    def step(_: Tensor) -> None:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    parameter.register_post_accumulate_grad_hook(step)


def look(r: Round, sweep: Sweep, precision: Callable[[], AbstractContextManager[Any]]) -> None:
    """A pass without training."""
    r.model.eval()
    with torch.no_grad():
        if sweep.start:
            sweep.start(r)
        for _ in range(sweep.count):
            batch = make_batch(r, sweep.fields, sweep.batch)
            with precision():
                sweep.loss(r, batch)
            del batch
        if sweep.finish:
            sweep.finish(r)
