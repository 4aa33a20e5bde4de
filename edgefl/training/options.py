"""The scenario's ``executor`` and ``tracker`` sections: which processes and device run the training, and its log."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt, ValidationInfo, field_validator, model_validator

from edgefl import units
from edgefl.registry.part_fields import Fields

_DEVICE = re.compile(r"auto|cpu|cuda(:(0|[1-9][0-9]{0,3}))?")


class ExecutorOptions(Fields):
    """The scenario's ``executor`` section.  None of these options changes results."""

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
    ship_data: bool = Field(
        False,
        description="whether the prepared data are sent once to each node, which then needs neither the files nor the "
        "packages that they were read from; false: each node reads them itself; for name: ray",
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
    device: str | tuple[str, ...] = Field(
        "auto",
        description="device that trains: auto (CUDA where there is one), cpu, cuda, one GPU such as cuda:1, or, in "
        "worker processes, a list of GPUs, [cuda:0, cuda:1], on which workers are packed by predicted peak memory",
    )

    @model_validator(mode="after")
    def _of_ray(self) -> ExecutorOptions:
        for name in ("address", "gpus_per_worker", "ship_data"):
            if getattr(self, name) not in (None, False) and self.name != "ray":
                raise ValueError(f"{name} belongs to name: ray, not {self.name}")
        if self.address is not None and self.address.startswith("ray://"):
            raise ValueError(
                "address: ray:// sends all tensors through one proxy, which is slow: run edgefl on a node of the "
                "cluster, with address: auto"
            )
        if self.gpus_per_worker is not None and self.device == "cpu":
            raise ValueError("gpus_per_worker needs device: cuda or auto, not cpu")
        if self.name == "ray" and (len(self.devices) > 1 or self.devices[0] not in ("auto", "cpu", "cuda")):
            raise ValueError("name: ray gives GPUs to workers by gpus_per_worker; device: auto, cpu or cuda")
        if self.name == "ray" and self.device == "cuda" and self.gpus_per_worker is None:
            raise ValueError("device: cuda on Ray needs gpus_per_worker, such as 0.25")
        return self

    @field_validator("device", mode="before")
    @classmethod
    def _device(cls, given: Any, info: ValidationInfo) -> str | tuple[str, ...]:
        """The device, or the GPUs of a list.  Raises ValueError, of one line."""
        named = list(given) if isinstance(given, list | tuple) else [given]
        allowed = "allowed: auto, cpu, cuda, cuda:0, cuda:1, ..., or a list of GPUs such as [cuda:0, cuda:1]"
        if not named:
            raise ValueError(f"an empty list names no device; {allowed}")
        for name in named:
            if not isinstance(name, str) or not _DEVICE.fullmatch(name):
                raise ValueError(f"{name!r} is no device; {allowed}")
            if len(named) > 1 and not name.startswith("cuda:"):
                raise ValueError(f"a list of several devices has GPUs with their numbers only, not {name}; {allowed}")
            if named.count(name) > 1:
                raise ValueError(f"{name} is listed twice; several workers share a GPU without that (executor.workers)")
        if len(named) > 1 and info.data.get("name") == "inline":
            raise ValueError(
                f"name: inline trains on one device, not on {len(named)}; with several set name: processes"
            )
        return named[0] if len(named) == 1 else tuple(named)

    @property
    def here(self) -> str:
        """The device of this process, whatever the workers have."""
        return "auto" if self.name == "ray" and self.device != "cpu" else self.devices[0]

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices by name, at least one."""
        return (self.device,) if isinstance(self.device, str) else self.device

    @property
    def device_type(self) -> str:
        """``auto``, ``cpu`` or ``cuda``."""
        return self.devices[0].partition(":")[0]


class TrackerOptions(Fields):
    """The scenario's ``tracker`` section: a local log of the rounds for another program's pages."""

    name: Literal["none", "tensorboard", "mlflow"] = Field(
        "none",
        description="where each round's numbers are logged too: the folder tensorboard in the run's folder, or "
        "mlflow.db in the run's or the comparison's; none: nowhere. Both need an extra",
    )
