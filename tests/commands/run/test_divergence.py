"""A model that isn't finite any more is said to have diverged: in records, in tables, by --verify; no score of it."""

from __future__ import annotations

import hashlib
import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import edgefl
from edgefl.console import main
from edgefl.errors import DivergedError
from edgefl.results.verify import verify
from edgefl.runs import Run, read_run

Tiny = Callable[..., dict[str, Any]]

SGD = {"batch": 8, "optimizer": "sgd", "lr": 1e30}
WAYS: dict[str, dict[str, Any]] = {
    "weights": {"training": SGD, "aggregation": {"non_finite": "keep"}},
    "scores": {"aggregation": {"optimizer": "adam", "lr": 1e30}},
    "losses": {"training": SGD},
}


@pytest.fixture(scope="module", params=["weights", "losses", pytest.param("scores", marks=pytest.mark.slow)])
def stopped(request: pytest.FixtureRequest, tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    folder = tmp_path_factory.mktemp("diverged") / "run"
    with pytest.raises(DivergedError, match="the model diverged in round 1: .*training.on_divergence: continue"):
        edgefl.run(tiny(**WAYS[request.param], evaluation={"every": 1}), out=folder)
    return request.param, folder


def test_a_run_stops_after_the_round_and_can_be_resumed(stopped: tuple[str, Path], tmp_path: Path) -> None:
    way, folder = stopped
    run = read_run(folder)
    (record,) = run.records("rounds")
    assert record["diverged"] and not run.is_finished
    with pytest.raises(DivergedError):
        edgefl.run(resume=folder)
    assert len(run.records("rounds")) == 1
    copy = tmp_path / "run"
    shutil.copytree(folder, copy)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        on = edgefl.run(resume=copy, overrides=["training.on_divergence=continue"])
    assert on.is_finished and all(r["diverged"] for r in on.records("rounds"))
    # the round before the resume had diverged: no second warning
    assert not [w for w in caught if "diverged" in str(w.message)]
    assert verify(copy)["valid"]
    metrics = [value for values in on.result["metrics"].values() for value in values.values()]
    if way == "losses":  # every update was rejected: the model is the first one, and its scores are real
        assert None not in metrics
        assert all(r["outcomes"] == {"rejected": r["selected"]} and r["finished"] == 0 for r in on.records("rounds"))
        assert all(r["rejections"] == {"not finite": r["selected"]} for r in on.records("rounds"))
        assert {c["outcome"] for c in on.records("clients")} == {"rejected"}
        assert all(value is None for r in on.records("rounds") for value in r["losses"].values())
    else:
        assert metrics and set(metrics) == {None}
    finite = all(bool(value.isfinite().all()) for value in on.weights().values())
    assert finite == (way != "weights")


def test_going_on_warns_once_and_names_round_and_tensor(tiny: Tiny, tmp_path: Path) -> None:
    scenario = tiny(**WAYS["weights"] | {"training": {**SGD, "on_divergence": "continue"}})
    with pytest.warns(RuntimeWarning, match=r"diverged in round 1: the tensor \S+ has NaN") as caught:
        edgefl.run(scenario, out=tmp_path / "run")
    assert len([w for w in caught if "diverged" in str(w.message)]) == 1


@pytest.mark.slow(smaller="test_going_on_warns_once_and_names_round_and_tensor")
def test_tables_say_diverged(tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "s.json"
    scenario = tiny(**WAYS["weights"], compare={"training.lr": [1e30, 1e-3]})
    path.write_text(json.dumps({"edgefl": 1, **scenario, "training": {**SGD, "on_divergence": "continue"}}))
    with pytest.raises(SystemExit) as ended, pytest.warns(RuntimeWarning, match="diverged"):
        main(["run", str(path), "--out", str(tmp_path / "run")])
    out, _ = capsys.readouterr()
    assert ended.value.code == 0
    assert "the model diverged: after 2 rounds, first round 1, it wasn't finite" in out
    assert "diverged (0.083)" in out
    comparison = out[out.index("Comparison of the runs") :]
    accuracy = next(line for line in comparison.splitlines() if line.startswith("  image accuracy"))
    assert accuracy.split()[-2] == "diverged" and accuracy.split()[-1].startswith("0.")


@pytest.mark.slow(smaller="test_a_run_stops_after_the_round_and_can_be_resumed")
def test_other_combinations_go_on(tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scenario = tiny(**WAYS["weights"], compare={"training.lr": [1e30, 1e-3]})
    path = tmp_path / "s.json"
    path.write_text(json.dumps({"edgefl": 1, **scenario}))
    with pytest.raises(SystemExit) as ended:
        main(["run", str(path), "--out", str(tmp_path / "run")])
    out, err = capsys.readouterr()
    assert ended.value.code == 1
    assert "lr=1e+30: the model diverged in round 1" in err
    assert f"edgefl run --resume {tmp_path / 'run'} --set training.on_divergence=continue" in err
    runs = read_run(tmp_path / "run").runs
    assert [run.is_finished for run in runs.values()] == [False, True]
    assert "lr=0.001" in out


def test_verify_finds_a_mark_that_is_missing(stopped: tuple[str, Path], tmp_path: Path) -> None:
    way, folder = stopped
    copy = tmp_path / "run"
    shutil.copytree(folder, copy)
    edgefl.run(resume=copy, overrides=["training.on_divergence=continue"])
    path = copy / "rounds.jsonl"
    path.write_text(path.read_text().replace('"diverged":true', '"diverged":false'))
    broken = {check["name"] for run in verify(copy)["runs"].values() for check in run["checks"] if check["broken"]}
    assert broken == {"files", "diverged"} | ({"weights"} if way == "weights" else set())


def test_one_client_whose_loss_is_not_finite_is_no_divergence_where_the_median_is(tiny: Tiny, tmp_path: Path) -> None:
    """One of nine clients diverges alone: no record of its round is marked, unless all of the kind do."""
    data = {"source": "glyphs", "clients": {"image": 9}, "samples": 200, "validation": 40, "test": 40}
    run = edgefl.run(
        tiny(
            data=data | {"partition": {"dirichlet": 0.1}},
            model={"image": {"blocks": 1, "width": 16, "heads": 2}},
            training={"batch": 8, "optimizer": "sgd", "lr": 1.0},
            aggregation={"rule": "median", "non_finite": "keep"},
            schedule={"name": "end-to-end", "rounds": 1},
        ),
        out=tmp_path / "run",
    )
    (record,) = run.records("rounds")
    losses = [client["loss"] for client in run.records("clients")]
    assert losses.count(None) == 1 and record["losses"] == {"image": None} and not record["diverged"]
    assert (
        all(bool(value.isfinite().all()) for value in run.weights().values())
        and None not in run.result["metrics"]["image"].values()
    )
    assert verify(run.path)["valid"]
    path = run.path / "clients.jsonl"
    lines = [json.loads(line) | {"loss": None} for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (report,) = verify(run.path)["runs"].values()
    assert {check["name"] for check in report["checks"] if check["broken"]} == {"files", "diverged"}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_one_weight_that_is_not_finite_leaves_no_score_of_its_model(
    layerwise_run: Run, tmp_path: Path, value: float
) -> None:
    """One weight of the image classifier: its model has no metric, the others keep theirs to the bit."""
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "run"
    shutil.copytree(layerwise_run.path, folder)
    checkpoint = folder / "checkpoints" / "round-000003"
    tensors = load_file(checkpoint / "state.safetensors")
    address = next(name for name in tensors if name.startswith("image/") and "head" in name)
    tensors[address].view(-1)[0] = value
    save_file(tensors, checkpoint / "state.safetensors")
    manifest = json.loads((checkpoint / "state.json").read_text())
    raw = (checkpoint / "state.safetensors").read_bytes()
    manifest["tensors_blake2b"] = hashlib.blake2b(raw, digest_size=16).hexdigest()
    (checkpoint / "state.json").write_text(json.dumps(manifest))
    shutil.rmtree(folder / "checkpoints" / "round-000004")
    for name in ("result.json", "files.json", "weights.safetensors"):
        (folder / name).unlink()
    with pytest.warns(RuntimeWarning, match=rf"diverged in round 4: the tensor {address}"):
        run = edgefl.run(
            resume=folder, overrides=["training.on_divergence=continue"]
        )  # round 4 averages a finite change onto it
    metrics = run.result["metrics"]
    assert set(metrics["image"].values()) == {None}
    assert None not in metrics["text"].values() and metrics["text"]
