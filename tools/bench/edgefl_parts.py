"""What edgefl needs for the jobs: their data sets and the convolutional tower, registered on import.

Worker processes import this module too.  With ``EDGEFL_BENCH_PARTS`` in the environment (``bench.rounds`` sets it)
it also starts the watch of ``bench.parts`` there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn
from torch.nn import functional as F

import edgefl
from bench.jobs import CHANNELS, CLASSES, HELD_OUT, JOBS, LEARNING_RATE, SIZE, Job
from edgefl.data.collection import Collection, DataSet

LEAST = 10
"""Samples that a partition gives each client at least; ``data.samples`` takes fewer of them."""


def pictures(job: Job, size: int | None, on_message: Callable[[str], None]) -> Collection:
    """Random pictures, so many that each client has the job's number, and the ``LEAST`` that a partition gives."""
    n = job.clients * max(job.samples, LEAST) + 2 * HELD_OUT
    images = np.random.default_rng(1).integers(0, 256, (n, CHANNELS, SIZE, SIZE), dtype=np.uint8)
    return Collection(tuple(map(str, range(CLASSES))), np.arange(n) % CLASSES, np.arange(n), images)


# by names of this module, so that worker processes can import them
VIT = edgefl.register("data set", "bench-vit")(DataSet(partial(pictures, JOBS["vit"])))
CNN = edgefl.register("data set", "bench-cnn")(DataSet(partial(pictures, JOBS["cnn"])))
BIG = edgefl.register("data set", "bench-big")(DataSet(partial(pictures, JOBS["big"])))
SMALL = edgefl.register("data set", "bench-small")(DataSet(partial(pictures, JOBS["small"])))
TINY = edgefl.register("data set", "bench-tiny")(DataSet(partial(pictures, JOBS["tiny"])))


class CnnTower(nn.Module):
    """Two convolutions with pools and a linear layer, ``[batch, channels, size, size] -> [batch, 1, 48]``."""

    width = 48

    def __init__(self, channels: int, size: int):
        super().__init__()
        self.embedding = nn.Conv2d(channels, 16, 3, padding=1)
        second = nn.Sequential(
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(32 * (size // 4) ** 2, self.width), nn.ReLU(),
        )  # fmt: skip
        self.blocks = nn.ModuleList([second])

    def forward(self, x: Tensor) -> Tensor:
        """The features as one token."""
        return self.blocks[0](F.max_pool2d(F.relu(self.embedding(x)), 2))[:, None]


@edgefl.register("tower", "bench-cnn")
class Cnn:
    """The convolutional network of the job ``cnn``."""

    modality = "image"

    class Options(BaseModel):
        """It has one block and one width."""

        model_config = ConfigDict(extra="forbid", frozen=True)
        tower: Literal["bench-cnn"] = "bench-cnn"
        blocks: Literal[1] = 1
        width: Literal[48] = 48

    @staticmethod
    def build(description: Mapping[str, Any], norm: bool) -> CnnTower:
        """The tower; it has no norm."""
        return CnnTower(description["channels"], description["size"])


def scenario(job: Job, rounds: int, workers: int, executor: str = "processes") -> dict[str, Any]:
    """The job as a scenario: ``rounds`` rounds, in this process (1) or with so many workers of this ``executor``."""
    image: dict[str, Any] = {"tower": "bench-cnn"}
    if job.vit is not None:
        image = {"tower": "vit", **dict(zip(("blocks", "width", "heads", "patch"), job.vit, strict=True))}
    return {
        "edgefl": 1,
        "name": f"bench-{job.name}",
        "data": {
            "source": f"bench-{job.name}", "clients": {"image": job.clients}, "partition": "iid",
            "samples": job.samples, "validation": HELD_OUT, "test": HELD_OUT,
        },
        "model": {"image": image},
        "method": "fedavg",
        "schedule": {"name": "end-to-end", "rounds": rounds},
        "training": {"optimizer": "sgd", "lr": LEARNING_RATE, "batch": job.batch, "epochs": 1},
        "round": {"cohort": job.cohort},
        "executor": "inline" if workers == 1 else {"name": executor, "workers": workers},
        "evaluation": {"every": rounds},
    }  # fmt: skip


if _folder := os.environ.get("EDGEFL_BENCH_PARTS"):
    from bench import parts

    parts.start(_folder)
