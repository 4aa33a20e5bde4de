"""A run that is killed goes on as if nothing had happened; what is finished stays as it is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from killed import killed_at
from safetensors.torch import load_file
from tensors import assert_equal_tensors

import edgefl
from edgefl.errors import RunError
from edgefl.runs import Run, read_run

pytestmark = pytest.mark.filterwarnings("ignore:.* has no checkpoint:RuntimeWarning")  # a resume says so
Tiny = Callable[..., dict[str, Any]]
LAYERWISE = {"name": "layerwise", "stages": 2, "rounds": 4}


def assert_equal(a: Run, b: Run) -> None:
    for table in ("rounds", "clients", "eligibility"):
        assert a.records(table) == b.records(table)  # type: ignore[arg-type]
    assert a.result == b.result and a.scenario == b.scenario and a.models == b.models
    left, right = load_file(a.path / "weights.safetensors"), load_file(b.path / "weights.safetensors")
    assert_equal_tensors(left, right)


@pytest.mark.parametrize(
    ("event", "number", "finished"),
    [
        ("client", 17, 2),  # in the middle of round 3: the first two are kept
        pytest.param("record", 2, 1, marks=pytest.mark.slow),  # round 2 is recorded, its checkpoint isn't written
        pytest.param("round", 1, 0, marks=pytest.mark.slow),  # before anything is kept
        pytest.param("record", 4, 3, marks=pytest.mark.slow),  # the last round, before the end is written
    ],
)
def test_a_killed_run_ends_as_an_uninterrupted_one(
    tiny: Tiny, layerwise_run: Run, tmp_path: Path, event: str, number: int, finished: int
) -> None:
    output = tmp_path / "run"
    executor = layerwise_run.scenario["executor"]
    killed_at(tiny(method="fedcola", schedule=LAYERWISE, executor=executor), output, event, number)
    broken = read_run(output)
    assert not broken.is_finished
    with (output / "clients.jsonl").open("a") as file:
        file.write('{"round": 3, "clie')  # as a write that was cut off leaves it
    heard: list[int] = []
    resumed = edgefl.run(
        resume=output, on_progress=lambda e, facts: heard.append(facts["round"]) if e == "round" else None
    )
    assert heard == list(range(finished + 1, 5))
    assert_equal(resumed, layerwise_run)


def content(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(p.relative_to(folder)): (p.read_bytes(), p.stat().st_mtime_ns) for p in folder.rglob("*") if p.is_file()
    }


def test_resuming_a_finished_run_changes_nothing(layerwise_run: Run) -> None:
    before = content(layerwise_run.path)
    heard: list[str] = []
    again = edgefl.run(resume=layerwise_run.path, on_progress=lambda event, facts: heard.append(event))
    assert content(layerwise_run.path) == before
    assert again.result == layerwise_run.result and "round" not in heard


@pytest.mark.slow(smaller="test_a_killed_run_ends_as_an_uninterrupted_one")
def test_a_killed_comparison_goes_on_where_it_was(tiny: Tiny, layerwise_run: Run, tmp_path: Path) -> None:
    """Killed in round 2 of the second run; the first is finished and stays, the third was not begun."""
    begun, short = ({**LAYERWISE, "rounds": rounds} for rounds in (2, 3))  # as the others: predicted once
    scenario = tiny(method="fedcola", compare={"schedule": [begun, LAYERWISE, short]})
    output = tmp_path / "comparison"
    killed_at(scenario, output, "round", 4)
    broken = read_run(output)
    assert not broken.is_finished
    first = next(iter(broken.runs.values()))
    assert first.is_finished and len(broken.runs) == 2
    before = content(first.path)
    resumed = edgefl.run(resume=output)
    assert content(first.path) == before
    assert resumed.is_finished and len(resumed.runs) == 3
    layerwise = next(r for r in resumed.runs.values() if r.scenario["schedule"]["rounds"] == 4)
    for table in ("rounds", "clients", "eligibility"):
        assert layerwise.records(table) == layerwise_run.records(table)  # type: ignore[arg-type]
    assert layerwise.result == layerwise_run.result


def test_what_cannot_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="there is no run at"):
        edgefl.run(resume=tmp_path / "nothing")
    (tmp_path / "file.txt").write_text("")
    with pytest.raises(RunError, match="not the folder of a run"):
        edgefl.run(resume=tmp_path)


def alive(process: psutil.Process) -> bool:
    """A process that has ended stays listed until someone asks how."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.slow(smaller="test_a_killed_run_ends_as_an_uninterrupted_one")
def test_a_run_with_workers_is_killed_from_outside(tiny: Tiny, layerwise_run: Run, tmp_path: Path) -> None:
    """Its workers end with it, and the run goes on inline or in processes with the same result."""
    output = tmp_path / "run"
    scenario = tiny(method="fedcola", schedule=LAYERWISE, executor={"name": "processes", "workers": 2, "device": "cpu"})
    script = tmp_path / "child.py"
    script.write_text(
        "import json, sys, edgefl\nif __name__ == '__main__': edgefl.run(json.loads(sys.argv[1]), out=sys.argv[2])"
    )
    child = subprocess.Popen([sys.executable, str(script), json.dumps(scenario), str(output)])
    try:
        while not (output / "rounds.jsonl").is_file() or not (output / "rounds.jsonl").read_bytes():
            assert child.poll() is None
            time.sleep(0.02)
        # forks of a server, where there is one
        of_it = psutil.Process(child.pid).children(recursive=True)
        forks = [process for process in of_it if process.ppid() != child.pid]
        workers = forks or [process for process in of_it if "spawn_main" in " ".join(process.cmdline())]
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    assert len(workers) == 2
    for _ in range(6000):
        if not any(alive(worker) for worker in workers):
            break
        time.sleep(0.05)
    else:
        raise AssertionError("the workers outlive their run")
    resumed = edgefl.run(resume=output)
    assert resumed.scenario["executor"]["name"] == "processes"
    for table in ("rounds", "clients", "eligibility"):
        assert resumed.records(table) == layerwise_run.records(table)  # type: ignore[arg-type]
    left, right = (load_file(r.path / "weights.safetensors") for r in (resumed, layerwise_run))
    assert_equal_tensors(left, right)
