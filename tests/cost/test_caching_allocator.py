"""The caching allocator's rules by hand, as c10/cuda/CUDACachingAllocator.cpp states them, and what always holds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.cost.caching_allocator import MIB, CachingAllocator, least_limit
from edgefl.work.meter.allocator_peak import MemoryEvent

KIB = 2**10


def replayed(*sizes: tuple[int, int]) -> CachingAllocator:
    """After events of (address, bytes); negative bytes free."""
    allocator = CachingAllocator()
    allocator.add(MemoryEvent(*size) for size in sizes)
    return allocator


@pytest.mark.parametrize(
    ("request_bytes", "allocated", "reserved"),
    [
        (1, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (10 * MIB + 1, 10 * MIB + 512, 12 * MIB),
        (11 * MIB, 12 * MIB, 12 * MIB),  # 1 MiB is left, which isn't split off
        (751 * MIB + 512 * KIB, 752 * MIB, 752 * MIB),  # the embedding of Llama 3.2 3B in bfloat16
    ],
)
def test_one_request(request_bytes: int, allocated: int, reserved: int) -> None:
    allocator = replayed((1, request_bytes))
    assert (allocator.allocated, allocator.reserved) == (allocated, reserved)


def test_requests_share_a_segment_and_take_the_smallest_block_that_fits() -> None:
    five = [(i, 4 * MIB) for i in range(5)]
    assert replayed(*five).reserved == 20 * MIB
    assert replayed(*five, (5, 4 * MIB)).reserved == 40 * MIB
    # holes of 4 and of 8 MiB: 3.5 MiB go into the smaller, whole; 8 MiB still fit into the other
    holes = [(1, -4 * MIB), (3, -4 * MIB), (4, -4 * MIB)]
    allocator = replayed(*five, *holes, (6, 3 * MIB + 512 * KIB), (7, 8 * MIB))
    assert (allocator.reserved, allocator.allocated) == (20 * MIB, 20 * MIB)


def test_neighbours_join_and_other_segments_dont() -> None:
    assert replayed((1, 12 * MIB), (2, 12 * MIB), (1, -12 * MIB), (2, -12 * MIB), (3, 24 * MIB)).reserved == 48 * MIB
    parts = [(i, 5 * MIB) for i in range(4)]
    allocator = replayed(*parts, *((i, -5 * MIB) for i in (0, 2, 1, 3)), (9, 20 * MIB))
    assert allocator.reserved == allocator.peak == 20 * MIB


@given(st.lists(st.tuples(st.integers(1, 40 * MIB), st.booleans()), max_size=16))
def test_what_is_reserved_holds_what_is_allocated_and_serves_again(requests: list[tuple[int, bool]]) -> None:
    """Requests after which some are freed at once; then all, after which the same requests reserve nothing new."""
    events: list[MemoryEvent] = []
    live: dict[int, int] = {}
    for address, (size, freed) in enumerate(requests):
        events.append(MemoryEvent(address, size))
        live[address] = size
        if freed:
            events.append(MemoryEvent(address, -live.pop(address)))
    allocator = replayed(*events)
    assert sum(live.values()) <= allocator.allocated <= allocator.reserved <= allocator.peak
    assert allocator.allocated <= sum(-(-size // 512) * 512 + MIB for size in live.values())
    allocator.add(MemoryEvent(address, -size) for address, size in live.items())
    assert allocator.allocated == 0
    before = allocator.reserved
    for size, _ in requests:
        allocator.add([MemoryEvent(0, size), MemoryEvent(0, -size)])
    assert allocator.reserved == before


def test_the_least_limit_is_enough_and_a_segment_less_is_not() -> None:
    # 12 MiB, whose segment is given back for 30 MiB: 30 are enough, though 42 would be reserved
    events = [MemoryEvent(1, 12 * MIB), MemoryEvent(1, -12 * MIB), MemoryEvent(2, 30 * MIB)]
    assert replayed(*events).peak == 42 * MIB
    assert least_limit(events) == 30 * MIB
    CachingAllocator(30 * MIB).add(events)
    with pytest.raises(MemoryError, match="over the limit"):
        CachingAllocator(28 * MIB).add(events)
    assert least_limit([]) == 0
