"""FedProx: FedAvg with a proximal term that keeps clients near the received model (Li et al. 2020)."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from pydantic import Field

from edgefl.methods.protocol import Method
from edgefl.work import Work


class FedProx(Method):
    """Adds ``mu / 2 ||w - w0||^2`` to every client's loss; w0 is a frozen copy that the client keeps in memory."""

    class Options(Method.Options):
        """``method: {name: fedprox, mu: 0.01}``."""

        name: Literal["fedprox"] = "fedprox"
        mu: float = Field(0.001, ge=0, description="weight mu of the proximal term")
        norm: Literal["squared", "tensor"] = Field(
            "squared",
            description="norm in the proximal term: the squared norm of all parameters (squared), or the sum of each "
            "tensor's norm (tensor, FedCola's public code)",
        )

    summary = "FedAvg with a proximal term in the client's loss"

    def work(self, kind: str, round: int) -> Work:
        """FedAvg's work with the proximal term in each pass."""
        work = super().work(kind, round)
        args = {"proximal": self.options.mu, "proximal_norm": self.options.norm}
        passes = tuple(replace(p, args={**p.args, **args}) for p in work.passes)
        return replace(work, passes=passes, reference=True)
