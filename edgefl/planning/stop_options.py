"""The scenario's ``stop`` section: when a run ends before its last round."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, FiniteFloat, NonNegativeInt, PositiveInt, model_validator

from edgefl.registry.part_fields import Fields


class StopOptions(Fields):
    """The metric that ends a run, and at which value or after how long without a better one."""

    metric: str | None = Field(
        None,
        description="metric of evaluation.split that is followed, as kind and name: image.accuracy, image-text.r@10 "
        "or mean.accuracy (over kinds); null: the run plays all its rounds",
    )
    target: FiniteFloat | None = Field(None, description="the run ends after the evaluation that reaches this value")
    patience: PositiveInt | None = Field(
        None, description="the run ends after so many evaluations in a row that were no better than the best before"
    )
    after: NonNegativeInt = Field(
        0, description="first rounds in which the run doesn't end; their evaluations don't count for patience"
    )
    better: Literal["higher", "lower"] | None = Field(
        None, description="which values of the metric are better; null: lower ones of a loss or an error, else higher"
    )

    @model_validator(mode="after")
    def _whole(self) -> StopOptions:
        given = [name for name in ("target", "patience", "better") if getattr(self, name) is not None]
        given += ["after"] if self.after else []
        if self.metric is None and given:
            raise ValueError(f"{given[0]} needs the metric that it is about: metric: image.accuracy")
        if self.metric is not None and self.target is None and self.patience is None:
            raise ValueError("metric needs a target, a patience, or both")
        return self
