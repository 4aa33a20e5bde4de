"""Workers on GPUs: what is packed fits, whatever the devices and the works; no GPU is needed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.training.packing import (
    CONTEXT_BYTES,
    RESERVE,
    DeviceMemory,
    DeviceShare,
    choose_share,
    fits_nowhere,
    limit_of,
    pack,
)

GIB = 2**30
MEMORIES = st.lists(
    st.tuples(st.integers(1, 96 * GIB), st.floats(0, 1)).map(lambda drawn: (drawn[0], int(drawn[0] * drawn[1]))),
    min_size=1,
    max_size=4,
).map(lambda drawn: [DeviceMemory(f"cuda:{index}", total, free) for index, (total, free) in enumerate(drawn)])
PEAKS = st.lists(st.integers(0, 40 * GIB), min_size=1, max_size=6)
WORKERS = st.integers(1, 40)


@given(MEMORIES, WORKERS, PEAKS)
def test_workers_of_a_device_fit_its_memory_with_their_contexts(
    memories: list[DeviceMemory], workers: int, peaks: list[int]
) -> None:
    places = pack(memories, workers, peaks)
    assert places == pack(memories, workers, reversed(peaks))
    assert len(places) <= workers
    for memory in memories:
        its = [place for place in places if place.device == memory.device]
        assert sum(place.fraction for place in its) <= 1 - RESERVE
        assert sum(place.bytes + CONTEXT_BYTES for place in its) <= memory.free
        assert all(place.bytes <= place.fraction * memory.total + 1 for place in its)
    assert bool(places) == any(limit_of(max(peaks)) + CONTEXT_BYTES <= memory.usable for memory in memories)
    if places:
        for peak in peaks:
            assert any(place.holds(peak) for place in places)


@given(MEMORIES, WORKERS, PEAKS, st.integers(0, 3), st.integers(0, 40 * GIB))
def test_more_memory_more_workers_and_smaller_works_never_mean_fewer_places(
    memories: list[DeviceMemory], workers: int, peaks: list[int], which: int, more: int
) -> None:
    count = len(pack(memories, workers, peaks))
    index = which % len(memories)
    larger = replace(memories[index], total=memories[index].total + more, free=memories[index].free + more)
    assert len(pack([*memories[:index], larger, *memories[index + 1 :]], workers, peaks)) >= count
    assert len(pack(memories, workers + 1, peaks)) >= count
    assert len(pack(memories, workers, [peak // 2 for peak in peaks])) >= count


@given(st.lists(st.tuples(st.integers(0, 8 * GIB), st.integers(0, 9)), min_size=1, max_size=8), st.integers(0, 8 * GIB))
def test_a_work_goes_only_where_it_is_held(drawn: list[tuple[int, int]], peak: int) -> None:
    places = [DeviceShare("cuda:0", size, 0.1) for size, _ in drawn]
    busy = [count for _, count in drawn]
    chosen = choose_share(places, busy, peak)
    able = [index for index, place in enumerate(places) if limit_of(peak) <= place.bytes]
    if chosen is None:
        assert not able
    else:
        assert chosen in able and busy[chosen] == min(busy[index] for index in able)
    unknown = choose_share(places, busy, None)
    assert unknown is not None and places[unknown].bytes == max(place.bytes for place in places)


def test_equal_works_share_a_device_and_two_devices_are_loaded_alike() -> None:
    one, two = DeviceMemory("cuda:0", 24 * GIB, 24 * GIB), DeviceMemory("cuda:1", 24 * GIB, 24 * GIB)
    # 24 GiB less 2 % hold six of 2.2 GiB and 0.04 GiB with a context of 0.88 GiB each, and a part of another
    assert len(pack([one], 16, [2 * GIB])) == 7
    assert [place.device for place in pack([one, two], 4, [2 * GIB])] == ["cuda:0", "cuda:0", "cuda:1", "cuda:1"]
    assert len(pack([one, two], 16, [2 * GIB])) == 14


def test_one_large_work_leaves_room_for_many_small_ones() -> None:
    memory = DeviceMemory("cuda:0", 24 * GIB, 24 * GIB)
    places = pack([memory], 6, [10 * GIB, 1 * GIB])
    assert len(places) == 6 and sum(place.holds(10 * GIB) for place in places) == 1
    # places for the largest work are preferred where all workers have one
    assert sum(place.holds(10 * GIB) for place in pack([memory], 1, [10 * GIB, GIB])) == 1
    assert all(place.holds(5 * GIB) for place in pack([memory], 3, [5 * GIB, GIB]))


def test_a_work_that_fits_nowhere_is_told_with_the_largest_device() -> None:
    memories = [DeviceMemory("cuda:0", 8 * GIB, 4 * GIB), DeviceMemory("cuda:1", 8 * GIB, 7 * GIB)]
    assert pack(memories, 2, [7 * GIB]) == ()
    said = fits_nowhere("the work of kind 'image' at stage 2", 7 * GIB, memories)
    assert said.count("\n") == 0
    assert "kind 'image' at stage 2 needs 7 GiB" in said and "cuda:1, has 7 GiB free" in said


@pytest.mark.parametrize("free", [0, CONTEXT_BYTES, CONTEXT_BYTES + limit_of(0) - 1])
def test_a_device_without_room_for_a_context_has_no_place(free: int) -> None:
    assert pack([DeviceMemory("cuda:0", 80 * GIB, free)], 1, [0]) == ()
    assert len(pack([DeviceMemory("cuda:0", 80 * GIB, CONTEXT_BYTES + limit_of(0))], 1, [0])) == 1
