"""A long asynchronous run keeps its memory: what it holds doesn't grow with the number of rounds."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import edgefl

Scenario = Callable[..., dict[str, Any]]


def long_run(tiny: Scenario, rounds: int, **sections: Any) -> dict[str, Any]:
    return tiny(
        data={"source": "glyphs", "clients": {"image": 4}, "samples": 8, "validation": 8, "test": 8},
        model={"image": {"blocks": 1, "width": 8, "heads": 2}}, round={"policy": "asynchronous"},
        schedule={"name": "end-to-end", "rounds": rounds}, evaluation={"every": 100}, **sections,
    )  # fmt: skip


def test_an_asynchronous_run_holds_no_more_objects_after_twice_as_many_rounds(tiny: Scenario, tmp_path: Path) -> None:
    held: dict[int, int] = {}

    def count(record: Any) -> None:
        if record.round in (200, 500):
            gc.collect()
            held[record.round] = len(gc.get_objects())

    edgefl.run(long_run(tiny, 500, training={"mode": "none"}), out=tmp_path / "run", on_round=count)
    assert held[500] - held[200] < 150, held  # of two rounds not one


RESIDENT = """
import gc, json, psutil, sys
import edgefl
seen = []
def measure(record):
    if record.round in (300, 3000):
        gc.collect()
        seen.append(psutil.Process().memory_info().rss)
edgefl.run(json.loads(sys.argv[1]), out=sys.argv[2], on_round=measure)
print(json.dumps(seen))
"""


@pytest.mark.slow(smaller="test_an_asynchronous_run_holds_no_more_objects_after_twice_as_many_rounds")
def test_three_thousand_rounds_of_training_take_no_more_memory_than_three_hundred(
    tiny: Scenario, tmp_path: Path
) -> None:
    """It was 391.4 and 393.5 MiB."""
    given = json.dumps(long_run(tiny, 3000))
    command = [sys.executable, "-c", RESIDENT, given, str(tmp_path / "run")]
    early, late = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert late < 1.03 * early
