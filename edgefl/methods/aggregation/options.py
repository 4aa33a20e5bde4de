"""How the server makes one model of many: the fields of a scenario's ``aggregation`` section."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, model_validator

ADAPTIVE = ("adagrad", "adam", "yogi")
"""Server optimizers that divide by the root of a second moment."""


class AggregationOptions(BaseModel):
    """``aggregation: {rule: median, clip: 1.0, optimizer: adam}``; every method that averages parameters has these."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rule: Literal["mean", "median", "trimmed-mean"] = Field(
        "mean",
        description="of the updates of a parameter: mean by samples, or each coordinate's median or trimmed mean",
    )
    trim: float | None = Field(
        None, ge=0, lt=0.5, description="share of the smallest and of the largest values that trimmed-mean drops (0.1)"
    )
    clip: PositiveFloat | None = Field(None, description="largest L2 norm of a client's whole update")
    non_finite: Literal["reject", "keep"] = Field(
        "reject",
        description="an update with a NaN or an infinity is left out and its client named, or used all the same",
    )
    compensation: bool = Field(
        False,
        description="a parameter's mean is over the kind's samples in the cohort, and not only theirs who sent it",
    )
    optimizer: Literal["average", "momentum", "adagrad", "adam", "yogi"] = Field(
        "average", description="the server's step along the mean update (Reddi et al. 2021)"
    )
    lr: PositiveFloat | None = Field(None, description="the server's learning rate (1; adagrad, adam, yogi: 0.01)")
    momentum: float | None = Field(None, ge=0, lt=1, description="of optimizer momentum (0.9)")
    beta1: float | None = Field(None, ge=0, lt=1, description="decay of the mean update (adam, yogi: 0.9; adagrad: 0)")
    beta2: float | None = Field(None, ge=0, lt=1, description="decay of the squared updates of adam and yogi (0.99)")
    tau: PositiveFloat | None = Field(None, description="what is added to the root of the squared updates (0.001)")

    @model_validator(mode="after")
    def _used(self) -> AggregationOptions:
        where = {"momentum": ("momentum",), "beta1": ADAPTIVE, "beta2": ADAPTIVE[1:], "tau": ADAPTIVE}
        for name, optimizers in where.items():
            if getattr(self, name) is not None and self.optimizer not in optimizers:
                raise ValueError(f"{name} belongs to optimizer {' or '.join(optimizers)}, not {self.optimizer}")
        if self.trim is not None and self.rule != "trimmed-mean":
            raise ValueError(f"trim belongs to rule trimmed-mean, not {self.rule}")
        return self

    @property
    def plain(self) -> bool:
        """Whether parameters are averaged as ever: nothing here changes what a method does with them."""
        return self.model_copy(update={"non_finite": "reject"}) == MEAN


MEAN = AggregationOptions.model_validate({})
"""The mean by samples, and nothing else."""
