"""FedHKD (Chen et al. 2023): distils class means of features and of soft predictions (hyper-knowledge).

This is the variant that PmcmFL compares with: one model for all clients, and noise for missing modalities.  FedHKD's
optional privacy noise on payloads is left out.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat

from edgefl.methods.prototypes.losses import PrototypeArgs
from edgefl.methods.prototypes.prototype_method import LibraryMethod


class FedHKD(LibraryMethod):
    """Adds ``a mean_j ||softmax(G(H_j) / T) - Q_j|| + b mean ||h - H_y||`` from round 2 on.

    H [classes, dim] are the mean joint features of each class and Q [classes, classes] the mean predictions at
    temperature T; both travel down and up.
    """

    class Options(LibraryMethod.Options):
        """``method: {name: fedhkd, predictions: 0.05, representations: 0.05}``."""

        name: Literal["fedhkd"] = "fedhkd"
        predictions: NonNegativeFloat = Field(
            0.05, description="weight of the distance between predictions (a in the paper)"
        )
        representations: NonNegativeFloat = Field(
            0.05, description="weight of the distance between features (b in the paper)"
        )
        temperature: PositiveFloat = Field(0.5, description="temperature of the soft predictions")

    summary = "class means of features and soft predictions are distilled, noise for missing modalities (FedHKD)"
    paper = "Chen et al. 2023"
    options: FedHKD.Options

    @property
    def tables(self) -> tuple[str, ...]:
        """H, and Q where predictions are distilled."""
        if self.options.predictions:
            return ("fused", "predicted")
        return ("fused",) if self.options.representations else ()

    def alone(self, modality: str) -> tuple[str, ...]:
        """A sample with one modality has a joint feature as well, completed by the mask."""
        return ("fused", "predicted")

    def terms(self, round: int) -> PrototypeArgs:
        """Both terms, from round 2 on."""
        return {
            "predictions": self.options.predictions if round > 1 else 0.0,
            "representations": self.options.representations if round > 1 else 0.0,
            "softening": self.options.temperature,
        }
