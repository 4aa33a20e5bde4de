"""Parts of the pages on own parts, data and methods, which register them in a notebook there."""

from dataclasses import replace
from functools import partial

import numpy as np
import torch
from pydantic import Field
from torch import nn
from torch.nn import functional as F

from edgefl.devices import Availability
from edgefl.methods import Method
from edgefl.models.adapters import Adapter, chosen_layers, sides
from edgefl.training import Attack
from edgefl.work import Edit
from edgefl.work.metrics import Metric
from edgefl.work.optimizer.rate_schedules import RateSchedule
from edgefl.work.scoring import ScoreClassify
from edgefl.work.steps import ClassifyStep
from edgefl.work.tasks import Task


def weighted_f1(confusion):
    """F1 of each class, weighted by its samples."""
    hits, true, predicted = confusion.diagonal(), confusion.sum(1), confusion.sum(0)
    f1 = 2 * hits / (true + predicted).clamp_min(1)
    return (f1 * true).sum() / true.sum().clamp_min(1)


class Sure(Metric):
    """How often the model gives its class more than this probability."""

    class Options(Metric.Options):
        above: float = Field(0.5, ge=0, lt=1, description="the probability")

    adds = True

    def add(self, scores, label, batch):
        return (scores.softmax(-1).amax(-1) > self.options.above).float()

    def value(self, confusion, total):
        return total / confusion.samples


class RMSprop(torch.optim.RMSprop):
    """Torch's, by a name."""


class Polynomial(RateSchedule):
    """A power of the share of rounds that are left."""

    power: float = Field(1.0, gt=0, description="1 falls in a line")

    def shape(self, passed, rounds):
        return (1 - passed / rounds) ** self.power


class NightOwls(Availability):
    """Even clients are awake in the first half of each day, odd ones in the second."""

    class Options(Availability.Options):
        day: float = Field(86400.0, gt=0, description="seconds of a day")

    def until(self, clients, at):
        half = self.options.day / 2
        over = np.floor(at / half)  # half days that have passed
        return over % 2 == clients % 2, (over + 1) * half


class ThreeBack(Attack):
    """Sends a multiple of its change back."""

    class Options(Attack.Options):
        times: float = Field(3.0, gt=0, description="how many times its change")

    def changed(self, item, change):
        return -self.options.times * change


def turned(batch):
    """Each picture in all four turns; a repeated sample keeps the label -1."""
    images = torch.cat([batch["image"].rot90(turn, (2, 3)) for turn in range(4)])
    labels = torch.cat([torch.where(batch["label"] < 0, -1, turn) for turn in range(4)])
    return {"image": images, "label": labels}


class Turns(ClassifyStep):
    def loss(self, ctx, batch, pattern, pass_):
        return super().loss(ctx, turned(batch), pattern, pass_)


class ScoreTurns(ScoreClassify):
    def loss(self, ctx, batch, pattern, pass_):
        super().loss(ctx, turned(batch), pattern, pass_)


class Rotation(Task):
    """By which quarter turn a picture was turned (Gidaris et al. 2018)."""

    step, score = "turns", "score-turns"

    @classmethod
    def outputs(cls, classes):
        return 4


def add(layer, inputs, output):
    return output + layer.bottleneck(output)


class Bottleneck(Adapter):
    """A small net after the MLP of each block (Houlsby et al. 2019)."""

    class Options(Adapter.Options):
        width: int = Field(4, ge=1, description="width of the small net")

    @classmethod
    def attach(cls, module, adapter):
        for _, layer in chosen_layers(module, ["mlp.fc2"]):
            size = sides(layer)[1]
            layer.bottleneck = nn.Sequential(
                nn.Linear(size, adapter["width"]), nn.GELU(), nn.Linear(adapter["width"], size)
            )
            nn.init.zeros_(layer.bottleneck[2].weight)  # the adapted model begins as the model itself
            nn.init.zeros_(layer.bottleneck[2].bias)
            layer.register_forward_hook(add)

    @classmethod
    def trains(cls, adapter, name):
        return ".bottleneck." in name


def drop(share, layer, inputs, output):
    return F.dropout(output, share, layer.training)


class Drop:
    """``args.layers`` have dropout of ``args.share``."""

    @staticmethod
    def names(edit):
        return set()  # it adds no parameter

    @staticmethod
    def restrict(edit, active, received):
        layers = [layer for layer in edit.args["layers"] if active(f"{layer}.weight")]
        return Edit(edit.name, {**edit.args, "layers": layers}) if layers else None

    @staticmethod
    def apply(edit, module, received):
        for name in edit.args["layers"]:
            layer = module.get_submodule(name)
            layer.dropping = layer.register_forward_hook(partial(drop, edit.args["share"]))

    @staticmethod
    def fold(edit, module):
        for name in edit.args["layers"]:
            layer = module.get_submodule(name)
            layer.dropping.remove()
            del layer.dropping


class Dropping(Method):
    """FedAvg with dropout in the blocks."""

    class Options(Method.Options):
        share: float = Field(0.1, ge=0, lt=1, description="share of the outputs that are dropped")

    def work(self, kind, round):
        work = super().work(kind, round)
        layers = [name.removesuffix(".weight") for name in work.trainable if name.endswith("mlp.fc1.weight")]
        return replace(work, edits=(Edit("drop", {"layers": layers, "share": self.options.share}),))


def own_class(labels, clients, argument, rng):
    """Client k has the samples of the classes k, k + clients, ...; a share ``argument`` of them, or all."""
    parts = [rng.permutation(np.flatnonzero(labels % clients == client)) for client in range(clients)]
    return [part[: round((argument or 1) * len(part))] for part in parts]


class OneLayer(nn.Module):
    def __init__(self, description):
        super().__init__()
        self.layer = nn.Linear(description["size"], description["classes"])
