"""FedPAC's feature alignment (Xu et al. 2023): joint features are pulled towards the prototype of their class.

This is the variant that PmcmFL compares with: one model for all clients, noise for missing modalities, and only
FedPAC's alignment, without its combination of classifiers.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeFloat

from edgefl.methods.prototypes.losses import PrototypeArgs
from edgefl.methods.prototypes.prototype_method import LibraryMethod


class FedPAC(LibraryMethod):
    """Adds ``weight * MSE(h, P_F[y])``, mean over batch and elements, from round 2 on; P_F [classes, dim] travels."""

    class Options(LibraryMethod.Options):
        """``method: {name: fedpac, weight: 1.0}``."""

        name: Literal["fedpac"] = "fedpac"
        weight: NonNegativeFloat = Field(
            1.0, description="weight of the alignment loss; PmcmFL's public code has 0.05 times the width"
        )

    summary = "features aligned with class prototypes, noise for missing modalities (FedPAC)"
    paper = "Xu et al. 2023"
    options: FedPAC.Options

    @property
    def tables(self) -> tuple[str, ...]:
        """The table of joint features, if they are aligned."""
        return ("fused",) if self.options.weight else ()

    def alone(self, modality: str) -> tuple[str, ...]:
        """A sample with one modality has a joint feature as well, completed by the mask."""
        return ("fused",)

    def terms(self, round: int) -> PrototypeArgs:
        """The alignment, from round 2 on."""
        return {"alignment": self.options.weight if round > 1 else 0.0}
