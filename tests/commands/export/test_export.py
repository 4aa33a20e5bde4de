"""Exports and trackers are read back with the readers of the programs that they are for."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import edgefl
from edgefl.errors import MethodError, RunError, ScenarioError, UnknownName
from edgefl.runs import Run, trackers

Tiny = Callable[..., dict[str, Any]]


def events(folder: Path) -> dict[str, list[tuple[int, float, float]]]:
    """``{tag: [(step, value, wall time)]}`` as TensorBoard itself reads it."""
    with warnings.catch_warnings(action="ignore"):
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        read = EventAccumulator(str(folder), size_guidance={"scalars": 0})
        read.Reload()
        return {tag: [(e.step, e.value, e.wall_time) for e in read.Scalars(tag)] for tag in read.Tags()["scalars"]}


def stored(file: Path) -> dict[str, Any]:
    """The runs of an MLflow store by name, read by MLflow's client, with the history of each metric."""
    with warnings.catch_warnings(action="ignore"):
        from mlflow.tracking import MlflowClient

        client = MlflowClient(tracking_uri=f"sqlite:///{file}")
        (experiment,) = [e for e in client.search_experiments() if e.name != "Default"]
        runs = client.search_runs([experiment.experiment_id])
        return {
            run.info.run_name: (
                run,
                {name: [(m.step, m.value, m.timestamp) for m in client.get_metric_history(run.info.run_id, name)]
                 for name in run.data.metrics},
            )
            for run in runs
        }  # fmt: skip


def check_events(run: Run, folder: Path) -> None:
    found = events(folder)
    rounds = run.records("rounds")
    for tag, value in (
        ("energy_joules", lambda r: r["energy_joules"]),
        ("finished_virtual_seconds", lambda r: r["finished_virtual_seconds"]),
        ("clients/image", lambda r: r["clients"]["image"]),
    ):
        assert [step for step, _, _ in found[tag]] == [r["round"] for r in rounds]
        assert [each for _, each, _ in found[tag]] == pytest.approx([value(r) for r in rounds], rel=1e-6)
        assert [at for *_, at in found[tag]] == pytest.approx([r["finished_virtual_seconds"] for r in rounds])
    for kind, metrics in rounds[-1]["metrics"].items():
        for name, value in metrics.items():
            # a curve of its own: no earlier round was scored on test
            last = (rounds[-1]["round"], pytest.approx(value, rel=1e-6))
            assert [each[:2] for each in found[f"metrics/test/{kind}/{name}"]] == [last]


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_tables_come_back_from_files(layerwise_run: Run, tmp_path: Path, form: str) -> None:
    facts = edgefl.export(layerwise_run.path, form, tmp_path / "out")
    read = pd.read_csv if form == "csv" else pd.read_parquet
    for name in ("rounds", "clients", "eligibility"):
        frame, there = read(tmp_path / "out" / f"{name}.{form}"), getattr(layerwise_run, name)
        assert list(frame.columns) == list(there.columns) and len(frame) == len(there)
        numbers = there.select_dtypes("number").columns
        pd.testing.assert_frame_equal(frame[numbers], there[numbers], check_dtype=False)
    (row,) = read(tmp_path / "out" / f"runs.{form}").to_dict("records")
    assert row["method"] == "fedcola" and row["finished"] and row["rounds"] == 4
    assert row["totals.energy_joules"] == layerwise_run.result["totals"]["energy_joules"]
    rounds = read(tmp_path / "out" / f"rounds.{form}")
    assert row["metrics_split"] == rounds.metrics_split.iloc[-1] == "test"
    assert {Path(file).name for file in facts["files"]} == {path.name for path in (tmp_path / "out").iterdir()}


def test_tensorboard_reads_an_export(layerwise_run: Run, tmp_path: Path) -> None:
    edgefl.export(layerwise_run.path, "tensorboard", tmp_path / "out")
    edgefl.export(layerwise_run.path, "tensorboard", tmp_path / "out")  # again: replaced, not doubled
    check_events(layerwise_run, tmp_path / "out")


@pytest.mark.slow(smaller="test_a_log_in_mlflow_replaces_the_run_of_its_label_alone")
def test_mlflow_reads_an_export_of_a_comparison(tiny: Tiny, tmp_path: Path) -> None:
    scenario = tiny(training={"mode": "none"}, compare={"training.batch": [4, 8]})
    run = edgefl.run(scenario, out=tmp_path / "run")
    for _ in range(2):  # the second replaces the first
        edgefl.export(run.path, "mlflow", tmp_path / "out")
    found = stored(tmp_path / "out" / "mlflow.db")
    assert set(found) == {"batch=4", "batch=8"}
    for label, (logged, history) in found.items():
        rounds = run.runs[label].records("rounds")
        assert logged.info.status == "FINISHED" and logged.data.params["training.batch"] == label.partition("=")[2]
        assert [(step, value) for step, value, _ in history["energy_joules"]] == [
            (r["round"], pytest.approx(r["energy_joules"])) for r in rounds
        ]
        assert [at for *_, at in history["planned.upload_bytes"]] == [
            round(1000 * r["finished_virtual_seconds"]) for r in rounds
        ]


def test_a_log_in_mlflow_replaces_the_run_of_its_label_alone(tmp_path: Path) -> None:
    labels = ["it's", 'say "a"', 'it\'s "a"', "50%", "back\\slash", "' OR '1' = '1"]
    others = ["its a", "50 of", "another"]
    for name in (*labels, *others, *labels):
        trackers.MlflowLog(tmp_path / "mlflow.db", name, {"name": "quoted"}).close(finished=True)
    with sqlite3.connect(tmp_path / "mlflow.db") as store:
        names = [name for (name,) in store.execute("SELECT name FROM runs WHERE lifecycle_stage = 'active'")]
    assert sorted(names) == sorted([*labels, *others])


def test_names_that_mlflow_takes(tmp_path: Path) -> None:
    from mlflow.utils.validation import _validate_metric_name, _validate_param_name

    names = trackers.mlflow_names(["metrics.image-text.r@10", "metrics.image.accuracy[image]"])
    assert list(names.values()) == ["metrics.image-text.r_at_10", "metrics.image.accuracy_image_"]
    paths = ["a@b", "a_at_b", "fleet.devices./home//bob's/x.yaml", "../up", "x" * 300, "x" * 299 + "y", "a\nb", "é/."]
    names = trackers.mlflow_names(paths)
    assert len(set(names.values())) == len(paths)
    for name in names.values():
        _validate_param_name(name)
        _validate_metric_name(name)
    scenario = {"name": "bob's", "fleet": {"devices": dict.fromkeys(paths, 0.125)}}
    trackers.MlflowLog(tmp_path / "mlflow.db", "bob's", scenario).close(finished=True)
    (logged, _) = stored(tmp_path / "mlflow.db")["bob's"]
    assert len(logged.data.params) == 1 + len(paths)


NAMES = ['bob\'s "a"; b\n漢 ü', "n" * 240]


@pytest.mark.parametrize("name", NAMES)
def test_a_store_lies_where_the_run_does_whatever_its_name(tmp_path: Path, name: str) -> None:
    file = tmp_path / name / "mlflow.db"
    trackers.MlflowLog(file, "label", {"name": "n"}).close(finished=True)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [file]
    with sqlite3.connect(file) as store:
        assert store.execute("SELECT name FROM runs").fetchall() == [("label",)]


@pytest.mark.parametrize("name", ["q?x=1#y", "%41"])
def test_a_path_that_mlflow_would_read_as_another_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(RunError, match="whose path has a character of URLs"):
        trackers.MlflowLog(tmp_path / name / "mlflow.db", "label", {"name": "n"})
    assert not list(tmp_path.rglob("*"))


@pytest.mark.slow(smaller="test_a_run_writes_what_an_export_writes_also_after_a_break")
@pytest.mark.parametrize("tracker", ["none", "tensorboard", "mlflow"])
def test_a_tracker_writes_in_the_runs_folder_alone(tiny: Tiny, tmp_path: Path, tracker: str) -> None:
    home, here, cache = tmp_path / "home", tmp_path / "here", tmp_path / "cache"
    for folder in (home, here, cache):
        folder.mkdir()
    (tmp_path / "s.json").write_text(
        json.dumps({"edgefl": 1, **tiny(training={"mode": "none"}, tracker=tracker, name="bob's")})
    )
    kept = {"HOME": home, "EDGEFL_CACHE": cache, "MPLCONFIGDIR": cache, "TMPDIR": cache}
    environment = {n: v for n, v in os.environ.items() if not n.startswith(("XDG_", "MLFLOW_"))}
    subprocess.run(
        [sys.executable, "-m", "edgefl", "run", str(tmp_path / "s.json")],
        cwd=here, env=environment | {n: str(v) for n, v in kept.items()}, check=True, capture_output=True,
    )  # fmt: skip
    assert not list(home.rglob("*"))
    assert [str(path.relative_to(here)) for path in here.glob("*/*")] == ["runs/bob's"]


def test_a_file_that_is_no_store_is_one_line_and_ends_no_run(layerwise_run: Run, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mlflow.db").write_bytes(b"something else" * 100)
    with pytest.raises(RunError, match=r"can't write .*mlflow.db: file is not a database") as refusal:
        edgefl.export(layerwise_run.path, "mlflow", tmp_path / "out")
    assert "\n" not in str(refusal.value)
    log = trackers.MlflowLog(tmp_path / "deleted" / "mlflow.db", "label", {"name": "n"})
    log._client.delete_experiment(log._client.get_experiment_by_name("n").experiment_id)
    with pytest.raises(RunError, match=r"can't write .*mlflow.db: .*n.*deleted") as refusal:
        trackers.MlflowLog(tmp_path / "deleted" / "mlflow.db", "label", {"name": "n"})
    assert "\n" not in str(refusal.value)

    tracked = trackers.Tracked(lambda event, facts: None)
    with pytest.warns(RuntimeWarning, match="the tracker's log ends here, and the run goes on"):
        tracked.open(lambda: trackers.log_of("mlflow", tmp_path / "out", "label", {"name": "n"}))


@pytest.mark.filterwarnings("ignore:.* has no checkpoint:RuntimeWarning")
def test_a_run_writes_what_an_export_writes_also_after_a_break(tiny: Tiny, tmp_path: Path) -> None:
    def stop(event: str, facts: Any) -> None:
        if event == "round" and facts["round"] == 3:
            raise KeyboardInterrupt

    scenario = tiny(training={"mode": "none"}, schedule={"name": "end-to-end", "rounds": 4}, tracker="tensorboard")
    with pytest.raises(KeyboardInterrupt):
        edgefl.run(scenario, out=tmp_path / "run", on_progress=stop)
    run = edgefl.run(resume=tmp_path / "run")
    check_events(run, run.path / "tensorboard")
    edgefl.export(run.path, "tensorboard", tmp_path / "out")
    assert events(tmp_path / "out") == events(run.path / "tensorboard")


@pytest.mark.slow(smaller="test_a_store_lies_where_the_run_does_whatever_its_name")
def test_a_comparison_has_one_store(tiny: Tiny, tmp_path: Path) -> None:
    run = edgefl.run(tiny(training={"mode": "none"}, tracker="mlflow", compare={"seed": [1, 2]}), out=tmp_path / "run")
    assert run.is_finished and set(stored(tmp_path / "run" / "mlflow.db")) == {"seed=1", "seed=2"}


@pytest.mark.slow(smaller="test_a_file_that_is_no_store_is_one_line_and_ends_no_run")
def test_a_log_that_ends_early_doesnt_end_the_run(tiny: Tiny, tmp_path: Path) -> None:
    def spoil(event: str, facts: Any) -> None:
        if event == "round" and facts["round"] == 2:
            with sqlite3.connect(tmp_path / "run" / "mlflow.db") as store:
                store.execute("DROP TABLE metrics")

    scenario = tiny(training={"mode": "none"}, tracker="mlflow", schedule={"name": "end-to-end", "rounds": 3})
    with pytest.warns(RuntimeWarning, match="the tracker's log ends here, and the run goes on"):
        run = edgefl.run(scenario, out=tmp_path / "run", on_progress=spoil)
    assert run.is_finished and len(run.records("rounds")) == 3


def test_a_missing_package_is_told_before_anything_is_written(
    tiny: Tiny, layerwise_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib.util

    there = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec",
        lambda name, package=None: None if name in ("tensorboard", "alembic", "pyarrow") else there(name, package),
    )  # fmt: skip
    with pytest.raises(
        RunError, match=r"tensorboard needs a package .*: pip install tensorboard \(or, .*\[tensorboard\]"
    ):
        edgefl.run(tiny(tracker="tensorboard"), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(RunError, match="mlflow needs a package that isn't installed: pip install alembic"):
        edgefl.export(layerwise_run.path, "mlflow", tmp_path / "out")
    with pytest.raises(RunError, match="parquet needs a package that isn't installed: pip install pyarrow"):
        edgefl.export(layerwise_run.path, "parquet", tmp_path / "out")


def test_bad_requests_are_one_line(layerwise_run: Run, tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="unknown form 'tensorbord'; did you mean 'tensorboard'"):
        edgefl.export(layerwise_run.path, "tensorbord", tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="it is a file, not a folder"):
        edgefl.export(layerwise_run.path, "csv", tmp_path / "file")
    with pytest.raises(RunError, match="there is no run at"):
        edgefl.export(tmp_path / "none", "csv", tmp_path / "out")


@pytest.mark.slow(smaller="test_peft_gives_the_same_outputs")
def test_towers_leave_for_peft_and_transformers_and_start_another_run(tiny: Tiny, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModel, AutoTokenizer

    from edgefl.scenario import load
    from edgefl.setup.compose import compose

    small = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    towers: dict[str, Any] = {
        "image": {"tower": "hf-vit", "blocks": 1, "width": 16, "heads": 2, "patch": 8},
        "text": {"tower": "hf-causal", "tokens": 12, "config": {"model_type": "llama", **small}},
    }
    scenario = tiny(model=towers, adapter={"name": "lora", "rank": 2, "also": ["head", "norm"]})
    scenario["data"] = {**scenario["data"], "clients": {"image": 2, "text": 1}}
    run = edgefl.run(scenario, out=tmp_path / "run")
    facts = edgefl.export(run.path, "peft", tmp_path / "peft")
    assert {Path(file) for file in facts["files"]} == {p for p in (tmp_path / "peft").rglob("*") if p.is_file()}
    for kind, tower in towers.items():
        tower["weights"] = str(tmp_path / "peft" / kind / kind / "base")
    weights = {kind: str(tmp_path / "peft" / kind / kind) for kind in towers}
    again = {**scenario, "seed": 9, "adapter": {**scenario["adapter"], "weights": weights}}
    state = compose(load(again), lambda message: None).method.initial(9).tensors
    trained = {name: value for name, value in run.weights().items() if ".pooler." not in name}
    assert len(trained) > 40 and all(torch.equal(state[name], value) for name, value in trained.items())

    edgefl.export(run.path, "transformers", tmp_path / "whole")
    model: Any = run.model("text")
    found = AutoModel.from_pretrained(tmp_path / "whole" / "text" / "text")
    x = torch.arange(24).reshape(2, 12)
    with torch.no_grad():
        found = found(input_ids=x, attention_mask=torch.ones_like(x)).last_hidden_state
        torch.testing.assert_close(found, model.tower("text")(x), atol=1e-6, rtol=1e-6)

    texts = ["a red circle", "two squares"]
    given = AutoTokenizer.from_pretrained(tmp_path / "peft" / "text" / "text")
    ids = given(texts, padding="max_length", truncation=True, return_tensors="pt").input_ids
    assert torch.equal(ids, run.preprocessing("text").text(texts))

    (run.path / "result.json").rename(tmp_path / "result.json")
    with pytest.raises(RunError, match=r"the run at .* isn't finished"):
        edgefl.export(run.path, "peft", tmp_path / "out")


def test_towers_of_no_library_stay(layerwise_run: Run, tmp_path: Path) -> None:
    with pytest.raises(MethodError, match=r"^no tower of .* is a model of transformers: it has transformer, vit$"):
        edgefl.export(layerwise_run.path, "transformers", tmp_path / "out")


def test_a_folder_of_peft_is_of_one_tower(tiny: Tiny, tmp_path: Path) -> None:
    for weights in ("adapter", {"audio": "adapter"}):
        scenario = tiny(adapter={"name": "lora", "weights": weights})
        with pytest.raises(ScenarioError, match=r"one tower: write \{MODALITY: DIR\}, with image or text"):
            edgefl.run(scenario, out=tmp_path / "run")
    with pytest.raises(
        ScenarioError, match="weights are factors of LoRA or DoRA, not of bitfit: set name: lora or dora"
    ):
        edgefl.run(tiny(adapter={"name": "bitfit", "weights": "adapter"}), out=tmp_path / "run")
