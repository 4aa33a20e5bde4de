"""The scenario's ``executor`` and ``tracker`` sections: which processes and device run the training, and its log."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from edgefl import units


class ExecutorOptions(BaseModel):
    """The scenario's ``executor`` section.  None of these options changes results."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Literal["inline", "processes"] = Field(
        "inline", description="where clients train: in this process (inline), or in worker processes (processes)"
    )
    workers: PositiveInt = Field(2, description="number of worker processes; for name: processes")
    timeout: Annotated[units.Seconds, Field(gt=0)] | None = Field(
        3600.0,
        description="seconds without the end of any work after which the workers are taken to hang: unfinished works "
        "run again with fewer workers, then alone, then the run stops and can be resumed; null: no limit; for name: "
        "processes",
    )
    clock: Literal["auto", "events"] = Field(
        "auto",
        description="auto computes a whole cohort's times at once where no client waits for another's transfer; "
        "events plays every event; the records are the same",
    )
    checkpoints: PositiveInt = Field(
        1, description="checkpoints that a finished run keeps, the newest; a run under way keeps two at least"
    )
    updates_memory: units.Bytes | None = Field(
        None,
        description="memory for the updates that the server holds until a round ends, where it can't add them up as "
        "they land (rules other than mean, some methods, buffered and semi-synchronous rounds); those beyond lie in a "
        "temporary file in the run's folder; null: half of the memory that is free when the run begins",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="device that trains; auto takes CUDA where there is one"
    )


class TrackerOptions(BaseModel):
    """The scenario's ``tracker`` section: a local log of the rounds for another program's pages."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Literal["none", "tensorboard", "mlflow"] = Field(
        "none",
        description="where each round's numbers are logged too: the folder tensorboard in the run's folder, or "
        "mlflow.db in the run's or the comparison's; none: nowhere. Both need an extra",
    )
