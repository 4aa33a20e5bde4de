"""DepthFL: clients train as many blocks as they can, each depth with a classifier of its own (Kim et al. 2023).

A client of a smaller depth has the first blocks with their exits; the schedule decides the depth.
"""

from __future__ import annotations

from dataclasses import replace
from math import exp
from typing import Any, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from edgefl.errors import MethodError
from edgefl.methods.depthfl.steps import WEIGHT
from edgefl.methods.protocol import Method
from edgefl.methods.setting import Kind, Setting
from edgefl.models.model import ModelDescription
from edgefl.work import Work

STEPS = {"classify": "classify-exits", "contrast": "contrast-exits"}


class DepthFL(Method):
    """The sum of the exits' losses, with mutual self-distillation; each part is averaged over clients that have it.

    ``L = sum_i L_i + w(t) / (d - 1) sum_i sum_{j != i} KL(p_j || p_i)`` over a client's d exits, with
    ``w(t) = distillation exp(-5 (1 - t / ramp)^2)`` after t < ramp rounds, and ``distillation`` afterwards.
    """

    tasks = ("classify", "retrieve")

    class Options(Method.Options):
        """``method: {name: depthfl, exits: 4}``."""

        name: Literal["depthfl"] = "depthfl"
        exits: Literal["all"] | PositiveInt = Field(
            "all",
            description="number of exits, which are classifiers at evenly spaced depths; all: one after every block",
        )
        distillation: float = Field(1.0, ge=0, description="weight of the distillation between exits; 0: none")
        ramp: NonNegativeInt = Field(
            300,
            description="rounds in which the weight of the distillation rises from 0.7% to its full value; 0: at once",
        )
        evaluate: Literal["deepest", "ensemble"] = Field(
            "deepest",
            description="what the server evaluates: the deepest exit, or the mean of all exits' scores (ensemble)",
        )

    summary = "a classifier at every depth, distilled from the others; clients train as deep as they can (DepthFL)"
    paper = "Kim et al. 2023"
    options: DepthFL.Options

    def __init__(self, options: Any, setting: Setting):
        kinds = {
            name: replace(kind, model=self.with_exits(kind, options.exits)) for name, kind in setting.kinds.items()
        }
        super().__init__(options, replace(setting, kinds=kinds))

    @staticmethod
    def with_exits(kind: Kind, exits: Literal["all"] | int) -> ModelDescription:
        """A kind's model with exits.  Raises MethodError for more exits than blocks, or without towers."""
        if kind.model["name"] == "exits":  # of a setting that has been through here: shapes alone are made from it
            return kind.model
        if kind.model["name"] != "towers":
            raise MethodError(f"depthfl needs a model of towers; {kind.name} clients have {kind.model['name']!r}")
        counts = {modality: tower["blocks"] for modality, tower in kind.model["towers"].items()}
        least = min(counts, key=lambda modality: counts[modality])
        if exits != "all" and exits > counts[least]:
            raise MethodError(f"method.exits is {exits}, but the {least} tower has only {counts[least]} blocks")
        return {**kind.model, "name": "exits", "exits": counts[least] if exits == "all" else exits}

    def work(self, kind: str, round: int) -> Work:
        """FedAvg's work with the losses of all exits."""
        work = super().work(kind, round)
        passes = tuple(replace(p, step=STEPS[p.step]) for p in work.passes)
        return replace(work, passes=passes, scalars={**work.scalars, WEIGHT: self.weight(round)})

    def weight(self, round: int) -> float:
        """The weight of distillation in a round (from 1)."""
        left = 1 - min((round - 1) / self.options.ramp, 1) if self.options.ramp else 0
        return float(self.options.distillation * exp(-5 * left**2))

    def evaluate(self, kind: str, split: str) -> Work:
        """FedAvg's evaluation, at the deepest exit or of the ensemble of all exits."""
        work = super().evaluate(kind, split)
        return replace(work, model={**work.model, "ensemble": True}) if self.options.evaluate == "ensemble" else work
