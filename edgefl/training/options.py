"""The scenario's ``executor`` section: which processes and device run the training."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt


class ExecutorOptions(BaseModel):
    """The scenario's ``executor`` section.  None of these options changes results."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Literal["inline", "processes"] = Field("inline", description="in this process, or in worker processes")
    workers: PositiveInt = Field(2, description="worker processes; for processes only")
    clock: Literal["auto", "events"] = Field(
        "auto",
        description="auto computes cohorts at once if no client waits for another; events simulates every event",
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto uses CUDA if it is available")
