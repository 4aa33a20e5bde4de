"""Fields of a scenario's ``aggregation`` section: how the server combines updates."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveFloat, model_validator

ADAPTIVE = ("adagrad", "adam", "yogi")
"""Server optimizers that divide by the root of a second moment."""
KRUM = ("krum", "multi-krum")
"""Rules that keep whole updates by their distances to others."""


class AggregationOptions(BaseModel):
    """``aggregation: {rule: median, clip: 1.0, optimizer: adam}``; for every method that averages parameters."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rule: Literal["mean", "median", "trimmed-mean", "krum", "multi-krum"] = Field(
        "mean",
        description="how the updates of a parameter are combined: mean by samples, median or trimmed mean of "
        "each coordinate, or only the whole update closest to most others (krum) or the mean of several such "
        "(multi-krum)",
    )
    trim: float | None = Field(
        None,
        ge=0,
        lt=0.5,
        description="share of the smallest and of the largest values that trimmed-mean drops; null: 0.1",
    )
    attackers: NonNegativeInt | None = Field(
        None,
        description="attackers f that krum and multi-krum assume among the m updates that they compare; in a group "
        "that is too small for so many, and with null, the largest f with 2f + 2 < m",
    )
    clip: PositiveFloat | None = Field(
        None, description="largest L2 norm of a client's whole update; a longer one is scaled down; null: no clipping"
    )
    non_finite: Literal["reject", "keep"] = Field(
        "reject",
        description="what happens to an update with a NaN or an infinity: it is left out and the record names "
        "its client (reject), or it is used (keep)",
    )
    compensation: bool = Field(
        False,
        description="whether a parameter's mean is over the samples of all the kind's clients in the cohort, not "
        "only of those that sent it",
    )
    optimizer: Literal["average", "momentum", "adagrad", "adam", "yogi"] = Field(
        "average", description="the server's step along the mean update (Reddi et al. 2021)"
    )
    lr: PositiveFloat | None = Field(
        None, description="the server's learning rate; null: 1, or 0.01 for adagrad, adam and yogi"
    )
    momentum: float | None = Field(None, ge=0, lt=1, description="momentum of optimizer: momentum; null: 0.9")
    beta1: float | None = Field(
        None, ge=0, lt=1, description="decay of the mean update, of adagrad, adam and yogi; null: 0.9, or 0 for adagrad"
    )
    beta2: float | None = Field(
        None, ge=0, lt=1, description="decay of the squared updates, of adam and yogi; null: 0.99"
    )
    tau: PositiveFloat | None = Field(
        None, description="number added to the root of the squared updates, of adagrad, adam and yogi; null: 0.001"
    )

    @model_validator(mode="after")
    def _used(self) -> AggregationOptions:
        optimizers_of = {"momentum": ("momentum",), "beta1": ADAPTIVE, "beta2": ADAPTIVE[1:], "tau": ADAPTIVE}
        for name, optimizers in optimizers_of.items():
            if getattr(self, name) is not None and self.optimizer not in optimizers:
                raise ValueError(f"{name} belongs to optimizer {' or '.join(optimizers)}, not {self.optimizer}")
        if self.trim is not None and self.rule != "trimmed-mean":
            raise ValueError(f"trim belongs to rule trimmed-mean, not {self.rule}")
        if self.attackers is not None and not self.compares:
            raise ValueError(f"attackers belongs to rule {' or '.join(KRUM)}, not {self.rule}")
        return self

    @property
    def compares(self) -> bool:
        """Whether the rule compares whole updates with each other, and not the values of one parameter."""
        return self.rule in KRUM

    @property
    def plain(self) -> bool:
        """Whether all fields but ``non_finite`` have their defaults."""
        return self.model_copy(update={"non_finite": "reject"}) == MEAN


MEAN = AggregationOptions.model_validate({})
"""The defaults: the mean by samples."""
