"""A run that is killed in the middle of a round trains no work again that was written, and ends with the same bytes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from killed import killed_at

import edgefl
from edgefl.runs import Run, unfinished
from edgefl.simulation.learning import shards
from edgefl.training import Assignment, Inline

pytestmark = pytest.mark.filterwarnings("ignore:.* has no checkpoint:RuntimeWarning")  # a resume says so
Tiny = Callable[..., dict[str, Any]]
Small = Callable[..., dict[str, Any]]
WORKERS = {"name": "processes", "workers": 2, "device": "cpu"}
UNEQUAL = ("environment.json", "host.jsonl", "scenario.yaml", "files.json", "writer.lock")
"""Files that name the time, the machine or the executor, and the digests of all files."""


def killed(scenario: dict[str, Any], output: Path, number: int, fewest_shards: int = 64) -> None:
    """Run in a process that writes each work as it ends, and kills itself when client ``number`` lands."""
    at_once = {"edgefl.runs.unfinished:FIRST_SECONDS": 0.0, "edgefl.runs.unfinished:LEAST_RATIO": 0.0}
    shared = {"edgefl.simulation.learning.shards:FEWEST_SHARDS": fewest_shards}
    killed_at(scenario, output, "client", number, at_once | shared)


def files(run: Run) -> dict[str, bytes]:
    """The files of a run that don't name the time or the machine."""
    found = {str(p.relative_to(run.path)): p.read_bytes() for p in run.path.rglob("*") if p.is_file()}
    state = next(name for name in found if name.endswith("state.json"))
    manifest = json.loads(found.pop(state))
    found["state"] = json.dumps({**manifest["state"], "written": manifest["tensors_blake2b"]}).encode()
    return {name: content for name, content in found.items() if name not in UNEQUAL}


def written(output: Path) -> set[float]:
    """The wall seconds of the trainings of clients that lie in the folder of a killed run."""
    found = set()
    for path in (output / "unfinished").glob("client-*.bin"):
        head = json.loads(path.read_bytes().split(b"\n", 2)[1])
        found |= {each["host"]["wall_seconds"] for each in (head, *head["others"])}
    return found


def walls(run: Path) -> list[float]:
    """The wall seconds of the trainings that a run has recorded."""
    return [json.loads(line)["wall_seconds"] for line in (run / "host.jsonl").read_text().splitlines()]


def resumed(output: Path, *overrides: str) -> tuple[Run, list[int]]:
    """The run, resumed, and which of all its trainings took place after that; those that were written did not."""
    before = written(output)
    known = before | set(walls(output))
    run = edgefl.run(resume=output, overrides=overrides)
    now = walls(output)
    assert before <= set(now)
    return run, [number for number, wall in enumerate(now) if wall not in known]


@pytest.fixture
def small(tiny: Tiny) -> Small:
    def make(**sections: Any) -> dict[str, Any]:
        data = {"source": "glyphs", "clients": {"image": 6, "text": 2}, "partition": {"quantity": 1.0},
                "samples": 40, "validation": 20, "test": 20}  # fmt: skip
        schedule = {"name": "end-to-end", "rounds": 2}
        return tiny(data=data, schedule=schedule, round={"cohort": 1.0}) | sections

    return make


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The clients whose tasks are run in this process."""
    clients: list[int] = []
    submit = Inline.submit

    def counted(executor: Inline, task: Assignment) -> Any:
        clients.extend(each.client for each in (task, *task.others) if each.client is not None)
        return submit(executor, task)

    monkeypatch.setattr(Inline, "submit", counted)
    return clients


CASES = {
    "mean": {},
    "kept": {"method": {"name": "fedavg", "personal": ["norm"]}},
    "tables": {"method": {"name": "fedhkd", "prototypes_of": "all"},
               "model": {"multiway": {"blocks": 2, "width": 16, "heads": 2}}},
    "slices": {"schedule": {"name": "heterofl", "rounds": 2}, "fleet": {"budgets": {"memory": "100..400 KiB"}}},
    "two attempts": {"round": {"cohort": 1.0, "quorum": 7, "below_quorum": "wait", "retry": 0.1, "patience": 1e5},
                     "fleet": {"failures": {"training": "15%"}}},
    "median": {"aggregation": {"rule": "median"}},
    "codec": {"payload": {"up": {"top_k": 0.5}}},
    "attackers": {"fleet": {"failures": {"attack": {"name": "sign-flip", "share": "25%"}}}},
}  # fmt: skip


@pytest.mark.parametrize(
    "case", [case if case in ("mean", "kept") else pytest.param(case, marks=pytest.mark.slow) for case in CASES]
)
def test_the_bytes_are_those_of_an_uninterrupted_run(
    small: Small, tmp_path: Path, trainings: list[int], case: str
) -> None:
    scenario = small(**({"method": "fedavg"} | CASES[case]))
    whole = edgefl.run(scenario, out=tmp_path / "whole")
    number = 3 if case == "slices" else 13  # few clients are eligible there
    all_clients = len(trainings)
    trainings.clear()
    killed(scenario, tmp_path / "run", number)
    run, trained = resumed(tmp_path / "run")
    assert files(run) == files(whole) and not (run.path / "unfinished").exists()
    assert trained == list(range(number, all_clients)) and len(trainings) == all_clients - number > 0


def test_clients_that_are_added_up_where_they_train_are_written_together(
    small: Small, tmp_path: Path, trainings: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "FEWEST_SHARDS", 2)  # the six image clients are added up by threes
    whole = edgefl.run(small(method="fedavg"), out=tmp_path / "whole")
    trainings.clear()
    killed(small(method="fedavg"), tmp_path / "run", 5, fewest_shards=2)
    run, trained = resumed(tmp_path / "run")
    assert files(run) == files(whole)
    assert trained == list(range(6, 16)) and len(trainings) == 10  # two of the second sum had landed


@pytest.mark.slow(smaller="test_the_bytes_are_those_of_an_uninterrupted_run")
@pytest.mark.parametrize("policy", ["buffered", "asynchronous", "semi-synchronous"])
def test_clients_under_way_at_a_checkpoint_are_not_trained_again(
    small: Small, tmp_path: Path, trainings: list[int], policy: str
) -> None:
    """Four clients are under way at a time, and train as soon as they are sent off; the third round is under way."""
    options = {"buffered": {"buffer": 3}, "asynchronous": {}, "semi-synchronous": {"window": "0.05 s"}}[policy]
    scenario = small(
        method="fedavg", schedule={"name": "end-to-end", "rounds": 8}, round={"policy": policy, "cohort": 4, **options}
    )
    whole = edgefl.run(scenario, out=tmp_path / "whole")
    trainings.clear()
    killed({**scenario, "executor": WORKERS}, tmp_path / "run", 7)
    assert written(tmp_path / "run") - set(walls(tmp_path / "run"))
    run, trained = resumed(tmp_path / "run", "executor.name=inline")
    assert files(run) == files(whole) and not (run.path / "unfinished").exists()
    assert len(trained) == len(trainings) < len(walls(run.path)) - 6


@pytest.mark.slow(smaller="test_the_bytes_are_those_of_an_uninterrupted_run")
@pytest.mark.parametrize(
    ("before", "after"), [(WORKERS, "executor.name=inline"), ({"name": "inline"}, "executor.name=processes")]
)
def test_the_executor_may_change_in_a_round(small: Small, tmp_path: Path, before: dict[str, Any], after: str) -> None:
    scenario = small(method="fedavg")
    whole = edgefl.run(scenario, out=tmp_path / "whole")
    killed({**scenario, "executor": before}, tmp_path / "run", 5)
    there = len(written(tmp_path / "run"))
    run, trained = resumed(tmp_path / "run", after)
    assert files(run) == files(whole) and len(trained) == 16 - there <= 11


def test_a_work_that_is_damaged_trains_again(small: Small, tmp_path: Path, trainings: list[int]) -> None:
    scenario = small(method={"name": "fedavg", "personal": ["norm"]})
    whole = edgefl.run(scenario, out=tmp_path / "whole")
    trainings.clear()
    killed(scenario, tmp_path / "run", 5)
    damaged, *others = sorted((tmp_path / "run" / "unfinished").glob("client-*.bin"))
    with damaged.open("r+b") as file:
        file.truncate(os.path.getsize(damaged) // 2)
    before = written(tmp_path / "run")
    with pytest.warns(RuntimeWarning, match=f"{damaged.name} is damaged, and its client trains again"):
        run = edgefl.run(resume=tmp_path / "run")
    assert files(run) == files(whole) and before - set(walls(run.path)) and len(others) == 4
    assert len(trainings) == 16 - 4


def test_a_short_round_is_not_written(small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unfinished.UnfinishedWorks, "write", None)
    assert edgefl.run(small(method="fedavg"), out=tmp_path / "run").is_finished
