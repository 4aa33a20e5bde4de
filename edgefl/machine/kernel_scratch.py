"""What kernels allocate for themselves: each call of an operator is run once on zeros, and the allocator is watched."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from math import ceil

import torch

from edgefl.work import Call, Inside, LiveCall
from edgefl.work.meter.allocator_peak import AllocatorPeak, Balance, MemoryEvents
from edgefl.work.meter.operator_calls import LIBRARY
from edgefl.work.torch_device import threads, warm

PROBED_BYTES, PROBED_SHARE = 512 * 2**20, 8
"""Calls whose arguments or outputs take more, on a GPU more than an eighth of its memory too, are not run; on a CPU
their scratch follows from that of calls on fewer entries, and of calls on lists from that of the largest entry.

A choice, not measured: a probe takes this memory beside what else runs here.
"""

SHARES, STRAIGHT, FEWEST_IMAGES = (4, 2), 0.001, 16
"""A call that is too large runs on so few entries that it takes a quarter of ``PROBED_BYTES``, three quarters and a
half of these, and if that tells too little a half; what lines through the three may differ by, as a share of what the
call touches; images below which convolutions may run in another way (of 1 x 1 with no scratch)."""

SLOW_PRODUCT, TERMS = 1 << 28, 64
"""Multiplications of a product of matrices beyond which one in a half precision that the processor has no instructions
for is run with so many terms: torch's own loops take a second for 300 million, and allocate nothing for the terms."""

ASSUMED_FACTOR = 2
"""Upper end of the range of scratch that is assumed: so many times the bytes of the arguments.

Room for a float32 copy of each argument in a half precision.  A choice: some convolutions took more (``COPIES``).

For a GPU that isn't at hand, kernels that work element by element or on lists of tensors are assumed to take none.
"""

REFUSALS = (RuntimeError, IndexError, ValueError, TypeError, LookupError, MemoryError, AssertionError)
"""Errors by which an operator refuses zeros or shapes (in Python by assertions), or is unknown to this torch."""

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

    Calls run on zeros and on one thread.  Assumed are calls whose operator refuses zeros, calls of more than
    ``PROBED_BYTES`` that can't be extrapolated, and all calls for a device that isn't at hand.
    """
    if device == "cuda" and not torch.cuda.is_available():
        return [_without_gpu(each) for each in held]
    generators = torch.random.fork_rng([torch.device(device)] if device == "cuda" else [])
    most = PROBED_BYTES
    if device == "cuda":
        warm(torch.device(device))
        most = max(most, torch.cuda.get_device_properties(device).total_memory // PROBED_SHARE)
    with threads(1), generators, torch.no_grad():
        calls = [_choose_probe(each, device, most) for each in held]
        results = (_on_cuda if device == "cuda" else _on_cpu)(calls)
        return [
            _inside(each, result, most) if call else _extrapolate(each, device, most) or _assume_scratch(each)
            for each, call, result in zip(held, calls, results, strict=True)
        ]


def _extrapolate(held: LiveCall, device: str, most: int) -> Inside | None:
    """Scratch of a call that is too large to be run, from that of the call on fewer entries of a dimension.

    Kernels take scratch that is constant, or affine in the number of samples or rows; products of matrices some 100 KB
    from some hundred rows on.  None if no smaller call runs, or if the scratch of three sizes isn't on a line.  Of two
    sizes, and of dimensions within samples, only scratch that is constant is continued.  On a GPU it is tried for calls
    on lists alone.
    """
    if device == "cuda" and not held.call.takes_lists:
        return None
    call = held.call.largest_entry() if held.call.takes_lists else held.call
    touched = call.argument_bytes + (0 if call.takes_lists else held.outputs)
    with suppress(LookupError):  # this torch doesn't have the operator
        if call.overload().is_view or call.operator.startswith("aten._unsafe_view"):
            return Inside(held.outputs)
        if _is_slow_product(call, "float32"):
            call = call.with_fewer_terms(TERMS)
        for share in SHARES:
            for depth, entries, sizes, calls in _smaller_calls(call, most / share / touched, most):
                if None in (measured := (_on_cuda if device == "cuda" else _on_cpu)(calls)):
                    continue
                scratch = [peak - kept for peak, kept in filter(None, measured)]
                at, other = (_continue_line(sizes[i:], scratch[i:], entries) for i in (0, len(sizes) - 2))
                constant, few = len(set(scratch)) == 1, "conv" in call.operator and sizes[-1] < FEWEST_IMAGES
                straight = abs(at - other) <= STRAIGHT * touched and not depth and len(sizes) == 3
                if call.product or (not few if constant else straight):
                    most_taken = max(scratch if call.product else [*scratch, at])
                    return Inside(held.outputs + ceil(most_taken), assumed=call.takes_lists)
                break
    return None


def _smaller_calls(call: Call, part: float, most: int) -> Iterator[tuple[int, int, list[int], tuple[Call, ...]]]:
    """The place and size of a dimension, two or three sizes up to a part of it, and the call on these.

    Only calls of ``most`` bytes at most are meant whose outputs grow to the call's own on a line.
    """
    for depth, entries in call.dimensions():
        if (widest := int(entries * part)) < 2:
            continue
        sizes = list(dict.fromkeys((widest, widest * 3 // 4, widest // 2)))
        for calls in zip(*(call.with_fewer_entries(entries, size) for size in sizes), strict=True):
            with suppress(*REFUSALS):
                *outputs, whole = (each.output_bytes() for each in (*calls, call))
                grow = whole == round(_continue_line(sizes, outputs, entries))
                if grow and calls[0].argument_bytes + outputs[0] <= most:
                    yield depth, entries, sizes, calls


def _continue_line(sizes: Sequence[int], values: Sequence[int], at: int) -> float:
    """The value at a size, on the line through the values at the first two sizes."""
    return values[0] + (values[0] - values[1]) * (at - sizes[0]) / (sizes[0] - sizes[1])


def _choose_probe(held: LiveCall, device: str, most: int) -> Call | None:
    """The call to run in place of this one: itself, or of one on lists the largest entry; None if that is too large."""
    call = held.call
    if max(call.argument_bytes, 0 if device == "cuda" or call.takes_lists else held.outputs) <= most:
        return call.with_fewer_terms(TERMS) if device == "cpu" and _is_slow_product(call) else call
    return entry if call.takes_lists and (entry := call.largest_entry()).argument_bytes <= most else None


def _is_slow_product(call: Call, *slow: str) -> bool:
    """Whether a CPU computes this call by torch's own loops, or in a dtype of ``slow``, for longer than one waits."""
    if (factors := call.product) is None:
        return False
    (_, dtype, (rows, terms), _, _), (_, _, (_, columns), _, _) = factors
    fast = {"bfloat16": "_is_mkldnn_bf16_supported", "float16": "_is_mkldnn_fp16_supported"}
    loops = dtype in slow or (dtype in fast and not getattr(torch.ops.mkldnn, fast[dtype])())
    return loops and rows * terms * columns > SLOW_PRODUCT


def _inside(held: LiveCall, measured: tuple[int, int] | None, most: int) -> Inside:
    if measured is None:
        return _assume_scratch(held)
    peak, kept = measured
    if held.call.argument_bytes > most:  # a single entry was run: the other entries' outputs come on top
        return Inside(held.outputs + max(peak - kept, 0), assumed=True)
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
