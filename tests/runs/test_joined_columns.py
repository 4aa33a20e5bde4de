"""Columns that ``read_run`` adds to the tables, the clock of runs, and the checkpoints of a finished run."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import edgefl
from edgefl.errors import RunError
from edgefl.runs import Run

Tiny = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def compared(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two schedules by two batches by two fleets, not trained."""
    pi, jetson = "raspberry-pi-4-4gb", "jetson-orin-nano-8gb"
    compare = {
        "schedule": [{"name": "end-to-end", "rounds": 2}, {"name": "layerwise", "stages": 2, "rounds": 2}],
        "training.batch": [4, 8],
        "fleet.devices": [pi, {jetson: "100%"}],
    }
    scenario = tiny(training={"mode": "none"}, compare=compare)
    return edgefl.run(scenario, out=tmp_path_factory.mktemp("joined") / "run")


def test_tables_have_what_the_comparison_varies_as_columns(compared: Run) -> None:
    rounds = compared.rounds
    assert list(rounds.columns[:4]) == ["run", "method", "schedule", "seed"]
    assert len(rounds) == 8 * 2 and set(rounds["method"]) == {"fedavg"} and set(rounds["seed"]) == {3}
    for label, rows in rounds.groupby("run"):
        scenario = compared.runs[str(label)].scenario
        assert set(rows["schedule"]) == {scenario["schedule"]["name"]}
        assert set(rows["training.batch"]) == {scenario["training"]["batch"]}
        assert f"batch={scenario['training']['batch']}" in str(label)
        assert ("raspberry-pi-4-4gb" in str(label)) == rows["fleet.devices.raspberry-pi-4-4gb"].notna().all()
    # grouping by these columns finds every run once
    assert rounds.groupby(["schedule", "training.batch", "run"]).ngroups == 8
    assert set(compared.clients.columns) >= {"run", "schedule", "training.batch", "kind"}


def test_one_run_has_its_method_schedule_and_seed(layerwise_run: Run) -> None:
    for frame in (layerwise_run.rounds, layerwise_run.clients, layerwise_run.eligibility):
        assert list(frame.columns[:3]) == ["method", "schedule", "seed"]
        assert set(zip(frame["method"], frame["schedule"], frame["seed"], strict=True)) == {("fedcola", "layerwise", 3)}


def test_the_clock_is_the_end_of_a_round(layerwise_run: Run) -> None:
    records = layerwise_run.records("rounds")
    for record, after in itertools.pairwise(records):
        assert record["finished_virtual_seconds"] == after["started_virtual_seconds"]
    assert records[-1]["finished_virtual_seconds"] == layerwise_run.result["virtual_seconds"]


@pytest.fixture(scope="module")
def small(tiny: Tiny) -> Callable[..., dict[str, Any]]:
    """A scenario of four rounds of two clients."""

    def make(**executor: Any) -> dict[str, Any]:
        return tiny(
            data={"source": "glyphs", "clients": {"image": 2}, "samples": 16, "validation": 40, "test": 40},
            model={"image": {"blocks": 2, "width": 16, "heads": 2}},
            schedule={"name": "end-to-end", "rounds": 4},
            executor={"name": "inline", "device": "cpu", **executor},
        )

    return make


def kept(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def test_a_finished_run_keeps_the_checkpoints_that_it_is_asked_for(small: Tiny, tmp_path: Path) -> None:
    edgefl.run(small(checkpoints=3), out=tmp_path / "more")
    assert kept(tmp_path / "more") == ["round-000002", "round-000003", "round-000004"]


def test_a_finished_run_keeps_its_last_checkpoint_without_a_second_copy_of_the_weights(
    small: Tiny, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    run = edgefl.run(small(), out=folder)
    weights = (folder / "weights.safetensors").read_bytes()
    assert kept(folder) == ["round-000004"]
    assert (folder / "checkpoints" / "round-000004" / "state.safetensors").stat().st_size < len(weights) / 5

    # the run goes on from it if its result is taken away, also when that is broken off before anything is written
    whole = run.result
    (folder / "result.json").unlink()
    with pytest.raises(KeyboardInterrupt):
        edgefl.run(resume=folder, on_progress=_stop)
    assert not (folder / "weights.safetensors").exists()
    again = edgefl.run(resume=folder)
    assert again.result == whole and (folder / "weights.safetensors").read_bytes() == weights

    (folder / "result.json").unlink()
    (folder / "weights.safetensors").write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
    with (
        pytest.warns(RuntimeWarning, match="which holds its tensors, is missing or has changed"),
        pytest.raises(RunError, match="every checkpoint in .* is damaged"),
    ):
        edgefl.run(resume=folder)


def _stop(event: str, facts: Any) -> None:
    if event == "start":
        raise KeyboardInterrupt
