"""The scenario's ``executor`` and ``tracker`` sections: which processes and device run the training, and its log."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, model_validator

from edgefl import units


class ExecutorOptions(BaseModel):
    """The scenario's ``executor`` section.  None of these options changes results."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Literal["inline", "processes", "ray"] = Field(
        "inline",
        description="where clients train: in this process (inline), in worker processes of this machine (processes), "
        "or in workers on a Ray cluster (ray, which needs the extra ray)",
    )
    workers: PositiveInt = Field(2, description="number of workers; for name: processes and name: ray")
    address: str | None = Field(
        None,
        description="the Ray cluster, HOST:PORT or auto, for the one that this machine is a node of; null: Ray is "
        "started on this machine, and ended with the run; for name: ray",
    )
    gpus_per_worker: PositiveFloat | None = Field(
        None,
        description="GPUs that a worker gets, such as 0.25, so that four workers share one; null: none; for name: ray",
    )
    timeout: Annotated[units.Seconds, Field(gt=0)] | None = Field(
        3600.0,
        description="seconds without the end of any work after which the workers are taken to hang: unfinished works "
        "run again with fewer workers, then alone, then the run stops and can be resumed; null: no limit; for name: "
        "processes and name: ray",
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

    @model_validator(mode="after")
    def _of_ray(self) -> ExecutorOptions:
        for name in ("address", "gpus_per_worker"):
            if getattr(self, name) is not None and self.name != "ray":
                raise ValueError(f"{name} belongs to name: ray, not {self.name}")
        if self.address is not None and self.address.startswith("ray://"):
            raise ValueError(
                "address: ray:// sends all tensors through one proxy, which is slow: run edgefl on a node of the "
                "cluster, with address: auto"
            )
        if self.gpus_per_worker is not None and self.device == "cpu":
            raise ValueError("gpus_per_worker needs device: cuda or auto, not cpu")
        return self


class TrackerOptions(BaseModel):
    """The scenario's ``tracker`` section: a local log of the rounds for another program's pages."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Literal["none", "tensorboard", "mlflow"] = Field(
        "none",
        description="where each round's numbers are logged too: the folder tensorboard in the run's folder, or "
        "mlflow.db in the run's or the comparison's; none: nowhere. Both need an extra",
    )
