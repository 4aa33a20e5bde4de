"""tools/gpu_check.py as far as a CPU goes: it stops in time, goes on where it was killed, and prints what it kept."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from edgefl import registry
from edgefl.modalities import MODALITIES
from edgefl.scenario import load
from edgefl.setup.compose import compose

TOOL = Path(__file__).resolve().parents[2] / "tools" / "gpu_check.py"


def checked(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TOOL), "--out", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def kept(folder: Path, name: str) -> Any:
    return json.loads((folder / f"{name}.json").read_text())


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_check", TOOL)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpu_check"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--only", "memories"], "--only memories: there is no such step; there are tests, quickstart, memory, "),
        (["--only", "memory,tset"], "--only tset: there is no such step"),
        (["--models", "32"], "--models 32: 1 to 31"),
        (["--minutes", "0"], "--minutes 0: more than 0"),
        (["--in-all", "0"], "--in-all 0: more than 0"),
        (["--table"], "holds no results"),
    ],
)
def test_what_can_not_be_done_is_one_line(tmp_path: Path, arguments: list[str], said: str) -> None:
    found = checked(tmp_path / "check", *arguments)
    assert (found.returncode, found.stdout, found.stderr.count("\n")) == (2, "", 1)
    assert said in found.stderr
    assert not (tmp_path / "check").exists()


def test_the_models_are_of_every_kind_there_is(tool: ModuleType) -> None:
    """All registered towers and models, optimizers and precisions; each with a title of its own."""
    towers = {
        options.get("tower", {"image": "vit", "text": "transformer"}.get(modality))
        for model in tool.MODELS
        for modality, options in model.model.items()
        if modality in MODALITIES
    }
    assert towers == set(registry.names("tower"))
    assert len({model.title for model in tool.MODELS}) == len(tool.MODELS) == 31
    for field, default, every in (
        ("optimizer", "adamw", {"adamw", "adam", "sgd"}),
        ("implementation", "fused", {"fused", "foreach", "for-loop"}),
        ("precision", "float32", {"float32", "bfloat16", "float16"}),
    ):
        assert {model.training.get(field, default) for model in tool.MODELS} == every


@pytest.mark.slow(smaller="test_the_models_are_of_every_kind_there_is")
def test_every_model_is_a_work_of_its_stage(tool: ModuleType) -> None:
    found = set()
    for model in tool.MODELS:
        setup = compose(load(model.scenario("cpu")))
        assert len(setup.schedule.stages) == model.stage
        found.add(setup.method.work(model.kind, 1).model["name"])
    assert found == set(registry.names("model"))


MACHINE = {"device": "cuda", "name": "Some GPU", "driver": "1.2", "torch": "2.13.0"}
RESULTS = {
    "tests": {"ends": {"passed": ["a", "b"], "failed": ["c"], "error": [], "skipped": []},
              "reasons": ["c - assert 1 | 2"], "failed": "exit code 1: 1 failed, 2 passed"},
    "quickstart": {"schedules": {
        "end-to-end": {"finished": True, "measured_works": 3, "worst_memory_error": -0.012,
                       "metrics": {"image": {"balanced_accuracy": 0.52}, "image-text": {"r@10": 0.25}}},
        "layerwise": {"finished": False, "metrics": {}, "measured_works": 0, "worst_memory_error": None}}, "cut": True},
    "memory": {"of": 30, "failed": "1 of 4 models", "models": [
        {"title": "one", "predicted_bytes": 99 * 2**20, "allocated_bytes": 100 * 2**20, "error": -0.01},
        {"title": "two", "predicted_bytes": 2**30, "allocated_bytes": 2**30, "error": 0.0},
        {"title": "three", "predicted_bytes": 3 * 2**20, "allocated_bytes": 2**21, "error": 0.5},
        {"title": "four", "failed": "exit code 1: out of memory"}]},
    "throughput": {"clients": {"a client": {"interpreter_steps_per_second": 190.0, "bare_steps_per_second": 200.0,
                   "ratio": 1.05, "lowest_ratio": 1.01, "highest_ratio": 1.2, "pairs": 9}}},
    "packed": {"failed": "1 of 1 packings", "clients": {"a client": {"bare_steps_per_second": 200.0, "workers": [
        {"workers": 4, "processes": 2, "devices": ["cuda:0"], "peak_memory_bytes": 99 * 2**20, "ran_out": False,
         "same_bytes": False, "steps_per_second": 410.0, "clients_per_second": 8.2, "utilisation": 91.0,
         "share_of_matmul_ceiling": 0.12, "share_of_copy_ceiling": 0.4}]}}},
}  # fmt: skip
TABLE = """\
Some GPU, driver 1.2, torch 2.13.0; 2026-11-20 to 2026-11-22.

| what | predicted | measured | error |
| --- | --- | --- | --- |
| tests | | 2 passed, 1 failed | |
| tests | | failed: c - assert 1 / 2 | |
| tests | | failed: exit code 1: 1 failed, 2 passed | |
| quickstart, three schedules | | 61 s | |
| quickstart, end-to-end | | image balanced accuracy 0.520, image-text r@10 0.250 | memory -1.20 % at worst, 3 works |
| quickstart, layerwise | | not finished | |
| quickstart | | stopped after 9 minutes, before its end | |
| memory: one | 99.00 MiB | 100.00 MiB | -1.00 % |
| memory: two | 1,024.00 MiB | 1,024.00 MiB | +0.00 % |
| memory: three | 3.00 MiB | 2.00 MiB | +50.00 % |
| memory: four | | failed: exit code 1: out of memory | |
| memory: 3 of 30 models | | | median 1.00 %, worst +50.00 % |
| memory | | failed: 1 of 4 models | |
| calibrate | | no result yet | |
| steps a second: a client | | 190.0; bare loop 200.0: 1.05 of its time (1.01 to 1.20), 9 pairs | |
| packed: a client, 2 of 4 workers on cuda:0 | 99.00 MiB | 410.0 steps/s (200.0 by a bare loop), 8.20 clients/s, \
12.0% of matmul, 40.0% of copy, 91 % utilisation | other bytes |
| packed | | failed: 1 of 1 packings | |
"""


def test_the_table_is_of_what_was_kept(tmp_path: Path) -> None:
    (tmp_path / "machine.json").write_text(json.dumps(MACHINE))
    for name, result in RESULTS.items():
        date = "2026-11-20" if name == "tests" else "2026-11-22"
        (tmp_path / f"{name}.json").write_text(json.dumps({**result, "seconds": 61.2, "minutes": 9.0, "date": date}))
    found = checked(tmp_path, "--table")
    assert (found.returncode, found.stdout) == (1, TABLE)


@pytest.mark.slow(smaller="test_the_table_is_of_what_was_kept")
def test_a_killed_check_goes_on_at_its_model(tmp_path: Path) -> None:
    folder = tmp_path / "check"
    arguments = ["--device", "cpu", "--only", "memory", "--models", "2"]
    # killed as a batch system does: the program and what it started
    process = subprocess.Popen(
        [sys.executable, str(TOOL), "--out", str(folder), *arguments],
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    first = folder / "memory" / "00.json"
    deadline = time.monotonic() + 600
    while not first.exists() and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not (folder / "memory" / "01.json").exists() and not (folder / "memory.json").exists()
    written = first.stat().st_mtime_ns
    found = checked(folder, *arguments)
    assert found.returncode == 0, found.stderr
    assert first.stat().st_mtime_ns == written
    assert "  2 of 2: " in found.stdout and "  1 of 2: " not in found.stdout
    rows = kept(folder, "memory")["models"]
    assert [row["name"] for row in rows] == ["vit 4x64 at 32 px", "transformer 4x64"]
    assert all(row["live_bytes"] == row["metered_bytes"] and abs(row["error"]) < 1e-3 for row in rows)
    again = checked(folder, *arguments)
    assert "memory: predicted against allocated memory: has a result" in again.stdout
    assert first.stat().st_mtime_ns == written
    other = {**kept(folder, "machine"), "torch": "1.0"}
    (folder / "machine.json").write_text(json.dumps(other))
    refused = checked(folder, *arguments)
    assert refused.returncode == 2 and "torch 1.0, here" in refused.stderr


@pytest.mark.slow(smaller="test_what_can_not_be_done_is_one_line")
def test_a_step_ends_with_its_time_and_is_finished_when_it_is_named(tmp_path: Path) -> None:
    arguments = ["--device", "cpu", "--only", "throughput", "--minutes"]
    found = checked(tmp_path, *arguments, "0.2")
    assert found.returncode == 0, found.stderr
    result = kept(tmp_path, "throughput")
    assert result.get("cut") or result["clients"]["the quickstart's image client"]["pairs"] == 9
    checked(tmp_path, *arguments, "5")
    (client,) = kept(tmp_path, "throughput")["clients"].values()
    assert client["pairs"] == 9 and 0 < client["lowest_ratio"] <= client["ratio"] <= client["highest_ratio"]
    tests = checked(tmp_path, "--device", "cpu", "--only", "tests")
    assert (
        tests.returncode == 0 and "| tests | | skipped: its tests are skipped without a CUDA device | |" in tests.stdout
    )


@pytest.mark.slow(smaller="test_works_go_where_they_are_held_and_a_larger_one_packs_workers_anew")
def test_packed_workers_train_to_the_same_bytes(tmp_path: Path) -> None:
    found = checked(tmp_path, "--device", "cpu", "--only", "packed")
    assert found.returncode == 0, found.stderr
    (client,) = kept(tmp_path, "packed")["clients"].values()
    assert [(row["workers"], row["processes"], row["same_bytes"]) for row in client["workers"]] == [
        (1, 1, True), (2, 2, True), (4, 4, True),
    ]  # fmt: skip
    assert all(0 < row["share_of_matmul_ceiling"] < 4 and not row["ran_out"] for row in client["workers"])


@pytest.mark.slow(smaller="test_what_can_not_be_done_is_one_line")
def test_steps_share_the_minutes_of_all(tmp_path: Path) -> None:
    """Each gets its part of what is left, in the order in which they are named."""
    found = checked(tmp_path, "--device", "cpu", "--only", "throughput,memory", "--models", "1", "--in-all", "4")
    assert found.returncode == 0, found.stderr
    assert found.stdout.index("1 of 2, throughput") < found.stdout.index("2 of 2, memory")
    share = kept(tmp_path, "throughput")["minutes"]
    assert share == pytest.approx(4 * 0.5 / 40.5, rel=0.01)
    assert kept(tmp_path, "memory")["minutes"] >= 4 - share - 1
