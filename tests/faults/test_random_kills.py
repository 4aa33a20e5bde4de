"""Runs of every method, policy and executor that are killed at any moment end as they would have without it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest

import edgefl
from edgefl import registry
from edgefl.commands.doctor import COMPARED
from edgefl.commands.verify.verify import verify
from edgefl.errors import EdgeflError
from edgefl.runs import begun, read_run

Tiny = Callable[..., dict[str, Any]]

KILLS = 50
PARTS = 5
"""Tests into which the kills are divided."""

POLICIES: tuple[dict[str, Any], ...] = (
    {"policy": "synchronous"},
    {"policy": "synchronous", "over_selection": 0.3, "cohort": 0.5},
    {"policy": "asynchronous"},
    {"policy": "buffered"},
    {"policy": "semi-synchronous"},
)
EXECUTORS: tuple[dict[str, Any], ...] = (
    {"name": "inline"}, {"name": "inline", "clock": "events"}, {"name": "processes", "workers": 2},
)  # fmt: skip
SCHEDULES: tuple[dict[str, Any], ...] = (
    {"name": "end-to-end", "rounds": 4}, {"name": "layerwise", "stages": 2, "rounds": 4},
    {"name": "progressive", "stages": 2, "rounds": 4}, {"name": "elastic", "stages": 2, "rounds": 4},
    {"name": "heterofl", "rounds": 4},
)  # fmt: skip
EXCHANGES = ("creamfl", "reamfl-mean", "reamfl-avg", "reamfl-iot", "fedmd", "fedet", "fedgems")

CHILD = """
import json, os, signal, sys
import edgefl
from edgefl.errors import EdgeflError

given, seconds, event, number = json.loads(sys.argv[1])
seen = 0

def observe(name, facts):
    global seen
    if name == "start" and seconds is not None:
        signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-6))
    seen += name == event
    if seen == number:
        os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    edgefl.run(**given, on_progress=observe)
"""
"""Kills itself after so many seconds of the rounds (SIGALRM ends a process as SIGKILL does), or at an event."""


def chosen(tiny: Tiny, random: Random) -> dict[str, Any]:
    """A scenario of a random method, policy, schedule and executor that go together."""
    while True:
        method = random.choice(registry.names("method"))
        options = {"pairs": 10, "public_batch": 4} if method in EXCHANGES else {}
        scenario = tiny(
            method={"name": method, **options},
            schedule=random.choice(SCHEDULES),
            round={"cohort": 1.0, **random.choice(POLICIES)},
            executor={**random.choice(EXECUTORS), "device": "cpu"},
            seed=random.randrange(3),
        )
        scenario["data"] = {**scenario["data"], "clients": {"image": 2, "text": 1, "image-text": 2}, "samples": 16,
                            "public": 20}  # fmt: skip
        try:
            edgefl.validate(scenario)
        except EdgeflError:
            continue
        return scenario


def content(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in COMPARED}


def killed(given: dict[str, Any], seconds: float | None, event: str, number: int, script: Path) -> bool:
    """Run or resume in a process of its own; whether it was killed before its end."""
    done = subprocess.run(
        [sys.executable, str(script), json.dumps([given, seconds, event, number])],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode in (0, -signal.SIGKILL, -signal.SIGALRM), done.stderr
    return done.returncode != 0


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_a_run_killed_at_any_moment_ends_as_an_uninterrupted_one(tiny: Tiny, tmp_path: Path, part: int) -> None:
    random = Random(part)
    script = tmp_path / "child.py"
    script.write_text(CHILD)
    kills = 0

    @cache
    def uninterrupted(text: str) -> tuple[dict[str, bytes], float]:
        folder = tmp_path / f"whole-{len(list(tmp_path.iterdir()))}"
        began = time.perf_counter()
        edgefl.run(json.loads(text), output=folder)
        return content(folder), time.perf_counter() - began

    case = 0
    while kills < KILLS // PARTS:
        case += 1
        assert case <= 5 * KILLS, "almost no kill came before the end"
        scenario = chosen(tiny, random)
        expected, seconds = uninterrupted(json.dumps(scenario))
        folder = tmp_path / f"killed-{case}"
        given: dict[str, Any] = {"scenario": scenario, "output": str(folder)}
        for _ in range(random.choice((1, 1, 2))):
            if random.random() < 0.5:
                after, event, number = random.uniform(0, seconds), "", -1
            else:
                after, event, number = None, random.choice(("round", "client", "record")), random.randint(1, 12)
            ended = not killed(given, after, event, number, script)
            kills += not ended
            if begun(folder):
                given = {"resume": str(folder)}
            else:  # nothing to go on from: a new run takes a new folder
                folder = folder.with_name(f"{folder.name}-anew")
                given = {"scenario": scenario, "output": str(folder)}
            if ended:
                break
        edgefl.run(**given)
        what = f"{scenario['method']}, {scenario['schedule']}, {scenario['round']}, {scenario['executor']}"
        found = content(folder)
        assert [name for name in expected if found[name] != expected[name]] == [], what
        assert read_run(folder).finished and verify(folder)["valid"], what
