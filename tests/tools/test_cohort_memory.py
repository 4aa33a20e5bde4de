"""tools/cohort_memory.py: a cohort of four times as many clients takes no more memory, whatever the rule."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "cohort_memory.py"
MODEL_MB = 85


@pytest.mark.slow(smaller="test_what_is_held_of_a_cohort")
@pytest.mark.parametrize(("workers", "rule"), [(0, "mean"), (2, "mean"), (0, "median")])
def test_memory_does_not_grow_with_the_cohort(tmp_path: Path, workers: int, rule: str) -> None:
    """Of the updates of 24 clients more fewer than three would fit into the difference."""
    figures = tmp_path / "figures.json"
    arguments = ["--clients", "8", "32", "--workers", str(workers), "--rule", rule, "--updates-memory", "100 MB"]
    done = subprocess.run(
        [sys.executable, str(TOOL), *arguments, "--out", str(figures)], capture_output=True, text=True, timeout=3600
    )
    assert done.returncode == 0, done.stderr
    small, large = json.loads(figures.read_text())
    assert (small["clients"], large["clients"]) == (8, 32)
    assert large["private"] - small["private"] < 3 * MODEL_MB * 1e6
    assert len(done.stdout.splitlines()) == 3
