"""The classes of a step's operators: operators of one class reach a like share of a processor's peak or bandwidth."""

from __future__ import annotations

from enum import IntEnum
from typing import Literal, get_args

OperatorName = Literal[
    "product", "convolution", "convolution 1x1", "grouped convolution", "depthwise convolution", "attention",
    "normalisation", "pointwise", "embedding", "optimizer",
]  # fmt: skip


class OperatorClass(IntEnum):
    """A class of operators, forward and backward; the value is its column in tables ``[operator classes]``."""

    PRODUCT = 0
    """Products of a matrix: dense layers, recurrent layers."""
    CONVOLUTION = 1
    """Convolutions of all channels with a kernel of several values."""
    CONVOLUTION_1X1 = 2
    """Convolutions whose kernel is a single value."""
    GROUPED_CONVOLUTION = 3
    """Convolutions in groups of several channels."""
    DEPTHWISE_CONVOLUTION = 4
    """Convolutions in groups of one input channel."""
    ATTENTION = 5
    """Fused attention, and the batched products of attention that isn't fused."""
    NORMALISATION = 6
    """Batch, layer, group and root-mean-square norms."""
    POINTWISE = 7
    """Activations, pooling, softmax, copies, losses: what is in no other class."""
    EMBEDDING = 8
    """Rows of a table that are looked up, and their gradients."""
    OPTIMIZER = 9
    """What updates weights."""

    @property
    def title(self) -> OperatorName:
        """The class in words: ``depthwise convolution``."""
        return OPERATOR_NAMES[self]


OPERATOR_NAMES: tuple[OperatorName, ...] = get_args(OperatorName)
OPERATOR_CLASSES = tuple(OperatorClass)
