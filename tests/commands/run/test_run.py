"""``edgefl.run``: from plain data to a folder, told as it goes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tensors import assert_equal_tensors

import edgefl
from edgefl.errors import RunError, ScenarioError
from edgefl.runs import Run
from edgefl.runs.folders import free_folder

Tiny = Callable[..., dict[str, Any]]
LAYERWISE = {"name": "layerwise", "stages": 2, "rounds": 4}


def test_the_folder_holds_the_whole_run(layerwise_run: Run) -> None:
    names = {p.name for p in layerwise_run.path.iterdir()}
    assert names >= {
        "scenario.yaml", "environment.json", "models.json", "evaluation.json", "tokenizer.json", "partition.png",
        "curves.png", "rounds.jsonl", "clients.jsonl", "eligibility.jsonl", "host.jsonl", "checkpoints",
        "weights.safetensors", "result.json",
    }  # fmt: skip
    assert layerwise_run.is_finished and layerwise_run.result["rounds"] == 4
    assert list(layerwise_run.rounds["round"]) == [1, 2, 3, 4]
    assert list(layerwise_run.rounds["stage"]) == [1, 1, 2, 2]
    assert len(layerwise_run.clients) == 28


def test_compared_records_hold_no_figures_of_the_host(layerwise_run: Run) -> None:
    for table in ("rounds", "clients", "eligibility"):
        fields = {field for record in layerwise_run.records(table) for field in record}  # type: ignore[arg-type]
        assert not fields & {"wall_seconds", "rss_bytes", "process", "pid", "path"}
    assert {"wall_seconds", "rss_bytes", "process"} <= set(layerwise_run.host.columns)


def test_the_trained_model_is_read_back(layerwise_run: Run) -> None:
    weights = load_file(layerwise_run.path / "weights.safetensors")
    model: Any = layerwise_run.model("image")
    assert_equal_tensors(model.state_dict(), {name: weights[f"image/{name}"] for name in model.state_dict()})
    size = layerwise_run.models["image"]["towers"]["image"]["size"]
    assert model.logits("image", torch.rand(2, 1, size, size)).shape[0] == 2


def test_the_written_scenario_is_the_same_scenario(tiny: Tiny, layerwise_run: Run, tmp_path: Path) -> None:
    again = edgefl.run(layerwise_run.path / "scenario.yaml", out=tmp_path / "again", overrides=["schedule.rounds=2"])
    assert again.scenario == {**layerwise_run.scenario, "schedule": {**layerwise_run.scenario["schedule"], "rounds": 2}}
    first = {k: v for k, v in layerwise_run.records("rounds")[0].items() if k != "metrics"}
    assert {k: v for k, v in again.records("rounds")[0].items() if k != "metrics"} == first


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_worker_processes_change_no_record_and_no_weight(
    tiny: Tiny, layerwise_run: Run, tmp_path: Path, workers: int
) -> None:
    executor = {"name": "processes", "workers": workers, "device": "cpu"}
    run = edgefl.run(tiny(method="fedcola", schedule=LAYERWISE, executor=executor), out=tmp_path / "run")
    for table in ("rounds", "clients", "eligibility"):
        assert run.records(table) == layerwise_run.records(table)  # type: ignore[arg-type]
    left, right = (load_file(r.path / "weights.safetensors") for r in (run, layerwise_run))
    assert_equal_tensors(left, right)
    assert len(set(run.host["process"])) == workers


@pytest.mark.slow(smaller="test_the_folder_holds_the_whole_run")
def test_a_comparison_holds_a_run_for_each_combination(tiny: Tiny, tmp_path: Path) -> None:
    heard: list[tuple[str, dict[str, Any]]] = []
    scenario = tiny(
        schedule={"name": "end-to-end", "rounds": 1}, compare={"method": ["fedavg", {"name": "fedprox", "mu": 0}]}
    )
    run = edgefl.run(scenario, out=tmp_path / "c", on_progress=lambda event, facts: heard.append((event, dict(facts))))
    assert list(run.runs) == ["fedavg", "fedprox"] and run.is_finished
    assert list(run.rounds["run"]) == ["fedavg", "fedprox"]
    avg, prox = (load_file(r.path / "weights.safetensors") for r in run.runs.values())
    assert_equal_tensors(avg, prox)  # mu is 0
    memory = run.clients.groupby("run")["memory_bytes.reference"].max()
    assert memory["fedavg"] == 0 < memory["fedprox"]
    counted = Counter(event for event, _ in heard)
    assert counted["combination"] == counted["round"] == counted["record"] == 2 and counted["client"] == 14
    assert heard[-1][0] == "done"
    labels = [(f["label"], f["index"], f["of"]) for event, f in heard if event == "combination"]
    assert labels == [("fedavg", 0, 2), ("fedprox", 1, 2)]


def test_a_scenario_or_a_run_to_resume(tiny: Tiny, layerwise_run: Run) -> None:
    with pytest.raises(RunError, match="give a scenario to run, or a run to resume"):
        edgefl.run()
    with pytest.raises(RunError, match="leave out --out"):
        edgefl.run(resume=layerwise_run.path, out="elsewhere")
    with pytest.raises(RunError, match=r"--set seed: a resumed run keeps its scenario; only executor\.\*, tracker and"):
        edgefl.run(resume=layerwise_run.path, overrides=["seed=2"])


def test_a_folder_that_is_taken_is_left_alone(tiny: Tiny, layerwise_run: Run, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="already holds a run; continue it with --resume"):
        edgefl.run(tiny(), out=layerwise_run.path)
    (tmp_path / "note.txt").write_text("mine")
    with pytest.raises(RunError, match="already holds files"):
        edgefl.run(tiny(), out=tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["note.txt"]


def test_nothing_is_written_for_a_scenario_that_cannot_run(tiny: Tiny, tmp_path: Path) -> None:
    output = tmp_path / "run"
    with pytest.raises(ScenarioError):
        edgefl.run(tiny(training={"bach": 8}), out=output)
    with pytest.raises(ScenarioError, match="3 stages are more than the 2 blocks"):
        edgefl.run(tiny(schedule={"name": "layerwise", "stages": 3}), out=output)
    ok, wrong = {"name": "end-to-end", "rounds": 1}, {"name": "layerwise", "stages": 3, "rounds": 3}
    with pytest.raises(ScenarioError, match="3 stages are more than the 2 blocks"):
        edgefl.run(tiny(compare={"schedule": [ok, wrong]}), out=output)
    assert not output.exists()


def test_the_first_free_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "tiny-2").mkdir(parents=True)
    (tmp_path / "runs" / "tiny-4").symlink_to("nowhere")
    names = []
    for _ in range(3):
        new = free_folder("tiny")
        names.append(str(new.path))
        new.close()
    assert names == ["runs/tiny", "runs/tiny-3", "runs/tiny-5"]
