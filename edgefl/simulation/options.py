"""The scenario's ``round`` and ``evaluation`` sections."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, field_validator

from edgefl import registry
from edgefl.units import Seconds, Share


class RoundOptions(BaseModel):
    """Who takes part in a round and when it ends."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    policy: str = Field("synchronous", description="a registered round policy")
    selection: str = Field("random", description="a registered selection among the eligible clients")
    cohort: PositiveInt | Share = Field(0.25, description="clients a round: a share of each kind, or a number in all")
    stratify: bool = Field(True, description="draw per client kind; false draws from the union of kinds")
    deadline: Seconds | None = Field(None, description="virtual time after which late updates are left out")
    quorum: PositiveInt = Field(1, description="updates without which a round changes nothing")

    @field_validator("cohort", "deadline")
    @classmethod
    def _some(cls, value: float | None) -> float | None:
        if value is not None and not value > 0:
            raise ValueError(f"must be more than 0, not {value:g}")
        return value

    @field_validator("policy")
    @classmethod
    def _policy(cls, value: str) -> str:
        registry.get("round policy", value)
        return value

    @field_validator("selection")
    @classmethod
    def _selection(cls, value: str) -> str:
        registry.get("selection", value)
        return value


class EvaluationOptions(BaseModel):
    """When and on what the server evaluates the global models."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    every: PositiveInt = Field(1, description="rounds between evaluations; the last round is always evaluated")
    split: Literal["validation", "test"] = Field("validation", description="split of the evaluations along the way")
    final: Literal["validation", "test"] = Field("test", description="split of the last evaluation")
    batch: PositiveInt = Field(100, description="samples a step")
    pairs: PositiveInt = Field(500, description="pairs that retrieval ranks at most")
