"""A long asynchronous run keeps its memory: what it holds doesn't grow with the number of rounds."""

from __future__ import annotations

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


def test_the_state_of_an_asynchronous_run_does_not_grow_with_its_rounds(tiny: Scenario, tmp_path: Path) -> None:
    """What later rounds depend on: a checkpoint holds it, and so does memory."""

    def state_bytes(rounds: int) -> int:
        run = edgefl.run(long_run(tiny, rounds, training={"mode": "none"}), out=tmp_path / f"{rounds}")
        [state] = run.path.glob(f"checkpoints/round-*{rounds}/state.json")
        return state.stat().st_size

    assert state_bytes(40) < 1.1 * state_bytes(10)  # numbers have more digits


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


@pytest.mark.slow(smaller="test_the_state_of_an_asynchronous_run_does_not_grow_with_its_rounds")
def test_three_thousand_rounds_of_training_take_no_more_memory_than_three_hundred(
    tiny: Scenario, tmp_path: Path
) -> None:
    """It was 391.4 and 393.5 MiB."""
    given = json.dumps(long_run(tiny, 3000))
    command = [sys.executable, "-c", RESIDENT, given, str(tmp_path / "run")]
    early, late = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert late < 1.03 * early
