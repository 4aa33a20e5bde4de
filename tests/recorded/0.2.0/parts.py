"""A part of each kind, as users write them: a later version of edgefl must load it and play it unchanged."""

from dataclasses import replace
from math import ceil, prod
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import nn
from torch.nn import functional as F

import edgefl
from edgefl import units
from edgefl.data import Collection, DataSet
from edgefl.devices import Availability, Budget
from edgefl.methods import ByUpdate, Method, ServerOptimizer
from edgefl.models.adapters import Adapter, chosen_layers, sides
from edgefl.schedules import PARTS, Schedule, Stage
from edgefl.simulation import Policy, Selection
from edgefl.simulation.selection import Chosen
from edgefl.training import Attack
from edgefl.work import Edit, RegisteredCodec
from edgefl.work.metrics import Metric
from edgefl.work.optimizer.rate_schedules import RateSchedule
from edgefl.work.scoring import ScoreClassify
from edgefl.work.steps import ClassifyStep
from edgefl.work.tasks import Task


def build(size, on_message):
    """200 pictures of stripes, across or along."""
    draw = np.random.default_rng(0)
    label = draw.integers(0, 2, 200)
    images = np.zeros((200, 1, 16, 16), dtype=np.uint8)
    for image, along in zip(images[:, 0], label, strict=True):
        (image.T if along else image)[:: draw.integers(2, 5)] += 127
    return Collection(("across", "along"), label, group=np.arange(200), images=images)


STRIPES = DataSet(build, packages=("numpy",), revision=1)
edgefl.register("data set", "stripes")(STRIPES)


@edgefl.register("partition", "in-turn")
def in_turn(labels, clients, argument, rng):
    """Client k has every sample whose place is k modulo the clients."""
    return [np.arange(client, len(labels), clients) for client in range(clients)]


@edgefl.register("tower", "net")
class Net(nn.Module):
    blocks = "layers"

    def __init__(self, channels: int, hidden: int = 8, deep: int = 2):
        super().__init__()
        self.stem = nn.Conv2d(channels, hidden, 4, stride=4)
        self.layers = nn.ModuleList(nn.Conv2d(hidden, hidden, 3, padding=1) for _ in range(deep))
        self.norm = nn.LayerNorm(hidden)
        self.width = hidden

    def forward(self, image):
        x = self.stem(image)
        for layer in self.layers:
            x = x + layer(x).relu()
        return self.norm(x.mean((2, 3)))


@edgefl.register("schedule", "thaw")
class Thaw(Schedule):
    """First only what stands behind the blocks trains, then everything."""

    class Options(Schedule.Options):
        name: Literal["thaw"] = "thaw"
        warm_up: int = Field(1, ge=0, description="rounds in which embedding and blocks are frozen")
        rounds: int = Field(10, ge=1, description="rounds in all")

    def __init__(self, options, blocks):
        whole, zero = dict(blocks), dict.fromkeys(blocks, 0)
        warm_up = min(options.warm_up, options.rounds)
        frozen = Stage(1, depth=whole, first=whole, parts=("norm", "rep", "head"), rounds=warm_up)
        thawed = Stage(2, depth=whole, first=zero, parts=PARTS, rounds=options.rounds - warm_up)
        super().__init__((frozen, thawed))


@edgefl.register("selection", "smallest")
class Smallest(Selection):
    """The clients with the fewest samples."""

    class Options(Selection.Options):
        name: Literal["smallest"] = "smallest"

    def pick(self, share):
        ready = share.clients[share.candidates.ready(share.clients)]
        order = ready[np.argsort(share.candidates.samples(ready), kind="stable")]
        return Chosen(order[: share.count], len(share.clients), len(share.clients) - len(ready))


@edgefl.register("round policy", "half")
class Half(Policy):
    """A round ends once half of those who were asked are back."""

    class Options(Policy.Options):
        name: Literal["half"] = "half"

    def play(self, server):
        clients = server.choose()
        server.tell(len(clients))
        updates = yield from server.play_cohort(clients)
        if len(updates) >= server.options.quorum:
            server.aggregate(updates)
            return "completed"
        outcome = "below quorum" if len(clients) else server.empty_outcome()
        yield from server.tries_again(outcome, len(updates))
        return outcome

    def updates_needed(self, cohort, asked):
        return ceil(asked / 2)


@edgefl.register("aggregation", "geometric-median")
class GeometricMedian(ByUpdate):
    """The point with the smallest sum of distances to all updates, each weighted by its samples."""

    class Options(ByUpdate.Options):
        name: Literal["geometric-median"] = "geometric-median"

    def shares(self, group):
        distances = group.squared_distances()
        weights = torch.tensor(group.weights, dtype=torch.float64)
        shares = weights / weights.sum()
        for _ in range(20):
            away = distances @ shares - shares @ distances @ shares / 2
            shares = weights / away.clamp_min(1e-12).sqrt()
            shares = shares / shares.sum()
        return shares


@edgefl.register("server optimizer", "sign-step")
class SignStep(ServerOptimizer):
    """A step of equal size in every coordinate, along the sign of a running mean update."""

    class Options(ServerOptimizer.Options):
        name: Literal["sign-step"] = "sign-step"
        decay: float = Field(0.9, ge=0, lt=1, description="decay of the running mean")

    default_lr = 0.001
    keeps = ("mean",)

    def step(self, value, change, kept):
        mean = self.options.decay * kept.get("mean", torch.zeros_like(value)) + (1 - self.options.decay) * change
        return value + self.lr * mean.sign(), {"mean": mean}


@edgefl.register("codec", "signs")
class Signs(RegisteredCodec):
    """The sign of each number, eight in a byte, and one scale for each tensor."""

    class Options(RegisteredCodec.Options):
        dtype: Literal["signs"] = "signs"

    def wire(self, shape, dtype):
        return {":signs": ((-(-prod(shape) // 8),), "uint8"), ":scale": ((), "float32")}

    def encode(self, value, base):
        change = (value if base is None else value - base.to(value.dtype)).float().flatten()
        bits = torch.zeros(-(-len(change) // 8) * 8, dtype=torch.uint8)
        bits[: len(change)] = change >= 0
        powers = 2 ** torch.arange(8, dtype=torch.uint8)
        return {":signs": (bits.view(-1, 8) * powers).sum(1, dtype=torch.uint8), ":scale": change.abs().mean()}

    def decode(self, wire, shape, dtype, base):
        powers = 2 ** torch.arange(8, dtype=torch.uint8)
        bits = (wire[":signs"][:, None] & powers).ne(0).flatten()[: prod(shape)]
        change = (bits.float() * 2 - 1).view(shape) * wire[":scale"]
        return (change if base is None else base.float() + change).to(dtype)


@edgefl.register("budget", "watts")
class Watts(Budget):
    """Highest power that a round draws."""

    noun, quantity = "power", units.WATTS
    summary = "Most watts that a device draws at any moment of a round."
    grows = True

    def round_amounts(self, price):
        return price.peak_watts


@edgefl.register("availability", "night-owls")
class NightOwls(Availability):
    """Even clients are awake in the first half of each day, odd ones in the second."""

    class Options(Availability.Options):
        day: float = Field(86400.0, gt=0, description="seconds of a day")

    def until(self, clients, at):
        half = self.options.day / 2
        over = np.floor(at / half)
        return over % 2 == clients % 2, (over + 1) * half


@edgefl.register("attack", "three-back")
class ThreeBack(Attack):
    """Sends a multiple of its change back."""

    class Options(Attack.Options):
        times: float = Field(3.0, gt=0, description="how many times its change")

    def attacked_change(self, item, change):
        return -self.options.times * change


@edgefl.register("metric", "weighted_f1")
def weighted_f1(confusion):
    """F1 of each class, weighted by its samples."""
    hits, true, predicted = confusion.diagonal(), confusion.sum(1), confusion.sum(0)
    f1 = 2 * hits / (true + predicted).clamp_min(1)
    return (f1 * true).sum() / true.sum().clamp_min(1)


@edgefl.register("metric", "ece")
class CalibrationError(Metric):
    """Mean distance of confidence and accuracy, over bins of confidence."""

    class Options(Metric.Options):
        bins: int = Field(10, ge=1, description="bins of the highest probability")

    adds = True

    @property
    def sums(self):
        return (self.options.bins,)

    def add(self, scores, label, batch):
        confidence, predicted = scores.softmax(-1).max(-1)
        over = confidence - (predicted == label).float()
        place = (confidence * self.options.bins).long().clamp_max(self.options.bins - 1)
        return over.new_zeros(len(label), self.options.bins).scatter(1, place[:, None], over[:, None])

    def value(self, confusion, total):
        return total.abs().sum() / confusion.samples


edgefl.register("optimizer", "rmsprop")(torch.optim.RMSprop)


@edgefl.register("rate schedule", "polynomial")
class Polynomial(RateSchedule):
    """A power of the share of rounds that are left."""

    power: float = Field(1.0, gt=0, description="1 falls in a line")

    def shape(self, passed, rounds):
        return (1 - passed / rounds) ** self.power


def turned(batch):
    """Each picture in all four turns; a repeated sample keeps the label -1."""
    images = torch.cat([batch["image"].rot90(turn, (2, 3)) for turn in range(4)])
    labels = torch.cat([torch.where(batch["label"] < 0, -1, turn) for turn in range(4)])
    return {"image": images, "label": labels}


@edgefl.register("step", "turns")
class Turns(ClassifyStep):
    def loss(self, ctx, batch, pattern, pass_):
        return super().loss(ctx, turned(batch), pattern, pass_)


@edgefl.register("step", "score-turns")
class ScoreTurns(ScoreClassify):
    def loss(self, ctx, batch, pattern, pass_):
        super().loss(ctx, turned(batch), pattern, pass_)


@edgefl.register("task", "rotation")
class Rotation(Task):
    """By which quarter turn a picture was turned."""

    step, score = "turns", "score-turns"

    @classmethod
    def outputs(cls, classes):
        return 4


def add(layer, inputs, output):
    return output + layer.bottleneck(output)


@edgefl.register("adapter", "bottleneck")
class Bottleneck(Adapter):
    """A small net after the MLP of each block."""

    class Options(Adapter.Options):
        width: int = Field(4, ge=1, description="width of the small net")

    @classmethod
    def attach(cls, module, adapter):
        for _, layer in chosen_layers(module, ["mlp.fc2"]):
            size = sides(layer)[1]
            layer.bottleneck = nn.Sequential(
                nn.Linear(size, adapter["width"]), nn.GELU(), nn.Linear(adapter["width"], size)
            )
            nn.init.zeros_(layer.bottleneck[2].weight)
            nn.init.zeros_(layer.bottleneck[2].bias)
            layer.register_forward_hook(add)

    @classmethod
    def trains(cls, adapter, name):
        return ".bottleneck." in name


def drop(layer, inputs, output):
    return F.dropout(output, 0.1, layer.training)


@edgefl.register("edit", "drop")
class Drop:
    """``args.layers`` have dropout."""

    @staticmethod
    def names(edit):
        return set()

    @staticmethod
    def restrict(edit, active, received):
        layers = [layer for layer in edit.args["layers"] if active(f"{layer}.weight")]
        return Edit(edit.name, {**edit.args, "layers": layers}) if layers else None

    @staticmethod
    def apply(edit, module, received):
        for name in edit.args["layers"]:
            layer = module.get_submodule(name)
            layer.dropping = layer.register_forward_hook(drop)

    @staticmethod
    def fold(edit, module):
        for name in edit.args["layers"]:
            layer = module.get_submodule(name)
            layer.dropping.remove()
            del layer.dropping


@edgefl.register("method", "dropping")
class Dropping(Method):
    """FedAvg with dropout in the blocks."""

    def work(self, kind, round):
        work = super().work(kind, round)
        layers = [name.removesuffix(".weight") for name in work.trainable if name.endswith("mlp.fc1.weight")]
        return replace(work, edits=(Edit("drop", {"layers": layers}),))
