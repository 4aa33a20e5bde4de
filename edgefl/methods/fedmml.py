"""FedMML: federated contrastive or supervised learning of two towers (LW-FedMML's end-to-end baseline).

With the schedule ``progressive`` it is Prog-FedMML, with ``layerwise`` LW-FedMML; the method itself is the same.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from pydantic import Field, PositiveFloat

from edgefl.methods.protocol import Method
from edgefl.work import Work
from edgefl.work.description import StepArgs


class FedMML(Method):
    """FedAvg of everything that trains, batch statistics included, on the paper's loss for each task.

    Pairs without classes: symmetric cross-entropy of ``z_a . z_b / temperature`` over the batch.  With classes, and
    for clients of one modality: cross-entropy.
    """

    tasks = ("classify", "retrieve")

    class Options(Method.Options):
        """``method: fedmml``."""

        name: Literal["fedmml"] = "fedmml"
        temperature: PositiveFloat = Field(
            0.05, description="temperature of the contrast between the two modalities of a pair; it is fixed"
        )
        captions: Literal["one", "all"] = Field(
            "one",
            description="captions of an image that train in an epoch: a random one (one), or all, each as a sample "
            "(all)",
        )

    summary = "contrast or cross-entropy on two towers, batch statistics averaged too (FedMML, LW- and Prog-FedMML)"
    paper = "Tun et al. 2024"
    options: FedMML.Options

    def work(self, kind: str, round: int) -> Work:
        """FedAvg's work with the paper's temperature, and one caption per image in each epoch."""
        work = super().work(kind, round)
        args: StepArgs = {"scale": 1 / self.options.temperature}
        if self.options.captions == "one" and "group" in self.setting.kinds[kind].extras:
            args["once"] = True
        passes = (replace(p, args={**p.args, **args}) if p.step == "contrast" else p for p in work.passes)
        return replace(work, passes=tuple(passes))
