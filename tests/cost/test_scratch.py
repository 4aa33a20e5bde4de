"""The table of kernels' scratch: large calls that can't move the peak aren't run, and the peak is the same."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from edgefl.cost.scratch import LARGE, ScratchTable
from edgefl.work import PARTS, Call, Inside, LiveCall, StepTrace

MIB = 2**20


def held(number: int, before: int, argument: int, outputs: int, operator: str = "aten.mm.default") -> LiveCall:
    """A call of its own on one argument, in MiB; ``number`` tells it from others."""
    call = Call(operator, f"[[{argument * MIB}],[{number}],{{}}]")
    return LiveCall(call, before * MIB, outputs * MIB, ((before + outputs) * MIB, *[0] * (len(PARTS) - 1)))


def trace_of(calls: Sequence[LiveCall]) -> StepTrace:
    live = max((each.before + each.outputs for each in calls), default=0)
    return StepTrace(live, {"parameters": live}, {}, live, tuple(calls), live_parts={"parameters": live})


SIZES = st.integers(0, 60)
CALLS = st.lists(
    st.tuples(SIZES, SIZES, SIZES, st.floats(0, 1), st.sampled_from(["aten.mm.default", "aten.convolution"]))
)


@given(CALLS)
def test_the_peak_is_that_of_all_calls_measured(
    drawn: list[tuple[int, int, int, float, str]],
) -> None:
    calls = [held(i, before, argument, out, name) for i, (before, argument, out, _, name) in enumerate(drawn)]
    # scratch from nothing to all that the bound allows, of a convolution ten times what it touches
    taken = {
        each.call.key: Inside(
            each.outputs + round(share * min(each.most - each.before - each.outputs, 10 * each.touched_bytes))
        )
        for each, (*_, share, _) in zip(calls, drawn, strict=True)
    }
    trace = trace_of(calls)
    asked: list[str] = []

    def probe(some: Sequence[LiveCall]) -> list[Inside]:
        asked.extend(each.call.key for each in some)
        return [taken[each.call.key] for each in some]

    table = ScratchTable("here", probe)
    found = table.scratch_by_call(calls, trace.live_memory_bytes)
    assert trace.with_scratch(found) == trace.with_scratch([taken[each.call.key] for each in calls])
    assert [each.call.key for each, inside in zip(calls, found, strict=True) if inside] == [
        each.call.key for each in calls if each.call.key in table.rows
    ]
    assert len(asked) == len(set(asked)) == len(table.rows)
    assert {each.call.key for each in calls if each.touched_bytes < LARGE or "conv" in each.call.operator} <= set(asked)
    again = ScratchTable("here", probe)
    again.take_over(table.rows.values())
    assert again.scratch_by_call(calls, trace.live_memory_bytes) == found and len(asked) == len(table.rows)


def test_large_calls_below_the_peak_of_another_are_not_run() -> None:
    calls = [held(0, 1000, 300, 300), held(1, 1100, 400, 0), held(2, 900, 100, 100), held(3, 1299, 1, 0)]
    asked: list[LiveCall] = []

    def probe(some: Sequence[LiveCall]) -> list[Inside]:
        asked.extend(some)
        return [Inside(each.outputs + 400 * MIB * (each is calls[0])) for each in some]

    assert (
        trace_of(calls).with_scratch(ScratchTable("here", probe).scratch_by_call(calls, 1300 * MIB)).peak_memory_bytes
        == 1700 * MIB
    )
    # the small one, the one with the most live memory, and the one that might take 800 MiB beside its 1,100
    assert asked == [calls[3], calls[0], calls[1]]
