"""Towers with Gaussian embeddings, from which the probability of a match follows (PCME, Chun et al., CVPR 2021)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor, nn

from edgefl.models.client import ClientModel
from edgefl.models.model import ModelDescription
from edgefl.models.tower import initialise

NARROW = -4.0
"""Initial logarithm of the standard deviations: 0.018, so that samples start near their mean, a unit vector.

A choice, not measured: with larger ones the first samples of all classes lie among each other.
"""

SCALE = SHIFT = 15.0
"""Initial slope and shift of the sigmoid, as in PCME's public code: match probability 1/2 at distance 1."""


class Deviations(nn.Module):
    """Predicts the log standard deviations of the embeddings, and holds the sigmoid's ``scale`` and ``shift``.

    The sigmoid of ``-scale * distance + shift`` is the probability that two samples match.
    """

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
        """Log standard deviations ``[batch, dim]`` from a tower's feature ``[batch, dim]``."""
        return cast(Tensor, self.get_submodule(modality)(feature))


class ProbabilisticModel(ClientModel):
    """Towers whose embeddings have standard deviations, for probabilistic retrieval (PCME).

    ``embed`` returns their means.
    """

    def __init__(self, description: ModelDescription):
        super().__init__(description)
        if not hasattr(self, "joint"):
            self.joint = nn.Module()
        self.joint.head = Deviations(self.widths)

    @property
    def deviations(self) -> Deviations:
        """The layers that the model has in addition to its towers."""
        return cast(Deviations, self.joint.head)

    def gaussian(self, modality: str, x: Tensor) -> tuple[Tensor, Tensor]:
        """The L2-normalised mean and the log standard deviations: ``[batch, dim]`` each, float32."""
        feature = self.feature(modality, x)
        log_deviation = self.deviations(modality, feature)
        return nn.functional.normalize(feature.float(), dim=-1), log_deviation.float()
