"""Rates with which the formula of a step's seconds makes the seconds that were measured.

The loss is the deviance of the gamma distribution, ratio - 1 - log(ratio) with ratio = measured / predicted: errors
count by their share, and the ratios of the steps that a rate makes have a mean of 1.  So the rate of a class whose
operators differ is that of all of them together, as in a network, which a mean of logarithms would make too high.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import least_squares

from edgefl.arrays import Floats
from edgefl.cost.step_seconds import step_seconds
from edgefl.devices import Hardware
from edgefl.devices.processors import Processor, ProcessorType
from edgefl.operator_classes import OPERATOR_CLASSES, OperatorClass

Machine = TypeVar("Machine", bound=Hardware)

HOLD = 0.01
"""Weight of a rate's log distance from where it starts: what no step depends on stays there.

Beside the residuals, a factor of e counts as an error of 1 % in one step.  A larger weight pulls rates that are
measured towards the start.
"""


@dataclass(frozen=True)
class TimedStep:
    """Operators ``[n, 4]`` as in ``ComputeCost.operators``, and the seconds that they took."""

    operators: Floats
    seconds: float


def nearest(
    make: Callable[[Floats], Machine],
    start: ArrayLike,
    steps: Sequence[TimedStep],
    precision: str = "float32",
    hold: float = HOLD,
    most: ArrayLike = np.inf,
) -> Machine:
    """The machine ``make(numbers)`` whose predictions of the steps have the least deviance.

    ``start`` are positive numbers; those that the steps leave open stay near them, and none gets above its ``most``.
    """
    bound = np.log(np.broadcast_to(np.asarray(most, dtype=np.float64), np.shape(start)))
    began = np.minimum(np.log(np.asarray(start, dtype=np.float64)), bound - 1e-6)
    measured = np.log([each.seconds for each in steps])

    def errors(x: Floats) -> Floats:
        machine = make(np.exp(x))
        predicted = [step_seconds(each.operators, machine, precision).total for each in steps]
        log_ratios = measured - np.log(predicted)
        deviance = np.sqrt(2 * np.maximum(np.expm1(log_ratios) - log_ratios, 0.0))
        return np.concatenate([np.copysign(deviance, log_ratios), hold * (x - began)])

    return make(np.exp(least_squares(errors, began, bounds=(-np.inf, bound)).x))


_WITH_FLOPS = (
    OperatorClass.PRODUCT, OperatorClass.CONVOLUTION, OperatorClass.CONVOLUTION_1X1, OperatorClass.GROUPED_CONVOLUTION,
    OperatorClass.DEPTHWISE_CONVOLUTION, OperatorClass.ATTENTION,
)  # fmt: skip
"""The first classes are those with FLOPs."""


def rates_of(type: ProcessorType, steps: Sequence[TimedStep], small: TimedStep, peak: float = np.inf) -> Hardware:
    """Hardware with the rates of each class of operator, its fixed times, and no power, from measured steps.

    The operators of ``small`` take their fixed time alone, on a GPU that of their launches.
    ``flops_per_second`` is the rate of products and ``memory_bytes_per_second`` that of pointwise operators; those of
    other classes are shares of them.  No rate of FLOPs is above ``peak``: steps that are timed while other processes
    take the cores leave rates open.
    """
    flops, classes = len(_WITH_FLOPS), len(OPERATOR_CLASSES)

    def build_hardware(numbers: Floats) -> Hardware:
        arithmetic, memory, (kernel,) = np.split(numbers, [flops, flops + classes])
        product, pointwise = arithmetic[OperatorClass.PRODUCT], memory[OperatorClass.POINTWISE]
        shares = (*(arithmetic / product).tolist(), *[np.inf] * (classes - flops))
        each = float(kernel) if type == "gpu" else 0.0
        processor = Processor(type, shares, tuple((memory / pointwise).tolist()), each)
        return Hardware(
            "measured", "measured", float(product), float(product), float(pointwise), fixed, 0.0, 0.0,
            processor=processor,
        )  # fmt: skip

    fixed = small.seconds / float(small.operators[:, 2].sum())
    # a rate is at least what a step has of its class over the step's seconds
    least = np.array([_amounts(each) / each.seconds for each in steps]).max(axis=0)
    least = np.where(least > 0, least, least.max(axis=1, keepdims=True))
    start = [*least[0, :flops], *least[1], 1e-6]
    most = [*[peak] * flops, *[np.inf] * (classes + 1)]
    return nearest(build_hardware, start, steps, most=most)


def _amounts(step: TimedStep) -> Floats:
    """FLOPs and bytes of a step by class of operator: ``[2, operator classes]``."""
    flops, moved, times, kinds = step.operators.T
    of_class, classes = kinds.astype(np.intp), len(OPERATOR_CLASSES)
    return np.stack([np.bincount(of_class, weights=each * times, minlength=classes) for each in (flops, moved)])
