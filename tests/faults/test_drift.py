"""Memory doesn't grow with the rounds."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import pytest

Tiny = Callable[..., dict[str, Any]]

ROUNDS, SETTLED, WINDOW = 2000, 300, 50

CHILD = """
import json, sys
import psutil
import edgefl

process, sizes = psutil.Process(), []

def observe(name, facts):
    if name == "record":
        sizes.append(process.memory_info().rss)

edgefl.run(json.loads(sys.argv[1]), out=sys.argv[2], on_progress=observe)
print(json.dumps(sizes))
"""


def sizes(scenario: dict[str, Any], folder: Path) -> list[int]:
    """Resident bytes of a process after each round of a scenario."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, json.dumps(scenario), str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found: list[int] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow(smaller="test_what_is_held_of_a_cohort")
@pytest.mark.parametrize("mode", ["real", "none"])
@pytest.mark.parametrize("policy", ["synchronous", "asynchronous"])
def test_two_thousand_rounds_take_no_more_memory_than_three_hundred(
    tiny: Tiny, tmp_path: Path, mode: str, policy: str
) -> None:
    scenario = tiny(
        schedule={"name": "end-to-end", "rounds": ROUNDS},
        training={"mode": mode, "batch": 8},
        round={"cohort": 0.5, "policy": policy},
        evaluation={"every": 100},  # the first scoring takes buffers that stay
    )
    scenario["data"] = {**scenario["data"], "clients": {"image": 3, "text": 3}, "samples": 8}
    found = sizes(scenario, tmp_path / "run")
    assert len(found) == ROUNDS
    settled, last = median(found[SETTLED : SETTLED + WINDOW]), median(found[-WINDOW:])
    assert last < 1.01 * settled, f"{settled / 2**20:.1f} MiB after round {SETTLED}, {last / 2**20:.1f} MiB at the end"
