"""Work: what a node does in a round, as data, and the one interpreter that runs it."""

from edgefl.work.description import (
    Address,
    Edit,
    Item,
    Pass,
    Payload,
    Source,
    TensorSpec,
    Work,
    digest,
    serialised_bytes,
)
from edgefl.work.interpreter import FINISH, START, Result, distinct, execute, run
from edgefl.work.meter import CUDA_ROUNDING, METERED, PARTS, Meter, StepCost, Trace
from edgefl.work.steps import Context, Step

__all__ = [
    "CUDA_ROUNDING",
    "FINISH",
    "METERED",
    "PARTS",
    "START",
    "Address",
    "Context",
    "Edit",
    "Item",
    "Meter",
    "Pass",
    "Payload",
    "Result",
    "Source",
    "Step",
    "StepCost",
    "TensorSpec",
    "Trace",
    "Work",
    "digest",
    "distinct",
    "execute",
    "run",
    "serialised_bytes",
]
