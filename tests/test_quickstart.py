"""The quickstart, whole: it learns under every schedule, predicts memory exactly, and survives being killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from itertools import accumulate
from pathlib import Path

import pytest
import torch
from tensors import assert_equal_tensors
from torch.profiler import ProfilerActivity, profile

import edgefl
from edgefl import models
from edgefl.cost.predict import predict
from edgefl.runs import Run
from edgefl.scenario import load
from edgefl.setup.compose import compose
from edgefl.work import run as run_work

COMMAND = [sys.executable, "-m", "edgefl", "run"]
EQUAL = ("rounds", "clients", "eligibility")
"""Tables that equal runs have equal; the host's is not one of them."""


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("quickstart") / "run"
    subprocess.run([*COMMAND, "quickstart", "--out", str(folder)], check=True)
    return edgefl.read_run(folder)


def same(one: Run, other: Run) -> None:
    assert one.result == other.result
    for table in EQUAL:
        assert one.records(table) == other.records(table), table  # type: ignore[arg-type]
    first, second = one.weights(), other.weights()
    assert first.keys() == second.keys()
    assert_equal_tensors(first, second)


@pytest.mark.slow(smaller="test_what_a_page_shows_is_what_happens")
@pytest.mark.parametrize("schedule", ["end-to-end", "progressive", "layerwise"])
def test_it_learns(quickstart: Run, schedule: str) -> None:
    metrics = quickstart.runs[schedule].result["metrics"]
    # chance is 1/12; the largest class has .37 of the test pictures, so accuracy alone would prove little
    assert metrics["image"]["balanced_accuracy"] >= 0.40
    assert metrics["image"]["accuracy"] >= 0.40
    assert metrics["text"]["accuracy"] >= 0.60
    assert metrics["image-text"]["r@10"] >= 0.20


@pytest.mark.slow(smaller="test_whom_the_other_schedule_lets_in")
def test_layerwise_lets_in_whom_end_to_end_refuses(quickstart: Run) -> None:
    def refused(schedule: str) -> set[int]:
        verdicts = quickstart.runs[schedule].eligibility
        return set(verdicts.client) - set(verdicts[verdicts.eligible].client)

    def took_part(schedule: str) -> set[int]:
        return set(quickstart.runs[schedule].clients.client)

    left_out = refused("end-to-end")
    assert len(left_out) >= 5
    assert not left_out & took_part("end-to-end")
    assert not refused("layerwise")
    assert left_out & took_part("layerwise")


@pytest.mark.slow(smaller="test_predicted_is_measured_in_the_records")
def test_every_metered_work_had_the_memory_that_was_predicted(quickstart: Run) -> None:
    for run in quickstart.runs.values():
        metered = run.clients[run.clients.measured_peak_memory_bytes.notna()]
        assert set(metered.kind) == {"image", "text", "image-text"}
        assert metered.memory_error.abs().max() <= 0.001
        assert (metered.measured_forward_flops == metered.forward_flops).all()
        assert (metered.measured_backward_flops == metered.backward_flops).all()
        server = [work for record in run.records("rounds") for work in record["server_works"]]
        errors = [work["memory_error"] for work in server if work["memory_error"] is not None]
        assert errors
        assert max(map(abs, errors)) <= 0.005


@pytest.mark.slow(smaller="test_a_killed_run_ends_as_an_uninterrupted_one")
def test_killed_and_resumed_it_ends_the_same(quickstart: Run, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = subprocess.Popen([*COMMAND, "quickstart", "--out", str(folder)], start_new_session=True)
    records = folder / "progressive" / "rounds.jsonl"
    while process.poll() is None and not (records.exists() and len(records.read_bytes().splitlines()) >= 4):
        time.sleep(0.2)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not edgefl.read_run(folder).is_finished
    subprocess.run([*COMMAND, "--resume", str(folder)], check=True)
    resumed = edgefl.read_run(folder)
    for schedule, run in quickstart.runs.items():
        same(run, resumed.runs[schedule])


@pytest.mark.slow(smaller="test_inline_and_processes_give_the_same_reports")
@pytest.mark.parametrize("executor", ["{name: inline}", "{name: processes, workers: 1}"])
def test_the_executor_changes_nothing(quickstart: Run, tmp_path: Path, executor: str) -> None:
    chosen = "compare.schedule=[{name: layerwise, stages: [1, 1, 2], allocation: [6, 3, 3]}]"
    overrides = [chosen, f"executor={executor}"]
    again = edgefl.run("quickstart", out=tmp_path / "run", overrides=overrides)
    (run,) = again.runs.values()
    same(quickstart.runs["layerwise"], run)


@pytest.mark.slow(smaller="test_the_profiler_sees_known_allocations")
@pytest.mark.parametrize("kind", ["image", "text", "image-text"])
def test_torch_profiler_saw_the_memory_that_was_predicted(kind: str) -> None:
    setup = compose(load("quickstart", ["compare=null", "schedule=end-to-end"]))
    client = setup.of_kind(kind)[0]
    source = setup.clients.client(client)
    work = setup.schedule.stage(1).restrict_work(setup.method.work(kind, 1)).limit_batches(source.size)
    inputs = setup.method.initial(1).inputs(work)

    def do() -> None:
        run_work(work, inputs, source, module=models.build(work.model), device=torch.device("cpu"), seed=1)

    do()  # what torch allocates once
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiled:
        do()
    kineto = profiled.profiler.kineto_results  # type: ignore[union-attr]
    sizes = [size for _, size in sorted((e.start_ns(), e.nbytes()) for e in kineto.events() if e.name() == "[memory]")]
    assert predict(work, source).peak_memory_bytes == pytest.approx(max(accumulate(sizes)), rel=0.01)
