"""Combinations that run side by side or as shards give what they give one after the other."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import psutil
import pytest
from cell_works import ends_itself, fails_at_two, where
from small_grid import GRID, contents

import edgefl
from edgefl.cells.cells import kept_workers, run_cells, shard_of, share_of
from edgefl.cells.workers import Cell
from edgefl.errors import EdgeflError, RunError
from edgefl.runs import comparison, read_run

pytestmark = pytest.mark.usefixtures("with_pictures")  # workers draw theirs


@pytest.fixture(scope="module")
def serial(tmp_path_factory):
    folder = tmp_path_factory.mktemp("serial") / "run"
    edgefl.run(GRID, out=folder)
    return folder


@pytest.mark.slow(smaller="test_rows_of_a_sweep_are_equal_side_by_side_and_in_shards")
def test_runs_side_by_side_have_the_bytes_of_runs_one_after_the_other(serial, tmp_path):
    events = []
    edgefl.run(GRID, out=tmp_path / "run", jobs=2, on_progress=lambda event, facts: events.append((event, facts)))
    assert contents(tmp_path / "run") == contents(serial)
    cells = [facts for event, facts in events if event == "cell"]
    assert [facts["done"] for facts in cells if facts["status"] == "done"] == [1, 2, 3, 4]
    assert cells[-1]["share"] == 1.0


@pytest.mark.slow(smaller="test_shards_are_disjoint_and_cover_all")
def test_shards_share_a_folder_and_the_last_one_finishes_it(serial, tmp_path):
    folder = tmp_path / "run"
    first = edgefl.run(GRID, out=folder, shard="2/3")
    assert not first.is_finished
    edgefl.run(GRID, out=folder, shard="3/3")
    assert edgefl.run(GRID, out=folder, shard="1/3").is_finished
    assert contents(folder) == contents(serial)
    with pytest.raises(RunError, match="the comparison of another scenario"):
        edgefl.run(GRID, out=folder, shard="1/3", overrides=["training.batch=4"])


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_error_ends_its_own_cell_only(jobs):
    cells = [Cell(str(number), number) for number in range(5)]
    outcomes = list(run_cells(fails_at_two, cells, jobs, lambda event, facts: None))
    assert [outcome.label for outcome in outcomes] == ["0", "1", "2", "3", "4"]
    assert [outcome.answer for outcome in outcomes] == [0, 1, None, 3, 4]
    assert [str(outcome.error) for outcome in outcomes if outcome.error] == ["two is refused"]


def test_workers_stay_alive_from_one_list_of_cells_to_the_next():
    cells = [Cell(str(number), 0.2) for number in range(4)]
    with kept_workers(where, 2, lambda event, facts: None) as run:
        first, second, third = (run(cells[:count]) for count in (4, 4, 1))
        assert [outcome.label for outcome in first] == ["0", "1", "2", "3"]
        workers = {outcome.answer for outcome in first}
        assert len(workers) == 2 and {outcome.answer for outcome in (*second, *third)} <= workers
        assert all(psutil.pid_exists(worker) for worker in workers)
    assert not any(psutil.pid_exists(worker) for worker in workers)


def test_one_job_of_kept_workers_is_this_process():
    with kept_workers(where, 1, lambda event, facts: None) as run:
        assert {outcome.answer for outcome in run([Cell("a", 0), Cell("b", 0)])} == {os.getpid()}


def test_kept_workers_that_are_killed_are_replaced(tmp_path):
    with kept_workers(ends_itself, 2, lambda event, facts: None) as run:
        for name in "ab":
            cells = [Cell(name, (str(tmp_path / name), 1)), Cell("c", (str(tmp_path / "c"), 0))]
            with pytest.warns(RuntimeWarning, match="ended by signal SIGKILL; it is begun once more"):
                outcomes = run(cells)
            assert [outcome.answer for outcome in outcomes] == ["survived", "survived"]


def test_a_cell_whose_worker_was_killed_is_begun_once_more(tmp_path):
    cells = [Cell("once", (str(tmp_path / "a"), 1)), Cell("always", (str(tmp_path / "b"), 99))]
    cells.append(Cell("never", (str(tmp_path / "c"), 0)))
    with pytest.warns(RuntimeWarning, match="ended by signal SIGKILL; it is begun once more"):
        once, always, never = run_cells(ends_itself, cells, 2, lambda event, facts: None)
    assert once.answer == never.answer == "survived"
    assert str(always.error) == "its worker process was ended by signal SIGKILL, 2 times"
    assert isinstance(always.error, EdgeflError) and always.error.exit_code == 1


def test_shards_are_disjoint_and_cover_all():
    for of in (1, 2, 3, 7, 20):
        shares = [share_of(range(11), shard_of(f"{k}/{of}")) for k in range(1, of + 1)]
        assert sorted(number for share in shares for number in share) == list(range(11))


@pytest.mark.parametrize("text", ["0/2", "3/2", "1/0", "1", "x/2", "-1/2", "1/2/3", "1.5/2", ""])
def test_a_shard_outside_its_range_is_refused(text, tmp_path):
    with pytest.raises(RunError, match="shard") as refusal:
        edgefl.run(GRID, out=tmp_path / "run", shard=text)
    assert "\n" not in str(refusal.value) and refusal.value.exit_code == 2
    assert not (tmp_path / "run").exists()


def test_a_single_run_has_no_shards_and_jobs_are_counted_from_one(tmp_path):
    with pytest.raises(RunError, match="compares nothing"):
        edgefl.run({**GRID, "compare": {}}, out=tmp_path / "run", shard="1/2")
    with pytest.raises(RunError, match="jobs must be 1 or more"):
        edgefl.run(GRID, out=tmp_path / "run", jobs=0)


@pytest.mark.slow(smaller="test_rows_of_a_sweep_are_equal_side_by_side_and_in_shards")
def test_an_analysis_is_the_same_side_by_side_and_in_shards(tmp_path):
    scenario = {**GRID, "compare": {}, "data": {**GRID["data"], "clients": {"image": 2, "text": 2}},
                "schedule": {"name": "end-to-end", "rounds": 1}, "evaluation": {"every": 1}}  # fmt: skip
    scenario["model"] = {"image": GRID["model"]["image"], "text": {"blocks": 1, "width": 8, "heads": 2, "tokens": 12}}
    plain = edgefl.analyse(scenario, only=["shapley"], out=tmp_path / "a")
    beside = edgefl.analyse(scenario, only=["shapley"], out=tmp_path / "b", jobs=2)
    part = edgefl.analyse(scenario, only=["shapley"], out=tmp_path / "c", shard="2/2")
    assert (part["runs"], part["left"]) == (4, 2) and "shapley" not in part
    shards = edgefl.analyse(scenario, only=["shapley"], out=tmp_path / "c", shard="1/2")
    assert plain["shapley"] == beside["shapley"] == shards["shapley"]
    runs = [{name: bytes_ for name, bytes_ in contents(tmp_path / folder).items() if name != "analysis.json"}
            for folder in "abc"]  # fmt: skip
    assert runs[0] == runs[1] == runs[2] and len(runs[0]) > 12
    with pytest.raises(RunError, match="write it as K/M"):
        edgefl.analyse(scenario, only=["shapley"], out=tmp_path / "d", shard="one")


@pytest.mark.parametrize("train", [False, True])
def test_rows_of_a_sweep_are_equal_side_by_side_and_in_shards(train, tmp_path):
    plain = edgefl.sweep(GRID, out=tmp_path / "a", train=train)
    beside = edgefl.sweep(GRID, out=tmp_path / "b", train=train, jobs=2)
    part = edgefl.sweep(GRID, out=tmp_path / "c", train=train, shard="2/2")
    assert [row["label"] for row in part["rows"]] == [row["label"] for row in plain["rows"]][1::2]
    shards = edgefl.sweep(GRID, out=tmp_path / "c", train=train, shard="1/2", jobs=2)
    assert plain == beside == replace(shards, predictions=plain.predictions)
    assert contents(tmp_path / "a") == contents(tmp_path / "b") == contents(tmp_path / "c")


@pytest.mark.slow(smaller="test_a_shard_outside_its_range_is_refused")
def test_a_shard_of_a_sweep_that_is_being_written_is_refused(tmp_path):
    # locks are between processes
    code = (
        "import sys, time; from pathlib import Path; from edgefl.commands.sweep.stored_rows import SweepRows; "
        "kept = SweepRows(Path(sys.argv[1]), {}, (1, 2)); print('locked', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, tmp_path / "s"], stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"locked\n"
        try:
            with pytest.raises(RunError, match="another process is writing"):
                edgefl.sweep(GRID, out=tmp_path / "s", shard="1/2")
            edgefl.sweep(GRID, out=tmp_path / "s", shard="2/2")
        finally:
            other.kill()


@pytest.mark.slow(smaller="test_kept_workers_that_are_killed_are_replaced")
@pytest.mark.filterwarnings("ignore:.* has no checkpoint:RuntimeWarning")  # the other run may have been as far as that
def test_a_killed_parent_takes_its_workers_along_and_can_be_resumed(serial, tmp_path):
    (tmp_path / "grid.yaml").write_text(json.dumps(GRID))
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "edgefl", "run", tmp_path / "grid.yaml", "-o", folder, "--jobs", "2"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as parent:
        for line in parent.stderr:
            if "round 1/2" in line:
                break
        workers = psutil.Process(parent.pid).children(recursive=True)
        parent.kill()
        parent.communicate(timeout=300)
    _, alive = psutil.wait_procs(workers, timeout=300)
    assert workers and not alive
    assert not read_run(folder).is_finished
    assert edgefl.run(resume=folder, jobs=2).is_finished
    same = ("rounds.jsonl", "clients.jsonl", "eligibility.jsonl", "weights.safetensors")
    for label, path in comparison(serial).items():
        for name in same:
            assert (comparison(folder)[label] / name).read_bytes() == (path / name).read_bytes()


@pytest.mark.slow(smaller="test_a_run_says_how_to_go_on")
def test_an_interrupted_command_says_how_to_go_on(tmp_path):
    (tmp_path / "grid.yaml").write_text(json.dumps(GRID))
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "edgefl", "run", tmp_path / "grid.yaml", "-o", folder, "--jobs", "2"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as parent:
        for line in parent.stderr:
            if "round 1/2" in line:
                break
        time.sleep(0.1)
        parent.send_signal(signal.SIGINT)
        _, said = parent.communicate(timeout=300)
    assert parent.returncode == 130
    assert f"continue with: edgefl run --resume {folder}" in said


def test_rows_are_equal_whether_cells_are_planned_together_or_alone():
    budgets = ["40 kB", "60 kB", "200 KiB"]
    together = edgefl.sweep({**GRID, "compare": {"method": ["fedavg", "fedprox"], "fleet.budgets.memory": budgets}})
    alone = [
        edgefl.sweep({**GRID, "compare": {}}, [f"method={method}", f"fleet.budgets.memory={budget}"])["rows"][0]
        for method in ("fedavg", "fedprox")
        for budget in budgets
    ]
    axes = ("label", "method.", "fleet.")  # columns of what differs between the rows of one sweep
    assert [{k: v for k, v in row.to_data().items() if not k.startswith(axes)} for row in together["rows"]] == [
        {k: v for k, v in row.to_data().items() if not k.startswith(axes)} for row in alone
    ]
    assert len({row["eligible_share_ever"] for row in together["rows"]}) > 1


@pytest.mark.slow(smaller="test_an_error_ends_its_own_cell_only")
def test_a_failed_run_is_told_at_the_end_and_the_others_are_finished(tmp_path):
    folder = tmp_path / "run"
    edgefl.run(GRID, out=folder, shard="1/4")
    first, second, *_ = comparison(folder).values()
    (first / "weights.safetensors").write_bytes(b"changed")
    with pytest.raises(RunError, match=r"1 of 4 failed: fedavg,seed=1: .*go on with: edgefl run --resume ") as failure:
        edgefl.run(resume=folder, jobs=2)
    assert failure.value.exit_code == 2
    assert read_run(second).is_finished and sum(run.is_finished for run in read_run(folder).runs.values()) == 4
