from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import edgefl
from edgefl.errors import RunError

Tiny = Callable[..., dict[str, Any]]


class Stopped(Exception):
    """Stands for a user who has had enough."""


@pytest.mark.slow(smaller="test_rows_of_a_sweep_are_equal_side_by_side_and_in_shards")
def test_cells_are_trained_once_and_gone_on_with(tiny: Tiny, tmp_path: Path) -> None:
    scenario = tiny(data={**tiny()["data"], "clients": {"image": 3}})
    axes, folder = ["schedule=end-to-end,layerwise"], tmp_path / "sweep"
    (plain, _) = edgefl.sweep(scenario, axes, out=folder)["rows"]
    assert "metrics" not in plain
    heard: list[tuple[str, Any]] = []

    def stop(event: str, facts: Mapping[str, Any]) -> None:
        heard.append((event, facts.get("label")))
        if event == "record" and sum(e == "record" for e, _ in heard) == 3:
            raise Stopped

    with pytest.raises(Stopped):  # in the middle of the second cell
        edgefl.sweep(scenario, axes, out=folder, train=True, on_progress=stop)
    # to whoever listens a run is part of its cell
    assert [label for event, label in heard if event == "combination"] == ["end-to-end", "layerwise"]
    first = (folder / "runs" / "end-to-end" / "rounds.jsonl").stat().st_mtime_ns
    with pytest.warns(RuntimeWarning, match="layerwise has no checkpoint: it begins at round 1"):
        rows = edgefl.sweep(scenario, axes, out=folder, train=True)["rows"]
    assert (folder / "runs" / "end-to-end" / "rounds.jsonl").stat().st_mtime_ns == first
    for row in rows:
        done = edgefl.read_run(folder / "runs" / row["label"])
        assert done.is_finished and row["metrics"]["image"] == done.records("rounds")[-1]["metrics"]["image"]
        assert row["trained"]["rounds"] == row["rounds"] == 2
        assert plain.to_data().keys() <= row.to_data().keys()
    assert rows[0]["trained"]["updates"] == 6
    assert len((folder / "sweep.jsonl").read_text().splitlines()) == 4
    # with the same folder again nothing is computed, and what is trained stays in the row without --train too
    assert edgefl.sweep(scenario, axes, out=folder, train=True)["rows"] == rows
    assert edgefl.sweep(scenario, axes, out=folder)["rows"] == rows
    assert "metrics.image.accuracy" in (folder / "sweep.csv").read_text().splitlines()[0]
    edgefl.sweep(scenario, axes, out=folder, train=True, figure=tmp_path / "a.png", value="metrics.image.accuracy")

    # a run that isn't this cell's is no result of it
    (folder / "sweep.jsonl").write_text("")
    resolved = json.loads(json.dumps(scenario))
    resolved["training"]["batch"] = 4
    with pytest.raises(RunError, match="holds the run of another scenario"):
        edgefl.sweep(resolved, axes, out=folder, train=True)


@pytest.mark.slow(smaller="test_an_error_ends_its_own_cell_only")
def test_a_cell_that_diverges_leaves_the_others(tiny: Tiny, tmp_path: Path) -> None:
    scenario = tiny(data={**tiny()["data"], "clients": {"image": 2}})
    axes = ["training.lr=1e30,1e-3"]
    rows = edgefl.sweep(scenario, axes, out=tmp_path / "sweep", train=True)["rows"]
    assert "the model diverged in round" in rows[0]["trained"]["diverged"] and "diverged" not in rows[1]["trained"]
    assert rows[1]["metrics"]["image"]["accuracy"] >= 0.0 and rows[0]["eligible_share"] == 1.0
    assert rows[0]["metrics"] == {} and rows[1]["trained"]["metrics_split"] == "test"  # it isn't scored on test
    # it is kept as it is
    assert edgefl.sweep(scenario, axes, out=tmp_path / "sweep", train=True)["rows"] == rows


@pytest.mark.slow(smaller="test_nothing_is_written_for_a_scenario_that_cannot_run")
def test_what_a_run_refuses_is_not_trained(tiny: Tiny, tmp_path: Path) -> None:
    scenario = tiny(data={**tiny()["data"], "clients": {"image": 2}})
    axes = ["model.image.weights=null,nowhere.safetensors"]
    rows = edgefl.sweep(scenario, axes, out=tmp_path / "sweep", train=True)["rows"]
    assert "metrics" in rows[0] and "there is no file nowhere.safetensors" in rows[1]["refused"]
    assert [path.name for path in (tmp_path / "sweep" / "runs").iterdir()] == [rows[0]["label"]]
    # costs need no weights
    assert "refused" not in edgefl.sweep(scenario, axes)["rows"][1]
