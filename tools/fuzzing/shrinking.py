"""Makes a case smaller while it still shows the same failure (delta debugging: Zeller and Hildebrandt, 2002)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from fuzzing.case import Case

Part = TypeVar("Part")


def smaller(parts: Sequence[Part], fails: Callable[[Sequence[Part]], bool], until: float) -> Sequence[Part]:
    """A subsequence that still fails, from which no single part can be left out; sought until the monotonic time."""
    count = 2
    while len(parts) > 1 and time.monotonic() < until:
        size = -(-len(parts) // count)
        for start in range(0, len(parts), size):
            rest = [*parts[:start], *parts[start + size :]]
            if time.monotonic() < until and fails(rest):
                parts, count = rest, max(2, count - 1)
                break
        else:
            if size == 1:
                break
            count = min(len(parts), 2 * count)
    return parts


def shrunk(case: Case, shows: Callable[[Case], bool], seconds: float) -> Case:
    """The case with the hostile files made smaller, first by lines and then by characters."""
    until = time.monotonic() + seconds
    for name in sorted(set(case.files) - set(case.hostile)):
        without = case.with_file(name, None)
        if case.kind != "runs" and time.monotonic() < until and shows(without):
            case = without
    for cut in (_lines, _bytes):
        for name in case.hostile:
            content = case.files.get(name)
            if not isinstance(content, bytes) or (cut is _bytes and len(content) > 20_000):
                continue

            def fails(parts: Sequence[bytes], case: Case = case, name: str = name) -> bool:
                return shows(case.with_file(name, b"".join(parts)))

            case = case.with_file(name, b"".join(smaller(cut(content), fails, until)))
    return case


def _lines(content: bytes) -> list[bytes]:
    return content.splitlines(keepends=True)


def _bytes(content: bytes) -> list[bytes]:
    return [content[i : i + 1] for i in range(len(content))]
