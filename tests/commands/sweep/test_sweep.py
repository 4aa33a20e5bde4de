from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console
from sweeps import check_of

import edgefl
from edgefl import units
from edgefl.commands.sweep.answer import CellRow, read_cell
from edgefl.commands.sweep.stored_rows import values_of
from edgefl.commands.sweep.table import print_sweep
from edgefl.data import Federation
from edgefl.devices import device_names, library_folder
from edgefl.devices.budgets import BUDGETS
from edgefl.errors import EdgeflError, RunError, ScenarioError, UnknownName
from edgefl.planning.eligibility import gate
from edgefl.planning.planner import Planner
from edgefl.planning.workload import stage_eligibility, workload_of
from edgefl.scenario import load
from edgefl.setup.compose import compose, predictor_of

DECLARED = {"source": "declared", "clients": {"image": 4, "text": 2}, "samples": {"image": 40, "text": 20},
            "shapes": {"image": {"channels": 1, "size": 32, "classes": 12}, "text": {"vocabulary": 200}}}  # fmt: skip
TWO_STAGES = {"name": "layerwise", "stages": 2, "rounds": 4}

Tiny = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def declared(tiny: Tiny) -> dict[str, Any]:
    return tiny(data=DECLARED, schedule=TWO_STAGES)


def rows_of(scenario: dict[str, Any], axes: Sequence[str] = (), **words: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = edgefl.sweep(scenario, axes, **words)["rows"]
    return rows


def peak(scenario: dict[str, Any], kind: str) -> int:
    return max(int(r["peak_memory_bytes"]) for r in edgefl.profile(scenario)["rows"] if r["kind"] == kind)


def test_the_byte_that_decides(declared: dict[str, Any]) -> None:
    enough = peak(declared, "image")
    assert enough > peak(declared, "text")
    some, all_ = rows_of(declared, [f"fleet.budgets.memory={enough - 1} B,{enough} B"])
    assert all_["eligible_share"] == all_["eligible_share_ever"] == 1.0 and all_["refused_by"] == {}
    assert some["refused_by"] == {"memory": 4} and some["refused_memory_by"] == {"owner": 4}
    assert some["eligible_share_at_hardest_stage"] == pytest.approx(2 / 6)
    assert some["eligible_share_ever_by_kind"]["text"] == 1.0
    in_hardest = some["stages"][some["hardest_stage"] - 1]
    assert in_hardest["eligible_samples_share"] == pytest.approx(2 * 20 / (4 * 40 + 2 * 20))
    assert some["fleet.budgets.memory"] == units.BYTES.write(enough - 1)
    hardest = some["stages"][some["hardest_stage"] - 1]["kinds"]
    assert hardest["image"]["eligible"] == 0 and hardest["image"]["energy_joules"] is None
    assert hardest["text"]["eligible_share"] == 1.0


def test_of_equally_hard_stages_the_one_with_the_largest_peak_is_the_hardest(tiny: Tiny) -> None:
    scenario = tiny(
        data=DECLARED, training={"batch": 8, "mode": "none"}, schedule={"name": "progressive", "stages": 2, "rounds": 2}
    )
    for row in rows_of(scenario, ["fleet.budgets.memory=1KiB,1GiB"]):
        peaks = {stage["stage"]: stage["peak_memory_bytes"] for stage in row["stages"]}
        assert len({stage["eligible"] for stage in row["stages"]}) == 1 and peaks[1] < peaks[2]
        assert row["hardest_stage"] == 2


def test_every_budget_and_the_deadline_can_bind(declared: dict[str, Any]) -> None:
    axes = {
        "flops": "fleet.budgets.flops_per_round=1",
        "bytes": "fleet.budgets.bytes_per_round=1 B",
        "joules": "fleet.budgets.energy_per_round=1e-9",
        "seconds": "round.deadline=1e-9",
    }
    for budget, axis in axes.items():
        (row,) = rows_of(declared, [axis])
        assert row["refused_by"] == {budget: 6} and row["eligible_share_ever"] == 0.0
        assert row["round_seconds"] is None and row["energy_joules"] is None


def test_rows_say_what_the_run_decided(layerwise_run: Any) -> None:
    (row,) = rows_of(layerwise_run.scenario)
    for stage in row["stages"]:
        first = next(r for r in layerwise_run.records("rounds") if r["stage"] == stage["stage"])
        assert {kind: found["eligible"] for kind, found in stage["kinds"].items()} == first["eligible"]
    assert 0 < row["class_coverage_ever"] <= 1
    assert row["eligible_samples_share_ever"] == 1.0


def test_the_order_of_axes_changes_no_row(declared: dict[str, Any]) -> None:
    """A cell takes over the works of an earlier one with other budgets, wherever that one stands in the grid."""
    budgets, batches = "fleet.budgets.memory=1 KiB,64 MiB", "training.batch=2,4"
    outer, inner = rows_of(declared, [budgets, batches]), rows_of(declared, [batches, budgets])
    told = [[asdict(cast(CellRow, row)) | {"label": ""} for row in rows] for rows in (outer, inner)]
    assert [told[0][at] for at in (0, 2, 1, 3)] == told[1]
    (alone,) = rows_of(declared, ["fleet.budgets.memory=64 MiB"], overrides=["training.batch=2"])
    assert alone["peak_memory_bytes"] == outer[2]["peak_memory_bytes"]
    assert [row["eligible_share"] for row in outer] != [outer[0]["eligible_share"]] * 4


def test_combinations_multiply_and_declared_data_have_no_classes(declared: dict[str, Any]) -> None:
    rows = rows_of(declared, ["schedule=end-to-end,layerwise", "training.batch=4,8"])
    assert [r["label"] for r in rows] == [
        "end-to-end,batch=4", "end-to-end,batch=8", "layerwise,batch=4", "layerwise,batch=8"
    ]  # fmt: skip
    assert all(r["class_coverage_ever"] is None for r in rows)
    by_label = {r["label"]: r for r in rows}
    assert by_label["layerwise,batch=8"]["download_bytes"] < by_label["end-to-end,batch=8"]["download_bytes"]


def test_what_changes_no_step_is_priced_once(declared: dict[str, Any], tmp_path: Path) -> None:
    alone = edgefl.sweep(declared).predictions
    assert alone == 2 * 2  # kinds and stages
    for axes in (
        [
            "fleet.devices=raspberry-pi-5-8gb,jetson-nano-4gb",
            "fleet.links=wifi-5,lte",
            "fleet.budgets.memory=4MiB,1GiB",
        ],
        ["training.lr=1e-3,2e-3", "training.epochs=2,3", "data.samples.image=40,80", "schedule.rounds=4,6"],
    ):
        swept = edgefl.sweep(declared, axes, overrides=["training.epochs=2"])
        assert len(swept.rows) == 2 ** len(axes) and swept.to_data()["predictions"] == alone
    assert edgefl.sweep(declared, ["training.batch=2,4,8"], out=tmp_path).predictions == 3 * alone
    assert edgefl.sweep(declared, ["training.batch=2,4,8"], out=tmp_path).predictions == 0
    checked = check_of(declared)
    assert checked.predictions == alone and len(checked.rows) == 2 * len(device_names())


def test_known_rows_are_kept_and_new_ones_added(declared: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    (row,) = rows_of(declared, ["training.batch=4"], out=folder)
    lines = (folder / "sweep.jsonl").read_text().splitlines()
    # a row that is there isn't computed again: what stands there comes back, a half-written line is dropped
    marked = {**json.loads(lines[0]), "clients": 99}
    (folder / "sweep.jsonl").write_text(json.dumps(marked) + "\n" + lines[0][:40])
    (folder / f".partial-{'0a' * 16}-sweep.csv").touch()  # of a sweep that was killed
    first, second = rows_of(declared, ["training.batch=4,8"], out=folder)
    assert not list(folder.glob(".partial-*"))
    assert first == replace(row, clients=99) and second["clients"] == 6
    assert len((folder / "sweep.jsonl").read_text().splitlines()) == 2
    with (folder / "sweep.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [r["label"] for r in table] == ["batch=4", "batch=8"]
    assert float(table[1]["stage2.kinds.image.eligible_share"]) == 1.0
    assert float(table[1]["download_bytes"]) == second["download_bytes"]
    assert rows_of(declared, ["training.batch=4,8"]) == [row, second]


def test_rows_of_another_scenario_and_other_files_are_refused(declared: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    rows_of(declared, ["training.batch=4"], out=folder)
    before = (folder / "sweep.jsonl").read_bytes()
    with pytest.raises(RunError, match="'batch=4' is the row of another scenario"):
        rows_of(declared, ["training.batch=4"], overrides=["seed=9"], out=folder)
    assert (folder / "sweep.jsonl").read_bytes() == before
    (folder / "sweep.jsonl").write_text("no json\n{}\n")
    with pytest.raises(RunError, match="sweep.jsonl:1: this line is damaged"):
        rows_of(declared, ["training.batch=4"], out=folder)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    with pytest.raises(RunError, match="already holds files"):
        rows_of(declared, out=tmp_path / "mine")
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["notes.txt"]


def test_a_profile_that_has_changed_leaves_no_row_as_it_was(declared: dict[str, Any], tmp_path: Path) -> None:
    text = (library_folder() / "devices" / "raspberry-pi-4-4gb.yaml").read_text()
    (mine := tmp_path / "mine.yaml").write_text(text)
    scenario = {**declared, "fleet": {"devices": str(mine)}}
    rows_of(scenario, out=tmp_path / "grid")
    assert rows_of(scenario, out=tmp_path / "grid")
    mine.write_text(text.replace("value: 7.2 W", "value: 6.5 W"))
    with pytest.raises(RunError, match="or a profile or a plug-in file has changed"):
        rows_of(scenario, out=tmp_path / "grid")


def test_a_wrong_axis_or_folder_is_said_before_anything_is_written(declared: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="unknown schedule 'layerwize'; did you mean 'layerwise'"):
        rows_of(declared, ["schedule=layerwize"], out=tmp_path / "sweep")
    assert not (tmp_path / "sweep").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="can't write"):
        rows_of(declared, out=tmp_path / "file" / "sweep")


def test_what_leaves_with_the_excluded_is_counted(tiny: Tiny) -> None:
    scenario = tiny(model={"image": {"blocks": 2, "width": 16, "heads": 2}, "dimension": 8,
                           "text": {"blocks": 2, "width": 48, "heads": 2, "tokens": 12}})  # fmt: skip
    assert peak(scenario, "image") < peak(scenario, "text") < peak(scenario, "image-text")
    (row,) = rows_of(scenario, [f"fleet.budgets.memory={peak(scenario, 'image')} B"])
    (stage,) = row["stages"]
    kinds = stage["kinds"]
    excluded = {kind: found["excluded_samples"] for kind, found in kinds.items()}
    assert excluded == {"image": 0, "text": 2 * 16, "image-text": 2 * 16}
    assert row["excluded_samples"] == stage["excluded_samples"] == 4 * 16
    assert row["lost_modalities"] == ["text"] and kinds["image-text"]["lost_modalities"] == ["image", "text"]
    assert row["modality_samples_share_ever"] == {"image": pytest.approx(48 / 80), "text": 0.0}
    # a class has left where only the excluded hold it; of a kind that is excluded, all that it held has
    federation = compose(load(scenario)).clients
    assert isinstance(federation, Federation)
    counts, names = federation.class_counts()[:, :-1], federation.class_names
    only = (counts[3:].sum(axis=0) > 0) & (counts[:3].sum(axis=0) == 0)
    assert row["lost_classes"] == [names[i] for i in np.flatnonzero(only)]
    assert kinds["text"]["lost_classes"] == [names[i] for i in np.flatnonzero(counts[3:5].sum(axis=0))]
    assert kinds["text"]["class_coverage"] == 0.0 and kinds["image"]["lost_classes"] == []


def test_the_schedule_adds_up(declared: dict[str, Any]) -> None:
    scenario = {**declared, "round": {"cohort": 0.5}}
    (row,) = rows_of(scenario)
    seats = {"image": 2, "text": 1}
    for total, name in (("schedule_download_bytes", "download_bytes"), ("schedule_energy_joules", "energy_joules")):
        by_hand = sum(s["rounds"] * seats[kind] * s["kinds"][kind][name] for s in row["stages"] for kind in seats)
        assert row[total] == pytest.approx(by_hand, rel=1e-12)
    assert row["schedule_bytes"] == row["schedule_download_bytes"] + row["schedule_upload_bytes"]
    assert row["schedule_client_rounds"] == 4 * 3
    assert row["schedule_seconds"] == pytest.approx(sum(s["rounds"] * s["round_seconds"] for s in row["stages"]))


def test_judged_on_arrays_is_judged_one_by_one(declared: dict[str, Any]) -> None:
    axes = ["fleet.budgets.energy_per_round=0.01..0.4J", "fleet.budgets.memory=100..500KiB"]
    scenario = {**declared, "data": {**DECLARED, "clients": {"image": 12, "text": 9}, "samples": "8..60"},
                "fleet": {"devices": {"raspberry-pi-4-4gb": "50%", "jetson-orin-nano-8gb": "50%"},
                          "links": {"wifi-5": "50%", "lte": "50%"}}, "round": {"deadline": "400 ms"}}  # fmt: skip
    setup = compose(load(scenario, axes))
    predictor = predictor_of(load(scenario))
    found = stage_eligibility(workload_of(setup, predictor))
    fast = stage_eligibility(workload_of(setup, predictor), why=False)
    planner, federation = Planner(setup, predictor), setup.clients
    assert {int(b) for one in found for b in one.binding} > {0}
    for one, again, first in zip(found, fast, (1, 3), strict=True):
        assert (one.eligible == again.eligible).all()
        for client in range(21):
            fleet = setup.fleet
            group, device_, link = federation.client_group[client], fleet.device_index[client], fleet.link_index[client]
            plan = planner.plan(int(group), int(device_), int(link), first, one.stage, ())
            budgets = {name: values[[client]] for name, values in setup.fleet.budgets.items()}
            budgets["seconds"] = np.minimum(budgets["seconds"], 0.4)
            verdict = gate(plan.amounts, budgets)[0]
            assert one.eligible[client] == verdict.eligible
            assert BUDGETS[one.binding[client]] == verdict.binding
            assert one.seconds[client] == pytest.approx(verdict.costs["seconds"], rel=1e-12)
            assert one.joules[client] == pytest.approx(verdict.costs["joules"], rel=1e-12)


# --- cells that can't be run -----------------------------------------------------------------------------------------


def test_a_refused_cell_says_why_and_the_others_go_on(declared: dict[str, Any], tmp_path: Path) -> None:
    folder, axes = tmp_path / "grid", ["schedule.stages=1,2,4", "training.batch=4,8"]
    result = edgefl.sweep(declared, axes, out=folder, figure=tmp_path / "map.svg", sensitivity="2x")
    rows = {row["label"]: row for row in result["rows"]}
    assert len(rows) == 6 and [label for label, row in rows.items() if "refused" in row] == [
        "stages=4,batch=4", "stages=4,batch=8"
    ]  # fmt: skip
    refused = rows["stages=4,batch=8"].to_data()
    assert refused.pop("refused").startswith("schedule.stages: ")
    assert refused == {
        "label": "stages=4,batch=8", "schedule.stages": 4, "training.batch": 8, "method": "fedavg",
        "schedule": "layerwise",
    }  # fmt: skip
    # what can be run has the row, the frontier and the sensitivity that it has alone
    alone = edgefl.sweep(declared, ["schedule.stages=1,2", "training.batch=4,8"], sensitivity="2x")
    assert [row for row in result["rows"] if "refused" not in row] == alone["rows"]
    assert result["frontier"] == alone["frontier"] and result["sensitivity"] == alone["sensitivity"]
    with (folder / "sweep.csv").open() as file:
        table = {row["label"]: row for row in csv.DictReader(file)}
    assert table["stages=4,batch=4"]["refused"].startswith("schedule.stages: ")
    assert table["stages=4,batch=4"]["eligible_share"] == "" != table["stages=2,batch=4"]["eligible_share"]
    # the same refusal is written once, and tried again each time
    lines = (folder / "sweep.jsonl").read_text().splitlines()
    assert len(lines) == 6
    edgefl.sweep(declared, axes, out=folder)
    assert (folder / "sweep.jsonl").read_text().splitlines() == lines


def test_rows_are_a_table_with_a_column_for_each_axis(declared: dict[str, Any], tmp_path: Path) -> None:
    axes = ["schedule=end-to-end,{name: layerwise, stages: 2}", "training.batch=4,8", "fleet.budgets.memory=1 GB"]
    rows = edgefl.sweep(declared, axes, out=tmp_path / "grid")["rows"]
    table = pd.DataFrame([row.to_data() for row in rows])
    assert list(table.groupby(["schedule", "training.batch"]).size().index) == [
        ("end-to-end", 4), ("end-to-end", 8), ("layerwise", 4), ("layerwise", 8)
    ]  # fmt: skip
    assert list(table["schedule.stages"].dropna()) == [2, 2] and table["fleet.budgets.memory"].nunique() == 1
    assert "method.name" not in table and "schedule.name" not in table
    columns = (tmp_path / "grid" / "sweep.csv").read_text().splitlines()[0].split(",")
    assert {"schedule", "schedule.stages", "training.batch", "fleet.budgets.memory"} <= set(columns)
    again = edgefl.sweep(declared, [*axes[:2], "fleet.budgets.memory=1 GB,2 GB"], out=tmp_path / "grid")["rows"]
    assert set(pd.DataFrame([row.to_data() for row in again])) == set(table)


def test_what_only_the_parts_together_refuse_is_a_row_too(tiny: Tiny) -> None:
    """HeteroFL can't narrow timm's blocks: only composing the cell shows that."""
    scenario = tiny(data={**DECLARED, "clients": {"image": 4}})
    vit = "{blocks: 2, width: 16, heads: 2}"
    timm = "{tower: timm-vit, variant: tiny, patch: 16, blocks: 2, width: 16, heads: 2}"
    rows = rows_of(scenario, [f"model.image={timm},{vit}", "schedule=heterofl,end-to-end"])
    assert ["refused" in row for row in rows] == [True, False, False, False]
    assert "timm-vit" in rows[0]["refused"] and "\n" not in rows[0]["refused"]


def test_a_sweep_of_which_nothing_can_be_run_is_an_error(declared: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="schedule.stages: "):
        rows_of(declared, ["schedule.stages=3,4"], out=tmp_path / "grid")
    assert not (tmp_path / "grid").exists()
    # a value that is wrong by itself is told before the other cells are computed
    with pytest.raises(ScenarioError, match="training.batch: "):
        rows_of(declared, ["schedule.stages=1,4", "training.batch=4,-1"], out=tmp_path / "grid")
    assert not (tmp_path / "grid").exists()


def test_refused_cells_are_printed_with_their_reason(declared: dict[str, Any]) -> None:
    result = edgefl.sweep(declared, ["schedule.stages=2,3,4"])
    text = io.StringIO()
    print_sweep(result, Console(file=text, width=100))
    lines = text.getvalue().splitlines()
    assert any(line.split()[:2] == ["4", "refused"] for line in lines)
    assert "2 combinations can't be run" in lines
    assert any(line.startswith("stages=4") and "refused: schedule.stages: " in line for line in lines)


ANYTHING = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.just(10**400), st.floats(), st.just(1e308), st.text(max_size=9)
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.text(max_size=9), inner, max_size=2)),
    max_leaves=4,
)
"""What somebody may write in place of a field."""


@pytest.fixture(scope="module")
def kept_rows(declared: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    folder = tmp_path_factory.mktemp("kept") / "rows"
    edgefl.sweep(declared, ["training.batch=4,8"], out=folder)
    return folder, (folder / "sweep.jsonl").read_text().splitlines()


@pytest.mark.parametrize("label", [[], {}, [[]], None, 1])
def test_a_row_whose_label_is_no_text_is_told_by_line(
    declared: dict[str, Any], kept_rows: tuple[Path, list[str]], label: Any
) -> None:
    folder, (first, second) = kept_rows
    (folder / "sweep.jsonl").write_text(f"{first}\n{json.dumps(json.loads(second) | {'label': label})}\n")
    with pytest.raises(RunError, match="sweep.jsonl:2: this line is damaged"):
        edgefl.sweep(declared, ["training.batch=4,8"], out=folder)


def test_the_mean_over_kinds_of_trained_cells_can_be_drawn(kept_rows: tuple[Path, list[str]]) -> None:
    first, second = (read_cell(json.loads(line), "sweep.jsonl") for line in kept_rows[1])
    trained = replace(first, metrics={"image": {"accuracy": 0.25}, "text": {"accuracy": 0.75, "x": 0.5}})
    assert values_of([trained, second], "metrics.mean.accuracy") == [0.5, None]
    with pytest.raises(UnknownName, match="unknown value 'metrics.mean.y'"):
        values_of([trained, second], "metrics.mean.y")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_an_edited_row_is_taken_or_told_in_a_line(
    declared: dict[str, Any], kept_rows: tuple[Path, list[str]], data: st.DataObject
) -> None:
    folder, (first, second) = kept_rows
    row = inner = json.loads(first)
    while True:
        key = data.draw(st.sampled_from(sorted(inner) if isinstance(inner, dict) else range(len(inner))))
        if not (isinstance(inner[key], dict | list) and inner[key] and data.draw(st.booleans())):
            break
        inner = inner[key]
    if data.draw(st.integers(0, 4)):
        inner[key] = data.draw(ANYTHING)
    else:
        del inner[key]
    (folder / "sweep.jsonl").write_text(f"{json.dumps(row)}\n{second}\n")
    try:
        answer = edgefl.sweep(declared, ["training.batch=4,8"], out=folder)
    except EdgeflError as error:
        assert "sweep.jsonl:1" in str(error) and "\n" not in str(error)
    else:
        json.dumps(answer.to_data(), allow_nan=False)
        print_sweep(answer, Console(file=io.StringIO()))
