"""The peak of torch's allocator, on tensors of known sizes."""

from __future__ import annotations

import gc

import pytest
import torch

from edgefl.work import AllocatorPeak

CPU = torch.device("cpu")
MIB = 2**20


def floats(mib: int) -> torch.Tensor:
    return torch.empty(mib * MIB // 4)


def test_the_peak_is_the_most_at_a_time() -> None:
    resident = floats(3)
    with AllocatorPeak(CPU, [resident, resident[:5]]) as peak:
        a, b = floats(2), floats(4)
        del a
        c = floats(1)
        del b, c
    assert peak.bytes == (3 + 2 + 4) * MIB


def test_laps_change_nothing() -> None:
    with AllocatorPeak(CPU) as peak:
        held = [floats(1)]
        for _ in range(3):
            peak.lap()
            held.append(floats(1))
            held.pop(0)
            held.append(floats(2))
            held.pop(0)
        peak.lap()
    assert peak.bytes == 3 * MIB


def test_what_a_kernel_takes_inside_is_seen() -> None:
    x = torch.randn(64, 64, requires_grad=True)
    with AllocatorPeak(CPU, [x]) as peak:
        y = x.t() @ x
        state = torch.get_rng_state()
    assert peak.bytes >= x.nbytes + y.nbytes + state.nbytes


def test_another_profiler_is_not_disturbed() -> None:
    with (
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True),
        pytest.raises(RuntimeError, match="a profiler of torch is running"),
        AllocatorPeak(CPU),
    ):
        pass


def test_profilers_say_nothing_on_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    with AllocatorPeak(CPU):
        torch.ones(3)
    assert capfd.readouterr().err == ""


@pytest.mark.slow(smaller="test_laps_change_nothing")
def test_a_block_of_an_earlier_recording_may_be_freed_in_a_later_one() -> None:
    with AllocatorPeak(CPU):
        left = [floats(8)]
    left.append(left)  # type: ignore[arg-type]  # a cycle, which Python's collector frees when it likes
    del left
    with AllocatorPeak(CPU) as peak:
        gc.collect()
        floats(2)
    assert peak.bytes == 2 * MIB


def test_functions_that_name_themselves_hide_no_event() -> None:
    with AllocatorPeak(CPU) as peak, torch.profiler.record_function("outer"), torch.profiler.record_function("inner"):
        floats(2)
    assert peak.bytes == 2 * MIB


def test_tensors_in_a_buffer_with_others_count_as_themselves() -> None:
    buffer, own = torch.empty(1000), torch.empty(10)
    with AllocatorPeak(torch.device("cpu"), [buffer[:100], buffer[200:250], buffer[:100], own, own.view(2, 5)]) as peak:
        pass
    assert peak.bytes == 4 * (100 + 50 + 10)
