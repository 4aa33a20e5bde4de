"""Results of a meter: bytes by part at the peak, the cost of each step, calls that may take scratch; the timeline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf

from edgefl.work.meter.operator_calls import LIBRARY, Call

PARTS = (
    "parameters",
    "gradients",
    "optimizer",
    "activations",
    "buffers",
    "inputs",
    "received",
    "reference",
    "outputs",
    "temporaries",
    "scratch",
)
"""The parts of peak memory.  ``temporaries`` are gradients of activations and intermediate results of the optimizer's
step; ``scratch`` is what a kernel allocates for itself during a call."""

START, FINISH, UPDATE = "<", ">", "="
"""Used in place of a pattern: a pass's start and finish, once per occurrence, and an update of several batches."""

COPIES = 2
LEAST_SCRATCH = 2 * 2**20
"""Bounds on a kernel's scratch: a call is kept for the trace if its kernel could move the peak by taking so many times
the bytes that it reads and writes, and ``LEAST_SCRATCH`` bytes more.

The most that was measured on small tensors is 865,408 bytes (a matrix product in bfloat16), whatever their size.
Convolutions have no bound, and are always kept: in bfloat16 one with 1 input channel took 65 times its operands.
Nor have bitsandbytes' operators: an update of 8-bit states in bfloat16 took 4 times its operands.
"""

METERED = 2
"""Metered occurrences of a distinct pass, and metered steps of a pattern in each; later ones cost as the second.

The first differs, because it makes the optimizer's states.  More would take time and give the same numbers.
"""


@dataclass
class StepCost:
    """Cost of one step of a pass, after warm-up.

    FLOPs are 2 x MAC of matmul-class operators as executed; ``macs`` are forward MACs by part of the model in
    fvcore's convention (LayerNorm 5 per element); ``gradient_macs`` are the backward MACs of the parts that train in
    part (adapters beside frozen weights), of each product once for every operand that a gradient reaches; ``operators``
    counts equal triples (FLOPs, bytes touched, class of operator).  ``more_kernels`` is how many operators more there
    are where foreach operators run once for each tensor of their lists.
    """

    forward_flops: int = 0
    backward_flops: int = 0
    macs: Counter[str] = field(default_factory=Counter)
    operators: Counter[tuple[int, int, int]] = field(default_factory=Counter)
    gradient_macs: Counter[str] = field(default_factory=Counter)
    more_kernels: int = 0


@dataclass(frozen=True)
class LiveCall:
    """A distinct call of an operator, at the moment of the most live storage before it.

    ``before`` are the live bytes before the call, ``after`` those after it in the order of ``PARTS``, and ``outputs``
    the bytes of the storages that it returned newly.
    """

    call: Call
    before: int
    outputs: int
    after: tuple[int, ...]

    @property
    def touched_bytes(self) -> int:
        """The bytes that the call reads and writes."""
        return self.call.argument_bytes + self.outputs

    @cached_property
    def most(self) -> float:
        """The most bytes that may live during the call, with its kernel's scratch; infinite if nothing bounds it."""
        if "conv" in self.call.operator or self.call.operator.startswith(LIBRARY):
            return inf
        return self.before + self.outputs + COPIES * self.touched_bytes + LEAST_SCRATCH


@dataclass(frozen=True)
class Inside:
    """The most bytes that a call holds at a time beside what was there before it: outputs and scratch.

    ``assumed`` is true if it was not measured, but is the upper end of a range that begins with the outputs.
    """

    bytes: int
    assumed: bool = False


@dataclass(frozen=True)
class StepTrace:
    """Result of a meter: bytes by part at the peak, and the cost of each distinct step.

    ``steps`` is keyed ``(distinct pass, pattern)``, with START, FINISH and UPDATE beside patterns.
    ``live_memory_bytes`` is the peak of live storage, ``peak_memory_bytes`` that of live storage and scratch; without
    scratch (``with_scratch``) they are equal.  ``live_parts`` are the bytes by part at the former.
    ``assumed`` is true if the scratch at the peak is assumed: the peak is then between ``live_memory_bytes`` and
    ``peak_memory_bytes``.  ``calls`` are those whose scratch could move the peak.  ``host_bytes`` lie in the memory of
    a GPU's host, beside the peak.  ``reserved_bytes`` are the least that a GPU's allocator must be able to
    reserve for the live storage; 0 for a CPU.
    """

    peak_memory_bytes: int
    memory_bytes: Mapping[str, int]
    steps: Mapping[tuple[int, str], StepCost]
    live_memory_bytes: int = 0
    calls: tuple[LiveCall, ...] = field(default=(), compare=False)
    assumed: bool = False
    live_parts: Mapping[str, int] = field(default_factory=dict)
    host_bytes: int = 0
    reserved_bytes: int = 0

    def with_scratch(self, insides: Sequence[Inside | None]) -> StepTrace:
        """The trace with the kernels' scratch, given for each of ``calls``; None where it can't move the peak."""
        peak, memory, assumed = self.live_memory_bytes, self.live_parts, False
        for held, inside in zip(self.calls, insides, strict=True):
            if inside is not None and held.before + inside.bytes > peak:
                peak, assumed = held.before + inside.bytes, inside.assumed
                memory = dict(zip(PARTS, held.after, strict=True))
                memory["scratch"] += peak - sum(held.after)
        return replace(self, peak_memory_bytes=peak, memory_bytes=memory, assumed=assumed)


@dataclass(frozen=True)
class LiveMoment:
    """Live memory after one operator.

    ``operator`` is torch's name (``aten.addmm``); ``scope`` the running part of the model (``image.blocks.3``), empty
    outside of it, and in the backward phase the part whose gradients are computed; ``phase`` is start, forward,
    backward, optimizer or finish; ``step`` counts the metered steps of this pass and pattern from 1.  ``totals`` are
    bytes in the order of ``PARTS``.
    """

    operator: str
    scope: str
    phase: str
    distinct_pass: int
    pattern: str
    step: int
    totals: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Live bytes, summed over all parts."""
        return sum(self.totals)


@dataclass(frozen=True)
class Timeline:
    """The moments of a work in order."""

    moments: Sequence[LiveMoment]

    @property
    def peak(self) -> int:
        """Index of the first moment with the most bytes."""
        return max(range(len(self.moments)), key=lambda i: (self.moments[i].bytes, -i))
