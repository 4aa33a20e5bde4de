"""Clients that attack: the same ones in every round, drawn once for a run."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from edgefl import seeds, units

LABEL_FLIP = "label-flip"
FACTORS = {"sign-flip": 1.0, "scaling": 10.0}
"""Default factors of the attacks that change an update."""


class AttackOptions(BaseModel):
    """``attack: {share: 20%, kind: sign-flip}``: clients that attack in every round in which they take part.

    - ``sign-flip`` sends base - factor (value - base), ``scaling`` base + factor (value - base), for the tensors that
      the server averages.
    - ``label-flip`` trains honestly, on private samples whose label is classes - 1 - label.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    share: units.Share = Field(
        description="Share of all clients that attack, rounded to whole clients, but at least one; drawn once by seed."
    )
    kind: Literal["sign-flip", "scaling", "label-flip"] = Field(
        description="What they do: send their change with the opposite sign, send it enlarged, or train on flipped "
        "labels."
    )
    factor: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        default=None,
        description="Factor on the change that sign-flip and scaling send; null: 1 for sign-flip, 10 for scaling.",
    )

    @model_validator(mode="after")
    def _used(self) -> AttackOptions:
        if self.factor is not None and self.kind not in FACTORS:
            raise ValueError(f"factor belongs to kind {' or '.join(FACTORS)}, not {self.kind}")
        return self

    @property
    def strength(self) -> float:
        """The signed factor on an attacker's change: 1 for label-flip, which leaves it as it is."""
        factor = FACTORS.get(self.kind, 1.0) if self.factor is None else self.factor
        return -factor if self.kind == "sign-flip" else factor


def draw_attackers(options: AttackOptions | None, clients: int, seed: int) -> NDArray[np.bool_]:
    """Which clients attack, `[clients]`; a larger share adds attackers to those of a smaller one."""
    attackers: NDArray[Any] = np.zeros(clients, bool)
    if options is None or not options.share or not clients:
        return attackers
    count = min(max(int(options.share * clients + 0.5), 1), clients)
    attackers[seeds.generator(seed, "attackers").permutation(clients)[:count]] = True
    return attackers
