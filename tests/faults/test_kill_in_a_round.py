"""A run that is killed in the middle of a round goes on there, and ends with the bytes of an uninterrupted one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import edgefl
from edgefl.runs import Run
from edgefl.simulation.learning import shards

pytestmark = pytest.mark.filterwarnings("ignore:.* has no checkpoint:RuntimeWarning")  # a resume says so
Tiny = Callable[..., dict[str, Any]]
Small = Callable[..., dict[str, Any]]
WORKERS = {"name": "processes", "workers": 2, "device": "cpu"}
UNEQUAL = ("environment.json", "host.jsonl", "scenario.yaml", "files.json", "writer.lock")
"""Files that name the time, the machine or the executor, and the digests of all files."""

CHILD = """
import json, os, signal, sys
import edgefl
from edgefl.simulation import landings
from edgefl.simulation.learning import shards

landings.PART_SECONDS = landings.LEAST_RATIO = 0.0
shards.FEWEST_SHARDS = int(sys.argv[4])
scenario, output, number = json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3])
seen = 0

def observe(name, facts):
    global seen
    seen += name == "client"
    if seen == number:
        os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    edgefl.run(scenario, output=output, on_progress=observe)
"""


def killed(scenario: dict[str, Any], output: Path, number: int, fewest_shards: int = 64) -> None:
    """Run in a process that writes its round after each client, and kills itself when client ``number`` lands."""
    script = output.with_suffix(".py")
    script.write_text(CHILD)
    done = subprocess.run(
        [sys.executable, str(script), json.dumps(scenario), str(output), str(number), str(fewest_shards)],
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr


def files(run: Run) -> dict[str, bytes]:
    """The files of a run that don't name the time or the machine."""
    found = {str(p.relative_to(run.path)): p.read_bytes() for p in run.path.rglob("*") if p.is_file()}
    state = next(name for name in found if name.endswith("state.json"))
    manifest = json.loads(found.pop(state))
    found["state"] = json.dumps({**manifest["state"], "written": manifest["tensors_blake2b"]}).encode()
    return {name: content for name, content in found.items() if name not in UNEQUAL}


def resumed(output: Path, *overrides: str) -> tuple[Run, list[int]]:
    """The run, resumed, and which of all its trainings took place after that."""
    parts = (output / "unfinished").glob("round-*/state.json")
    known = [row[1]["host"] for path in parts for row in json.loads(path.read_bytes())["state"]["landed"]]
    known += [json.loads(line) for line in (output / "host.jsonl").read_text().splitlines()]
    run = edgefl.run(resume=output, overrides=overrides)
    walls = {host["wall_seconds"] for host in known}
    return run, [number for number, host in enumerate(run.records("host")) if host["wall_seconds"] not in walls]


@pytest.fixture
def small(tiny: Tiny) -> Small:
    def make(**sections: Any) -> dict[str, Any]:
        data = {"source": "glyphs", "clients": {"image": 6, "text": 2}, "partition": {"quantity": 1.0},
                "samples": 40, "validation": 20, "test": 20}  # fmt: skip
        schedule = {"name": "end-to-end", "rounds": 2}
        return tiny(data=data, schedule=schedule, round={"cohort": 1.0}) | sections

    return make


CASES = {
    "mean": {},
    "kept": {"method": {"name": "fedavg", "personal": ["norm"]}},
    "tables": {"method": {"name": "fedhkd", "prototypes_of": "all"},
               "model": {"multiway": {"blocks": 2, "width": 16, "heads": 2}}},
    "slices": {"schedule": {"name": "heterofl", "rounds": 2}, "fleet": {"budgets": {"memory": "100..400 KiB"}}},
    "two attempts": {"round": {"cohort": 1.0, "quorum": 7, "below_quorum": "wait", "retry": 0.1, "patience": 1e5},
                     "fleet": {"failures": {"training": "15%"}}},
}  # fmt: skip


@pytest.mark.parametrize(
    "case", [case if case in ("mean", "kept") else pytest.param(case, marks=pytest.mark.slow) for case in CASES]
)
def test_the_bytes_are_those_of_an_uninterrupted_run(small: Small, tmp_path: Path, case: str) -> None:
    scenario = small(**({"method": "fedavg"} | CASES[case]))
    whole = edgefl.run(scenario, output=tmp_path / "whole")
    number = 3 if case == "slices" else 13  # few clients are eligible there
    killed(scenario, tmp_path / "run", number)
    run, trained = resumed(tmp_path / "run")
    assert files(run) == files(whole)
    assert trained[0] == number - 1  # the last one trains again: it wasn't added up when the process ended


def test_clients_whose_sum_is_not_complete_train_again(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "FEWEST_SHARDS", 2)  # the six image clients are added up by threes
    whole = edgefl.run(small(method="fedavg"), output=tmp_path / "whole")
    killed(small(method="fedavg"), tmp_path / "run", 5, fewest_shards=2)
    run, trained = resumed(tmp_path / "run")
    assert files(run) == files(whole)
    assert trained[0] == 3  # three have landed and are added up, and one of the next three


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after"), [(WORKERS, "executor.name=inline"), ({"name": "inline"}, "executor.name=processes")]
)
def test_the_executor_may_change_in_a_round(small: Small, tmp_path: Path, before: dict[str, Any], after: str) -> None:
    scenario = small(method="fedavg")
    whole = edgefl.run(scenario, output=tmp_path / "whole")
    killed({**scenario, "executor": before}, tmp_path / "run", 5)
    run, trained = resumed(tmp_path / "run", after)
    assert files(run) == files(whole) and trained[0] == 4


def test_a_round_that_is_damaged_trains_again(small: Small, tmp_path: Path) -> None:
    scenario = small(method={"name": "fedavg", "personal": ["norm"]})
    whole = edgefl.run(scenario, output=tmp_path / "whole")
    killed(scenario, tmp_path / "run", 5)
    (part,) = (tmp_path / "run" / "unfinished").glob("round-*/state.safetensors")
    with part.open("r+b") as file:
        file.truncate(os.path.getsize(part) // 2)
    with pytest.warns(RuntimeWarning, match="round-000001 is damaged, and the clients of round 1 train again"):
        run, trained = resumed(tmp_path / "run")
    assert files(run) == files(whole) and trained == list(range(16))
