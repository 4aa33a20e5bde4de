"""What kernels allocate for themselves: each call of an operator is run once on zeros, and the allocator is watched."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from math import ceil

import torch

from edgefl.work import Call, Inside, LiveCall
from edgefl.work.meter.allocator_peak import AllocatorPeak, Balance, MemoryEvents
from edgefl.work.meter.operator_calls import LIBRARY
from edgefl.work.torch_device import threads, warm

PROBED_BYTES, PROBED_SHARE = 512 * 2**20, 8
"""Calls whose arguments take more, on a GPU more than an eighth of its memory too, are not run; their scratch is
assumed, or of calls on lists follows from that of the largest entry, with fewer elements if it takes more too.

A choice, not measured: a probe takes this memory beside what else runs here, and with less more calls are assumed.
"""

SLOW_PRODUCT, TERMS = 1 << 28, 64
"""Multiplications of a product of matrices beyond which one in a half precision that the processor has no instructions
for is run with so many terms: torch's own loops take a second for 300 million, and allocate nothing for the terms."""

ASSUMED_FACTOR = 2
"""Upper end of the range of scratch that is assumed: so many times the bytes of the arguments.

Room for a float32 copy of each argument in a half precision.  A choice: some convolutions took more (``COPIES``).

For a GPU that isn't at hand, kernels that work element by element or on lists of tensors are assumed to take none.
"""

REFUSALS = (RuntimeError, IndexError, ValueError, TypeError, LookupError, MemoryError)
"""Errors by which an operator refuses zeros, or is unknown to this torch."""

_LIMITS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY")
"""Environment variables that keep kernels from using some of the processor's instructions."""


@cache
def kernels(device: str) -> str:
    """What decides a kernel's scratch beside its arguments: torch's version, and the processor's instruction sets.

    For ``cuda`` on a machine without it: "assumed".
    """
    if device == "cuda":
        return f"torch {torch.__version__}, {torch.cuda.get_device_name()}" if torch.cuda.is_available() else "assumed"
    sets = [platform.machine(), torch.backends.cpu.get_cpu_capability()]
    for name in ("avx512_bf16", "amx_tile", "amx_fp16"):
        if getattr(torch.cpu, f"_is_{name}_supported", bool)():
            sets.append(name)
    sets += [f"{name}={os.environ[name]}" for name in _LIMITS if os.environ.get(name)]
    return f"torch {torch.__version__}, {' '.join(sets)}, 1 thread"


def probe(held: Sequence[LiveCall], device: str) -> list[Inside]:
    """The most bytes that each of these calls holds at a time, outputs included; ``device`` is cpu or cuda.

    Calls run on zeros and on one thread.  A call that can't be run is assumed: one with arguments of more than
    ``PROBED_BYTES``, one whose operator refuses zeros, and all for a device that isn't at hand.
    """
    if device == "cuda" and not torch.cuda.is_available():
        return [_without_gpu(each) for each in held]
    generators = torch.random.fork_rng([torch.device(device)] if device == "cuda" else [])
    most = PROBED_BYTES
    if device == "cuda":
        warm(torch.device(device))
        most = max(most, torch.cuda.get_device_properties(device).total_memory // PROBED_SHARE)
    with threads(1), generators, torch.no_grad():
        calls, factors = zip(*(_choose_probe(each.call, device, most) for each in held), strict=True)
        measured = (_on_cuda if device == "cuda" else _on_cpu)(calls)
    return [_inside(*each, most) for each in zip(held, measured, factors, strict=True)]


def _choose_probe(call: Call, device: str, most: int) -> tuple[Call | None, float]:
    """The call to run in place of this one, and how many times as many elements its largest tensors lack.

    It is the call itself, or of a call on lists of more than ``most`` bytes the largest entry or a part of it; None if
    none is.
    """
    if call.argument_bytes <= most:
        return (call.with_fewer_terms(TERMS) if device == "cpu" and _is_slow_product(call) else call), 1.0
    if not call.takes_lists:
        return None, 1.0
    entry = call.largest_entry()
    return (entry, 1.0) if entry.argument_bytes <= most else entry.shorter(most)


def _is_slow_product(call: Call) -> bool:
    """Whether a CPU computes this call by torch's own loops, for longer than one would wait."""
    if (factors := call.product) is None:
        return False
    (_, dtype, (rows, terms), _, _), (_, _, (_, columns), _, _) = factors
    fast = {"bfloat16": "_is_mkldnn_bf16_supported", "float16": "_is_mkldnn_fp16_supported"}
    return dtype in fast and rows * terms * columns > SLOW_PRODUCT and not getattr(torch.ops.mkldnn, fast[dtype])()


def _inside(held: LiveCall, measured: tuple[int, int] | None, factor: float, most: int) -> Inside:
    if measured is None:
        return _assume_scratch(held)
    peak, kept = measured
    if held.call.argument_bytes > most:  # a single entry was run: the other entries' outputs come on top
        return Inside(held.outputs + ceil(factor * max(peak - kept, 0)), assumed=True)
    return Inside(peak)


def _assume_scratch(held: LiveCall) -> Inside:
    call = held.call.largest_entry() if held.call.takes_lists else held.call
    return Inside(held.outputs + ASSUMED_FACTOR * call.argument_bytes, assumed=True)


def _without_gpu(held: LiveCall) -> Inside:
    """For a GPU that isn't at hand: kernels that work element by element, or on lists of tensors, take nothing, nor do
    those that dequantise, which write into their outputs."""
    try:
        pointwise = torch.Tag.pointwise in held.call.overload().tags
    except LookupError:
        pointwise = False
    if pointwise or held.call.takes_lists or held.call.operator.startswith(LIBRARY):
        return Inside(held.outputs, assumed=True)
    return _assume_scratch(held)


def _on_cpu(calls: Sequence[Call | None]) -> list[tuple[int, int] | None]:
    """Peak, and what was still held at the end, of each call; None for a call that can't be run."""
    events = MemoryEvents()
    ran: list[bool] = []
    events.start()
    try:
        ran = [_runs(call, events) for call in calls]
    finally:
        parts = events.stop()
    results: list[tuple[int, int] | None] = []
    for done, inside in zip(ran, parts[1::2], strict=True):
        balance = Balance()
        balance.add(inside)
        results.append((balance.peak, balance.live) if done else None)
    return results


def _runs(call: Call | None, events: MemoryEvents) -> bool:
    """Run a call between two marks.  Returns whether it ran."""
    made, done = None, False
    if call is not None:
        with suppress(*REFUSALS):
            made = call.make("cpu")
    events.mark()
    if made is not None:
        operator, args, kwargs = made
        with suppress(*REFUSALS):
            out = operator(*args, **kwargs)  # noqa: F841 - what it holds at the end is part of the figure
            done = True
    events.mark()
    return done


def _on_cuda(calls: Sequence[Call | None]) -> list[tuple[int, int] | None]:
    results: list[tuple[int, int] | None] = []
    device = torch.device("cuda")
    for call in calls:
        results.append(None)
        with suppress(*REFUSALS):
            if call is not None:
                operator, args, kwargs = call.make(device)
                before = torch.cuda.memory_allocated(device)
                with AllocatorPeak(device) as peak:
                    out = operator(*args, **kwargs)
                results[-1] = peak.bytes, torch.cuda.memory_allocated(device) - before
                del out, operator, args, kwargs  # else ``out`` would be freed while the next call is measured
    return results
