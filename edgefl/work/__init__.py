"""Work: what a node does in a round, as data, and the one interpreter that runs it."""

from edgefl.work.codecs import Codec, RegisteredCodec
from edgefl.work.description import (
    Address,
    Description,
    Edit,
    Form,
    Item,
    Pass,
    Payload,
    Scalars,
    Source,
    TensorSpec,
    Work,
    digest,
    intern_form,
    serialised_bytes,
)
from edgefl.work.interpreter import distinct, execute, metered_steps, run
from edgefl.work.meter.allocator_peak import CUDA_ROUNDING, AllocatorPeak
from edgefl.work.meter.meter import NO_METER, Meter, NoMeter
from edgefl.work.meter.operator_calls import Call
from edgefl.work.meter.trace import (
    FINISH,
    METERED,
    PARTS,
    START,
    UPDATE,
    Inside,
    LiveCall,
    LiveMoment,
    StepCost,
    StepTrace,
    Timeline,
)
from edgefl.work.steps import Context, Step, Wrapper
from edgefl.work.update import SERVER, Update

__all__ = [
    "CUDA_ROUNDING", "FINISH", "METERED", "PARTS", "START", "UPDATE", "Address", "AllocatorPeak", "Call", "Codec",
    "RegisteredCodec", "Context", "Description", "Edit", "Form", "LiveCall", "Inside", "Item", "LiveMoment", "Meter",
    "NO_METER", "NoMeter", "Pass", "Payload", "SERVER", "Scalars", "Source", "Step", "StepCost", "TensorSpec",
    "Timeline", "StepTrace", "Update", "Work", "Wrapper", "digest", "distinct", "execute", "intern_form",
    "metered_steps", "run", "serialised_bytes",
]  # fmt: skip
