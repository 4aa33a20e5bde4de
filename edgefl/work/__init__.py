"""Work: what a node does in a round, as data, and the one interpreter that runs it."""

from edgefl.work.allocator import CUDA_ROUNDING, AllocatorPeak
from edgefl.work.codecs import Codec
from edgefl.work.description import (
    Address,
    Edit,
    Item,
    Pass,
    Payload,
    Scalars,
    Source,
    TensorSpec,
    Work,
    digest,
    serialised_bytes,
)
from edgefl.work.interpreter import Result, distinct, execute, metered_steps, run
from edgefl.work.meter import FINISH, METERED, PARTS, START, UPDATE, Held, Inside, Meter, StepCost, Trace
from edgefl.work.operator_calls import Call
from edgefl.work.steps import Context, Step
from edgefl.work.timeline import Moment, Timeline

__all__ = [
    "CUDA_ROUNDING",
    "FINISH",
    "METERED",
    "PARTS",
    "START",
    "UPDATE",
    "Address",
    "AllocatorPeak",
    "Call",
    "Codec",
    "Context",
    "Edit",
    "Held",
    "Inside",
    "Item",
    "Meter",
    "Moment",
    "Pass",
    "Payload",
    "Result",
    "Scalars",
    "Source",
    "Step",
    "StepCost",
    "TensorSpec",
    "Timeline",
    "Trace",
    "Work",
    "digest",
    "distinct",
    "execute",
    "metered_steps",
    "run",
    "serialised_bytes",
]
