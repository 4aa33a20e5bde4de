"""The suites that come with edgefl: all are read, and small is run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import edgefl
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


@pytest.mark.slow
def test_the_runs_of_bandwidth_are_those_of_memory_where_no_device_is_small(tmp_path: Path) -> None:
    tune = {"search": ["training.lr=1e-3..1e-2"], "trials": 1}
    few = {"seeds": 1, "tune": tune, "small": ["30%"], "at": ["64 MiB"]}
    memory = shrunk("memory", tmp_path, **few)
    edgefl.bench(memory, output=tmp_path / "out", jobs=2, overrides=["data.samples=48", "data.test=100"])
    before = sorted((tmp_path / "out" / "runs").iterdir())
    bandwidth = shrunk("bandwidth", tmp_path, suite="memory.yaml")
    answer = edgefl.bench(bandwidth, output=tmp_path / "out", jobs=2, overrides=["data.samples=48", "data.test=100"])
    assert sorted((tmp_path / "out" / "runs").iterdir()) == before and answer.trained == 8
    assert {spent.axis for spent in answer.spent} == {"virtual_seconds", "bytes", "energy_joules"}


@pytest.mark.slow
def test_small_says_who_is_best_and_its_scores_are_those_of_its_runs(tmp_path: Path) -> None:
    few = ["data.samples=48", "data.test=100", "pretrain.image.epochs=1", "pretrain.text.epochs=1"]
    answer = edgefl.bench(shrunk("small", tmp_path, seeds=2), output=tmp_path / "out", jobs=2, overrides=few)
    assert not answer.failed and answer.trained < answer.cells
    by_fleet = {(fleet.small_share, fleet.low): fleet for fleet in answer.fleets}
    lowest = min(low for share, low in by_fleet if share == 1)
    for fleet in answer.fleets:
        assert (fleet.winner is None) == bool(fleet.tied)
        for row in fleet.rows:
            for run, score in zip(row.runs, row.scores, strict=True):
                if run is not None:
                    last = json.loads((tmp_path / "out" / run / "rounds.jsonl").read_text().splitlines()[-1])
                    assert last["metrics"]["image-text"]["r@10"] == score
    # where all devices have the least memory that trains anything, end-to-end trains nobody
    [alone] = [row for row in by_fleet[1.0, lowest].rows if row.variant == "end-to-end"]
    assert alone.mean is None and alone.eligible_share == 0
