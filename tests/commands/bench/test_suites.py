"""The suites that come with edgefl: all are read, and small is run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import edgefl
from edgefl.errors import ScenarioError
from edgefl.scenario.library import library_folder, scenario_names, suite_names
from edgefl.scenario.suite import read_suite


@pytest.mark.parametrize("name", suite_names())
def test_a_shipped_suite_is_read_and_its_answer_is_readable(name: str) -> None:
    suite = read_suite(name)
    assert suite.name == name and all(variant.refused is None for variant in suite.variants)
    assert f"suites/{name}" not in scenario_names()


def test_variants_of_memory_are_eight_tuned_alike_over_ten_seeds() -> None:
    suite = read_suite("memory")
    assert len(suite.variants) == 8 and len(suite.seeds) == 10 and suite.options.small == (1.0, 0.7, 0.3)
    assert suite.options.tune is not None and suite.base.data.test >= 1500
    assert {variant.scenario.adapter_name for variant in suite.variants} == {"none", "lora"}
    assert all("training.lr" not in variant.fields for variant in suite.variants)


def shrunk(name: str, folder: Path, **changes: Any) -> Path:
    """A shipped suite with fewer rounds and seeds."""
    suite = yaml.safe_load((library_folder() / "suites" / f"{name}.yaml").read_text(encoding="utf-8"))
    (folder / f"{name}.yaml").write_text(yaml.safe_dump({**suite, **changes}, sort_keys=False), encoding="utf-8")
    return folder / f"{name}.yaml"


COMPARING = """\
edgefl: 1
name: comparing
data: {source: glyphs, clients: {image: 4}, samples: 40, validation: 40, test: 40}
model: {image: {tower: vit, blocks: 2, width: 16, heads: 2, patch: 8}}
training: {batch: 8}
round: {cohort: 100%}
fleet: {budgets: {memory: 4 MiB, within_device: false}}
schedule: {name: end-to-end, rounds: 2}
executor: {name: inline, device: cpu}
compare:
  schedule: [end-to-end, {name: layerwise, stages: 2, rounds: 2}]
  fleet.budgets.memory: [AMOUNTS]
  seed: [3, 5]
"""


def comparing(folder: Path, amounts: str = "500 KiB, unlimited, 420 KiB") -> Path:
    (folder / "comparing.yaml").write_text(COMPARING.replace("AMOUNTS", amounts), encoding="utf-8")
    return folder / "comparing.yaml"


def test_a_comparing_scenario_is_a_suite_of_what_it_compares(tmp_path: Path) -> None:
    suite = read_suite(comparing(tmp_path))
    assert suite.name == "comparing" and suite.seeds == (3, 5) and not suite.options.conditions
    assert [(variant.name, variant.scenario.schedule_name) for variant in suite.variants] == [
        ("end-to-end", "end-to-end"), ("layerwise", "layerwise"),
    ]  # fmt: skip
    assert suite.options.budget == "memory" and suite.options.at == [420 * 2**10, 500 * 2**10, "unlimited"]
    assert suite.base.fleet.budgets.memory is None and not suite.base.compare  # the file's own amount is varied
    (tmp_path / "again.yaml").write_text(yaml.safe_dump(suite.to_data(), sort_keys=False), encoding="utf-8")
    assert read_suite(tmp_path / "again.yaml").to_data() == suite.to_data()
    named = tmp_path / "named.yaml"
    named.write_text("edgefl: 1\nscenario: comparing.yaml\nseeds: 1\n", encoding="utf-8")
    assert read_suite(named).seeds == (1,) and read_suite(named).variants == suite.variants
    assert [variant.name for variant in read_suite("quickstart").variants] == ["end-to-end", "progressive", "layerwise"]
    assert (
        len(read_suite(comparing(tmp_path), ["schedule=layerwise", "compare={method: [fedavg, fedprox]}"]).variants)
        == 2
    )


def test_what_clients_draw_is_a_condition(tmp_path: Path) -> None:
    suite = read_suite(comparing(tmp_path, "250..400 KiB, unlimited"))
    assert suite.options.budget is None and list(suite.options.conditions.values()) == [
        {"fleet.budgets.memory": "250..400 KiB"}, {"fleet.budgets.memory": "unlimited"},
    ]  # fmt: skip


def test_faults_of_a_comparing_scenario_are_told_together_at_its_lines(tmp_path: Path) -> None:
    file = comparing(tmp_path)
    wrong = COMPARING.replace("AMOUNTS", "1 parsec").replace("stages: 2", "stages: 3").replace("[3, 5]", "[]")
    file.write_text(wrong.replace("batch: 8", "batch: 0"), encoding="utf-8")
    with pytest.raises(ScenarioError) as caught:
        read_suite(file)
    lines = str(caught.value).replace(str(file), "s").splitlines()
    assert [line.partition(": ")[0] for line in lines] == ["s:5", "s:13"]
    alone = wrong.partition("compare:")[0]
    file.write_text(alone, encoding="utf-8")
    with pytest.raises(ScenarioError, match="variants: is missing: .* by default the scenario's compare"):
        read_suite(file)


@pytest.mark.slow(smaller="test_a_comparing_scenario_is_a_suite_of_what_it_compares")
def test_a_comparing_scenario_is_benched_on_each_amount(tmp_path: Path) -> None:
    answer = edgefl.bench(comparing(tmp_path), out=tmp_path / "out")
    assert [(fleet.low, fleet.high) for fleet in answer.fleets][-1] == (500 * 2**10, None)
    assert answer.seeds == [3, 5] and answer.trained <= answer.cells <= 12


@pytest.mark.slow(smaller="test_variants_of_memory_are_eight_tuned_alike_over_ten_seeds")
def test_the_runs_of_bandwidth_are_those_of_memory_where_no_device_is_small(tmp_path: Path) -> None:
    tune = {"search": ["training.lr=1e-3..1e-2"], "trials": 1}
    few = {"seeds": 1, "tune": tune, "small": ["30%"], "at": ["64 MiB"]}
    memory = shrunk("memory", tmp_path, **few)
    edgefl.bench(memory, out=tmp_path / "out", jobs=2, overrides=["data.samples=48", "data.test=100"])
    before = sorted((tmp_path / "out" / "runs").iterdir())
    bandwidth = shrunk("bandwidth", tmp_path, suite="memory.yaml")
    answer = edgefl.bench(bandwidth, out=tmp_path / "out", jobs=2, overrides=["data.samples=48", "data.test=100"])
    assert sorted((tmp_path / "out" / "runs").iterdir()) == before and answer.trained == 8
    assert {spent.axis for spent in answer.spent} == {"virtual_seconds", "bytes", "energy_joules"}


@pytest.mark.slow(smaller="test_scores_are_those_of_the_runs_and_winners_those_of_scipy")
def test_small_says_who_is_best_and_its_scores_are_those_of_its_runs(tmp_path: Path) -> None:
    few = ["data.samples=48", "data.test=100", "pretrain.image.epochs=1", "pretrain.text.epochs=1"]
    answer = edgefl.bench(shrunk("small", tmp_path, seeds=2), out=tmp_path / "out", jobs=2, overrides=few)
    assert not answer.failed and answer.trained < answer.cells
    by_fleet = {(fleet.small_share, fleet.low): fleet for fleet in answer.fleets}
    lowest = min(low for share, low in by_fleet if share == 1)
    for fleet in answer.fleets:
        assert not (fleet.winner is not None and fleet.tied)
        for row in fleet.rows:
            for run, score in zip(row.runs, row.scores, strict=True):
                if run is not None:
                    last = json.loads((tmp_path / "out" / run / "rounds.jsonl").read_text().splitlines()[-1])
                    assert last["metrics"]["image-text"]["r@10"] == score
    # where all devices have the least memory that trains anything, end-to-end trains nobody
    [alone] = [row for row in by_fleet[1.0, lowest].rows if row.variant == "end-to-end"]
    assert alone.mean is None and alone.eligible_share == 0
