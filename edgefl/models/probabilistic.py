"""Towers whose embeddings are Gaussians on which a pair's match depends by chance (PCME, Chun et al., CVPR 2021)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from edgefl.models.client import ClientModel
from edgefl.models.tower import initialise

NARROW = -4.0
"""Logarithm of the deviations before training: samples begin near their mean, a unit vector."""

SCALE = SHIFT = 15.0
"""First values of the sigmoid's slope and place, as the public code: even odds at distance 1."""


class Deviations(nn.Module):
    """The logarithm of a Gaussian's deviations from its tower's feature, and what turns distance into odds."""

    def __init__(self, widths: Mapping[str, int]):
        super().__init__()
        for modality, width in widths.items():
            layer = nn.Linear(width, width)
            initialise(layer)
            nn.init.constant_(layer.bias, NARROW)
            self.add_module(modality, layer)
        self.scale = nn.Parameter(torch.full((1,), SCALE))
        self.shift = nn.Parameter(torch.full((1,), SHIFT))

    def forward(self, modality: str, feature: Tensor) -> Tensor:
        """``[batch, dim] -> [batch, dim]``."""
        return cast(Tensor, self.get_submodule(modality)(feature))


class ProbabilisticModel(ClientModel):
    """A retrieval model with deviations beside its means; ``embed`` is the mean."""

    def __init__(self, description: Mapping[str, Any]):
        super().__init__(description)
        if not hasattr(self, "joint"):
            self.joint = nn.Module()
        self.joint.head = Deviations(self.widths)

    @property
    def deviations(self) -> Deviations:
        """What the model has beyond its towers."""
        return cast(Deviations, self.joint.head)

    def gaussian(self, modality: str, x: Tensor) -> tuple[Tensor, Tensor]:
        """The mean on the unit sphere, and the logarithm of the deviations: ``[batch, dim]`` each, in float32."""
        feature = self.feature(modality, x)
        spread = self.deviations(modality, feature)
        return nn.functional.normalize(feature.float(), dim=-1), spread.float()


def build_probabilistic(description: Mapping[str, Any]) -> ProbabilisticModel:
    """The model named ``probabilistic``."""
    return ProbabilisticModel(description)
