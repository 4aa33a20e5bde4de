from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import edgefl
from edgefl.errors import RunError, ScenarioError

DECLARED = {"source": "declared", "clients": {"image": 4, "text": 2}, "samples": {"image": 40, "text": 20},
            "shapes": {"image": {"channels": 1, "size": 32, "classes": 12}, "text": {"vocabulary": 200}}}  # fmt: skip
TWO_STAGES = {"name": "layerwise", "stages": 2, "rounds": 4}

Tiny = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def declared(tiny: Tiny) -> dict[str, Any]:
    return tiny(data=DECLARED, schedule=TWO_STAGES)


def peak(scenario: dict[str, Any], kind: str) -> int:
    return max(r["peak_memory_bytes"] for r in edgefl.profile(scenario)["rows"] if r["kind"] == kind)


def test_the_byte_that_decides(declared: dict[str, Any]) -> None:
    enough = peak(declared, "image")
    assert enough > peak(declared, "text")
    some, all_ = edgefl.sweep(declared, [f"fleet.budgets.memory={enough - 1},{enough}"])
    assert all_["eligible_share"] == all_["eligible_share_ever"] == 1.0 and all_["refused_by"] == {}
    assert some["refused_by"] == {"memory": 4}
    assert some["eligible_share_at_hardest_stage"] == pytest.approx(2 / 6)
    assert some["eligible_share_ever_by_kind"]["text"] == 1.0
    in_hardest = some["stages"][some["hardest_stage"] - 1]
    assert in_hardest["eligible_samples_share"] == pytest.approx(2 * 20 / (4 * 40 + 2 * 20))
    assert some["sets"] == {"fleet.budgets.memory": [enough - 1, enough - 1]}
    hardest = some["stages"][some["hardest_stage"] - 1]["kinds"]
    assert hardest["image"]["eligible"] == 0 and hardest["image"]["energy_joules"] is None
    assert hardest["text"]["eligible_share"] == 1.0


def test_every_budget_and_the_deadline_can_bind(declared: dict[str, Any]) -> None:
    axes = {
        "flops": "fleet.budgets.flops_per_round=1",
        "bytes": "fleet.budgets.bytes_per_round=1",
        "joules": "fleet.budgets.energy_per_round=1e-9",
        "seconds": "round.deadline=1e-9",
    }
    for budget, axis in axes.items():
        (row,) = edgefl.sweep(declared, [axis])
        assert row["refused_by"] == {budget: 6} and row["eligible_share_ever"] == 0.0
        assert row["round_seconds"] is None and row["energy_joules"] is None


def test_rows_say_what_the_run_decided(layerwise_run: Any) -> None:
    (row,) = edgefl.sweep(layerwise_run.scenario)
    for stage in row["stages"]:
        first = next(r for r in layerwise_run.records("rounds") if r["stage"] == stage["stage"])
        assert {kind: found["eligible"] for kind, found in stage["kinds"].items()} == first["eligible"]
    assert 0 < row["class_coverage_ever"] <= 1
    assert row["eligible_samples_share_ever"] == 1.0


def test_combinations_multiply_and_declared_data_have_no_classes(declared: dict[str, Any]) -> None:
    rows = edgefl.sweep(declared, ["schedule=end-to-end,layerwise", "training.batch=4,8"])
    assert [r["label"] for r in rows] == [
        "end-to-end,batch=4", "end-to-end,batch=8", "layerwise,batch=4", "layerwise,batch=8"
    ]  # fmt: skip
    assert all(r["class_coverage_ever"] is None for r in rows)
    by_label = {r["label"]: r for r in rows}
    assert by_label["layerwise,batch=8"]["download_bytes"] < by_label["end-to-end,batch=8"]["download_bytes"]


def test_known_rows_are_kept_and_new_ones_added(declared: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    (row,) = edgefl.sweep(declared, ["training.batch=4"], output=folder)
    lines = (folder / "sweep.jsonl").read_text().splitlines()
    # a row that is there isn't computed again: what stands there comes back, a half-written line is dropped
    marked = {**json.loads(lines[0]), "clients": 99}
    (folder / "sweep.jsonl").write_text(json.dumps(marked) + "\n" + lines[0][:40])
    first, second = edgefl.sweep(declared, ["training.batch=4,8"], output=folder)
    assert first == {**row, "clients": 99} and second["clients"] == 6
    assert len((folder / "sweep.jsonl").read_text().splitlines()) == 2
    with (folder / "sweep.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [r["label"] for r in table] == ["batch=4", "batch=8"]
    assert float(table[1]["stage2.kinds.image.eligible_share"]) == 1.0
    assert float(table[1]["download_bytes"]) == second["download_bytes"]
    assert edgefl.sweep(declared, ["training.batch=4,8"]) == [row, second]


def test_rows_of_another_scenario_and_other_files_are_refused(declared: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    edgefl.sweep(declared, ["training.batch=4"], output=folder)
    before = (folder / "sweep.jsonl").read_bytes()
    with pytest.raises(RunError, match="'batch=4' stands there for another scenario"):
        edgefl.sweep(declared, ["training.batch=4"], overrides=["seed=9"], output=folder)
    assert (folder / "sweep.jsonl").read_bytes() == before
    (folder / "sweep.jsonl").write_text("no json\n{}\n")
    with pytest.raises(RunError, match="sweep.jsonl:1: this line is damaged"):
        edgefl.sweep(declared, ["training.batch=4"], output=folder)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    with pytest.raises(RunError, match="already holds files"):
        edgefl.sweep(declared, output=tmp_path / "mine")
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["notes.txt"]


def test_a_wrong_axis_or_folder_is_said_before_anything_is_written(declared: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="unknown schedule 'layerwize'; did you mean 'layerwise'"):
        edgefl.sweep(declared, ["schedule=layerwize"], output=tmp_path / "sweep")
    assert not (tmp_path / "sweep").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="can't write"):
        edgefl.sweep(declared, output=tmp_path / "file" / "sweep")
