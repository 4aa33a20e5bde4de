"""The one formula of a step's computing: seconds of its operators on a processor.

On a CPU an operator takes the time of its FLOPs and that of its bytes and a fixed time, one after the other.  A GPU
computes while it reads, so a kernel takes the larger of the two and a fixed time; and the core that launches kernels
works beside it, so a step takes no less than the seconds of all launches.  A profile that names no processor has the
plain roofline: the larger of the two and a fixed time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgefl.arrays import Floats
from edgefl.devices.profile import Hardware
from edgefl.operator_classes import OPERATOR_CLASSES, OperatorClass

PRICED_BY = "by class of operator, watts by utilisation"
"""The formula in words, which a run's checkpoint holds: no run goes on at other prices."""


@dataclass(frozen=True)
class StepSeconds:
    """Seconds of operators by class, `[operator classes]`, and those in which a GPU waits for launches.

    ``busy`` are the seconds in which the processor works.  A GPU doesn't in the fixed time of a kernel.
    """

    by_class: Floats
    waiting: float
    busy: float

    @property
    def total(self) -> float:
        """Seconds of all."""
        return float(self.by_class.sum()) + self.waiting


def step_seconds(
    operators: Floats, hardware: Hardware, precision: str = "float32", more_kernels: int = 0
) -> StepSeconds:
    """Seconds of ``operators`` `[n, 4]` (FLOPs, bytes, times, class) on this hardware.

    ``more_kernels`` run beside them if its class has no operators on lists; their FLOPs and bytes are counted already.
    """
    flops, moved, times, kinds = operators.T
    of_class = kinds.astype(np.intp)
    processor = hardware.processor
    fixed = processor.launch * hardware.seconds_per_operator
    of_rate, of_bandwidth = processor.shares
    arithmetic = flops / (hardware.rate(precision) * of_rate)[of_class]
    memory = moved / (hardware.memory_bytes_per_second * of_bandwidth)[of_class]
    if processor.type == "cpu":
        each = arithmetic + memory + fixed
    elif processor.type == "gpu":
        each = np.maximum(arithmetic, memory) + processor.kernel_seconds
    else:
        each = np.maximum(arithmetic, memory) + fixed
    by_class = np.bincount(of_class, each * times, len(OPERATOR_CLASSES)).astype(np.float64, copy=False)
    beside = 0 if processor.lists else more_kernels
    by_class[OperatorClass.OPTIMIZER] += beside * (processor.kernel_seconds if processor.type == "gpu" else fixed)
    spent, pace = float(by_class.sum()), processor.pace
    if processor.type != "gpu":
        return StepSeconds(pace * by_class, 0.0, pace * spent)
    launches, busy = (float(times.sum()) + beside) * fixed, float(np.maximum(arithmetic, memory) @ times)
    return StepSeconds(pace * by_class, pace * max(0.0, launches - spent), pace * busy)
