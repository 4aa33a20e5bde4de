"""Runs that a metric ends early, and the weights of the best evaluation."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from tensors import assert_equal_tensors

import edgefl
from edgefl.errors import MethodError, RunError, ScenarioError
from edgefl.methods import ServerState
from edgefl.planning.stop_options import StopOptions
from edgefl.records.metrics import lower_is_better, metric_value
from edgefl.records.run import BestRecord
from edgefl.results.facts import summary
from edgefl.results.verify import verify
from edgefl.runs import Run, best
from edgefl.scenario import load
from edgefl.simulation.watch import MetricWatch, value_of

Tiny = Callable[..., dict[str, Any]]


def played(values: Sequence[float | None], kept: str | None = None, **stop: Any) -> MetricWatch:
    """A watch after these values of image.x, one a round, up to the one that ends the run."""
    watch = MetricWatch.from_options(StopOptions(metric="image.x", **stop), kept)
    assert watch is not None
    for round, value in enumerate(values, 1):
        watch.sees(
            {"image": {"x": value, "y": -(value or 0.0)}},
            round,
            ServerState.from_tensors({"w": torch.tensor(float(round))}),
        )
        if watch.stopped:
            break
    return watch


@pytest.mark.parametrize(
    ("values", "stop", "ended", "text"),
    [
        ([0.1, 0.5, 0.8, 0.9], {"target": 0.8}, 3, "image x 0.8 reached 0.8"),
        ([0.9, 0.5, 0.3], {"target": 0.4, "better": "lower"}, 3, "image x 0.3 reached 0.4"),
        ([0.1, 0.3, 0.2, 0.3, 0.9], {"patience": 2}, 4, "image x was no better than 0.3 of round 2 in 2 evaluations"),
        ([0.1, 0.2, 0.15, 0.25, 0.2], {"patience": 2}, None, ""),
        ([0.5, 0.4, 0.3, 0.2], {"patience": 1, "after": 3}, 4, "image x was no better than 0.5 of round 1"),
        ([0.9, 0.9, 0.1], {"target": 0.8, "after": 1}, 2, "image x 0.9 reached 0.8"),
        ([None, None], {"patience": 2}, 2, "image x was not finite in 2 evaluations"),
        ([0.3, None, 0.4, None, None], {"patience": 2}, 5, "image x was no better than 0.4 of round 3"),
    ],
)  # fmt: skip
def test_when_a_run_ends(values: list[float | None], stop: dict[str, Any], ended: int | None, text: str) -> None:
    watch = played(values, **stop)
    if ended is None:
        assert watch.stopped is None
    else:
        assert watch.stopped is not None and watch.stopped.round == ended
        assert watch.stopped.text.startswith(f"stopped after round {ended}: {text}")
    again = MetricWatch.from_options(watch.stop, None)
    assert again is not None
    again.load_data(json.loads(json.dumps(watch.to_data())))
    assert again.to_data() == watch.to_data()


def test_the_best_is_the_first_of_equal_values() -> None:
    watch = played([0.1, 0.3, 0.3, 0.2], patience=4)
    assert watch.best == BestRecord(metric="image.x", value=0.3, round=2)
    assert watch.unwritten is not None and watch.unwritten.tensors["w"] == 2
    other = played([0.1, 0.3, 0.05], kept="image.y", patience=9)
    assert other.best == BestRecord(metric="image.y", value=-0.05, round=3)
    assert MetricWatch.from_options(StopOptions(), None) is None
    with pytest.raises(MethodError, match=r"no image\.z, .*; it has image\.x, image\.y"):
        played([0.1], kept="image.z", patience=1)


def test_a_mean_over_kinds_is_that_of_the_kinds_that_have_the_metric() -> None:
    metrics = {"image": {"x": 0.25, "y": None}, "text": {"x": 1.0, "y": 0.5}, "image-text": {"r@1": 0.125}}
    assert [metric_value(metrics, f"mean.{name}") for name in ("x", "r@1", "y", "z")] == [0.625, 0.125, None, None]
    assert [metric_value(metrics, name) for name in ("text.x", "image.y", "image.r@1", "mean")] == [1.0] + 3 * [None]
    watch = MetricWatch.from_options(StopOptions(metric="mean.x", target=0.6), None)
    assert watch is not None
    watch.sees(metrics, 1, ServerState.from_tensors({}))
    assert watch.values(metrics) == {"mean.x": 0.625} and watch.best.value == 0.625 and watch.stopped is not None
    with pytest.raises(MethodError, match=r"the evaluation has no mean\.z, .*; it has image\.x"):
        value_of(metrics, "mean.z")


def test_lower_is_better_by_name() -> None:
    assert [lower_is_better(f"text.{n}") for n in ("loss", "median_rank", "accuracy", "r@10")] == [
        True,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"target": 0.5}, "target needs the metric"),
        ({"after": 3}, "after needs the metric"),
        ({"metric": "image.accuracy"}, "metric needs a target, a patience, or both"),
        ({"metric": "image.accuracy", "patience": 0}, "greater than 0"),
        ({"metric": "image.accuracy", "target": float("nan")}, "finite"),
    ],
)
def test_fields_that_mean_nothing(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        StopOptions(**fields)


IMAGES = {"source": "glyphs", "clients": {"image": 3}, "samples": 40, "validation": 40, "test": 40}


def scenario(tiny: Tiny, rounds: int = 8, **sections: Any) -> dict[str, Any]:
    executor = {"name": "inline", "device": "cpu", "checkpoints": 8}
    schedule = {"name": "end-to-end", "rounds": rounds}
    return tiny(
        **{
            "data": IMAGES, "model": {"image": {"blocks": 1, "width": 16, "heads": 2}}, "schedule": schedule,
            "executor": executor, "training": {"batch": 8, "lr": 3e-3}, "evaluation": {}, **sections,
        }
    )  # fmt: skip


@pytest.mark.parametrize(
    ("sections", "told"),
    [
        ({"stop": {"metric": "image.acuracy", "target": 1}}, r"stop\.metric: the evaluation of image has no 'acuracy'; "
         "did you mean 'accuracy'"),
        ({"evaluation": {"best": "mean.acuracy"}}, "no kind's evaluation has 'acuracy'; did you mean 'accuracy'"),
        ({"evaluation": {"best": "image.r@10"}}, r"evaluation\.best: the evaluation of image has no 'r@10'; allowed"),
        ({"stop": {"metric": "imag.accuracy", "target": 1}}, r"there are no 'imag' clients to evaluate; did you"),
        ({"stop": {"metric": "accuracy", "target": 1}}, "a metric is written as kind and name, such as image.accuracy"),
        ({"stop": {"metric": "image.accuracy", "target": 1}, "training": {"mode": "none"}}, "training: none trains"),
    ],
)  # fmt: skip
def test_metrics_that_the_run_wont_have(sections: dict[str, Any], told: str, tiny: Tiny, tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(json.dumps({"edgefl": 1, **scenario(tiny, **sections)}, indent=1))
    with pytest.raises(ScenarioError, match=told) as refused:
        edgefl.run(path, out=tmp_path / "run")
    assert refused.value.line is not None and not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def stopped(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of 8 rounds that ends once its accuracy was no better in an evaluation than before."""
    stop = {"metric": "image.accuracy", "patience": 1}
    return edgefl.run(scenario(tiny, stop=stop), out=tmp_path_factory.mktemp("stopped") / "run")


@pytest.mark.slow(smaller="test_when_a_run_ends")
def test_a_run_ends_after_the_evaluation_and_says_why(stopped: Run, tiny: Tiny, tmp_path: Path) -> None:
    rounds = stopped.records("rounds")
    values = [record["watched"]["image.accuracy"] for record in rounds]
    assert 2 <= len(rounds) < 8 and stopped.is_finished and stopped.result["rounds"] == len(rounds)
    assert values[-1] <= max(values[:-1]) and sorted(set(values[:-1])) == values[:-1]
    assert stopped.early_stop is not None
    assert [record["stopped"] for record in rounds] == [None] * (len(rounds) - 1) + [stopped.early_stop.to_data()]
    assert stopped.early_stop["round"] == len(rounds) and stopped.early_stop["reason"] == "patience"
    # the last round is evaluated on both splits, and its metrics are those of the final one
    whens = [[work["when"] for work in record["server_works"]] for record in rounds]
    assert whens == [["evaluate validation"]] * (len(rounds) - 1) + [["evaluate validation", "evaluate test"]]
    assert rounds[-1]["metrics"] == stopped.result["metrics"]
    (facts,) = summary(stopped)["runs"].values()
    assert facts["metrics_split"] == "test" and facts["stopped"] == f"{stopped.early_stop['text']} (validation split)"
    assert verify(stopped.path)["valid"]
    compared = edgefl.compare([stopped.path])
    assert compared["stopped"] == [f"{compared['rows'][0]['label']}: {facts['stopped']}"]
    # a run of as many rounds that follows nothing has the same weights, and ends there
    plain = edgefl.run(scenario(tiny, rounds=len(rounds)), out=tmp_path / "plain")
    assert_equal_tensors(plain.weights(), stopped.weights())
    assert "stopped" not in plain.result and "watched" not in plain.rounds and plain.best is None
    with pytest.raises(RunError, match="has no best weights"):
        plain.weights("best")
    # and the best weights are those of a run that ends with the round of the best value
    at_best = edgefl.run(scenario(tiny, rounds=stopped.best["round"]), out=tmp_path / "best")
    assert stopped.best["value"] == max(values)
    assert_equal_tensors(at_best.weights(), stopped.weights("best"))
    assert_equal_tensors(at_best.model("image").state_dict(), stopped.model("image", which="best").state_dict())


@pytest.mark.slow(smaller="test_the_best_weights_count_from_their_checkpoint_on")
def test_a_resumed_run_ends_with_the_same_round_and_the_same_best_weights(stopped: Run, tmp_path: Path) -> None:
    whole = (stopped.path / "best.safetensors").read_bytes()
    for round in range(1, len(stopped.rounds) + 1):
        copy = tmp_path / str(round)
        shutil.copytree(stopped.path, copy)
        (copy / "result.json").unlink()
        for later in range(round + 1, len(stopped.rounds) + 1):
            shutil.rmtree(copy / "checkpoints" / f"round-{later:06d}")
        if round < stopped.best["round"]:
            # as if killed between the best weights and their checkpoint
            (copy / "best.safetensors").rename(copy / "best-next.safetensors")
            with pytest.warns(RuntimeWarning, match=f"doesn't hold the best weights of round {round}"):
                again = edgefl.run(resume=copy)
        else:
            again = edgefl.run(resume=copy)
        assert again.result == stopped.result and again.records("rounds") == stopped.records("rounds")
        assert (copy / "best.safetensors").read_bytes() == whole
        assert not [*copy.glob("best-next*")]
    assert edgefl.run(resume=stopped.path).result == stopped.result


def write_best(folder: Path, round: int) -> None:
    facts = BestRecord(round=round, metric="m", value=0.5)
    best.write(folder, {"image/w": torch.full((2,), float(round))}, facts)


def ranked_rounds(folder: Path) -> dict[str, int | None]:
    return {path.name: best.round_of(path) for path in sorted(folder.iterdir())}


def test_the_best_weights_count_from_their_checkpoint_on(tmp_path: Path) -> None:
    write_best(tmp_path, 1)
    best.settle(tmp_path, 1)
    write_best(tmp_path, 3)  # killed before the checkpoint of round 3: its checkpoint counts round 1
    best.rewind(tmp_path, 1)
    assert ranked_rounds(tmp_path) == {"best.safetensors": 1}
    write_best(tmp_path, 4)  # killed after the checkpoint, before the file took its place
    best.rewind(tmp_path, 4)
    assert ranked_rounds(tmp_path) == {"best.safetensors": 4}
    with pytest.warns(RuntimeWarning, match=r"best\.safetensors doesn't hold the best weights of round 9"):
        best.rewind(tmp_path, 9)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow(smaller="test_when_a_run_ends")
def test_runs_of_a_comparison_end_each_by_itself(
    tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from edgefl.commands.run.table import print_summary

    both = scenario(
        tiny, rounds=3, stop={"metric": "image.accuracy", "target": 0.2}, compare={"training.lr": [1e-9, 3e-3]}
    )
    run = edgefl.run(both, out=tmp_path / "run")
    lengths = {label: len(member.rounds) for label, member in run.runs.items()}
    slow, fast = lengths
    assert lengths[slow] == 3 > lengths[fast] and run.runs[slow].early_stop is None
    assert "reached 0.2" in run.runs[fast].early_stop["text"]
    print_summary(summary(run))
    told = " ".join(capsys.readouterr().out.split())
    assert f"{run.runs[fast].early_stop['text']} (validation split)" in told
    best = run.runs[fast].best
    assert f"best weights: round {best.round}, image accuracy {best.value:.4g} (validation split)" in told
    compared = edgefl.compare([tmp_path / "run"])
    assert [row["rounds"] for part in compared["equal"] for row in part["rows"]]
    assert len(compared["stopped"]) == 1 and verify(run.path)["valid"]
    page = tmp_path / "page.html"
    edgefl.report(run.runs[fast].path, out=page)
    assert f"This run {run.runs[fast].early_stop['text']} (validation split)." in page.read_text(encoding="utf-8")
    edgefl.report(run.path, out=page)


def test_a_scenario_with_a_stop_is_read_back(tiny: Tiny) -> None:
    given = load(scenario(tiny, stop={"metric": "image.accuracy", "patience": 3, "after": 2}))
    assert load(given.to_data()).stop == given.stop == StopOptions(metric="image.accuracy", patience=3, after=2)
