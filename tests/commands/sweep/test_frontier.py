from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from edgefl.commands.sweep.answer import CellRow
from edgefl.commands.sweep.frontiers import AGAINST, frontiers
from tests.toys.answers import recorded_sweep

SOME = recorded_sweep().costed_cells[0]


def row(label: str, share: float, cost: float, method: str = "fedavg") -> CellRow:
    return replace(SOME, label=label, method=method, eligible_share=share, **dict.fromkeys(AGAINST, cost))


def test_by_hand() -> None:
    rows = [row("dear", 1.0, 9.0), row("cheap", 0.5, 2.0), row("beaten", 0.4, 3.0), row("level", 0.5, 2.0),
            row("empty", 0.0, 0.0), row("other", 0.1, 50.0, "fedcola")]  # fmt: skip
    found = frontiers(rows)
    one = found["fedavg"].schedule_bytes
    assert [point.label for point in one.frontier] == ["cheap", "level", "dear"]
    assert one.dominated == {"beaten": "cheap"} and found["fedavg"].nobody == ["empty"]
    # a method is held against itself alone
    assert [point.label for point in found["fedcola"].schedule_seconds.frontier] == ["other"]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=12))
def test_as_the_definition_says(points: list[tuple[int, int]]) -> None:
    rows = [row(str(i), share / 4, float(cost)) for i, (share, cost) in enumerate(points)]
    able = [i for i, (share, _) in enumerate(points) if share]

    def beats(i: int, j: int) -> bool:
        (a, x), (b, y) = points[i], points[j]
        return a >= b and x <= y and (a, x) != (b, y)

    one = frontiers(rows)["fedavg"].schedule_seconds
    free = {str(j) for j in able if not any(beats(i, j) for i in able)}
    assert {point.label for point in one.frontier} == free
    assert one.dominated.keys() == {str(j) for j in able} - free
    assert all(beats(int(by), int(label)) and by in free for label, by in one.dominated.items())
