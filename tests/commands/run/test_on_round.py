"""``on_round`` may end a run early: it is then finished, and says why, as a run that a metric ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import edgefl
from edgefl.console import main
from edgefl.errors import RunError
from edgefl.records.rounds import EarlyStop as StoppedEarly
from edgefl.results.verify import verify

Tiny = Callable[..., dict[str, Any]]
REASON = StoppedEarly(
    round=2, metric=None, value=None, reason="on_round", text="stopped after round 2: on_round asked for it"
)


class Stopped(Exception):
    """Raised to interrupt a run."""


def stop_after(round: int) -> Callable[[Mapping[str, Any]], str | None]:
    return lambda record: "stop" if record["round"] == round else None


@pytest.fixture
def scenario(tiny: Tiny) -> dict[str, Any]:
    data = {"source": "glyphs", "clients": {"image": 3}, "samples": 20, "validation": 20, "test": 20}
    return tiny(
        data=data,
        model={"image": {"blocks": 1, "width": 16, "heads": 2}},
        schedule={"name": "end-to-end", "rounds": 4},
        evaluation={"every": 3, "split": "validation", "final": "test"},
    )


def records(run: edgefl.runs.Run) -> bytes:
    return b"".join((run.path / f"{table}.jsonl").read_bytes() for table in ("clients", "rounds"))


def test_a_stopped_run_is_finished_with_the_model_of_a_schedule_that_ends_there(
    scenario: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[dict[str, Any]] = []

    def on_round(record: Any) -> str | None:
        seen.append(record.to_data())
        record.losses.clear()  # it is a copy
        return "stop" if len(seen) == 2 else None

    run = edgefl.run(scenario, out=tmp_path / "stopped", on_round=on_round)
    short = edgefl.run({**scenario, "schedule": {"name": "end-to-end", "rounds": 2}}, out=tmp_path / "short")
    assert run.is_finished and run.early_stop == REASON and not short.early_stop
    assert (run.path / "weights.safetensors").read_bytes() == (short.path / "weights.safetensors").read_bytes()
    mine, its = run.records("rounds"), short.records("rounds")
    assert len(mine) == 2 and mine[0] == its[0] == seen[0]  # a round that ends nothing is as without on_round
    # round 2 isn't one that is evaluated: it is because it is the last one, on the split of last rounds
    assert seen[1]["metrics"] == {} and mine[1]["metrics"] == its[1]["metrics"] != {}
    assert {**mine[1], "stopped": None} == {**its[1], "stopped": None} and mine[1]["stopped"] == REASON.to_data()
    assert verify(run.path)["valid"]
    assert edgefl.compare([run.path])["stopped"] == [f"fedavg, end-to-end: {REASON['text']}"]
    before = records(run)
    with pytest.raises(SystemExit) as ended:
        main(["run", "--resume", str(run.path)])
    assert ended.value.code == 0
    assert REASON["text"] in capsys.readouterr().out and records(run) == before
    assert REASON["text"] in Path(edgefl.report(run.path).file).read_text()


def test_both_splits_are_evaluated_where_the_round_was_evaluated_anyway(
    scenario: dict[str, Any], tmp_path: Path
) -> None:
    scenario["evaluation"]["every"] = 1
    run = edgefl.run(scenario, out=tmp_path / "run", on_round=stop_after(2))
    first, last = run.records("rounds")
    assert [work["when"] for work in first["server_works"]] == ["evaluate validation"]
    assert [work["when"] for work in last["server_works"]] == ["evaluate validation", "evaluate test"]
    assert run.result["metrics"] == last["metrics"] and verify(run.path)["valid"]


def test_an_interrupted_run_is_stopped_where_the_whole_one_is(scenario: dict[str, Any], tmp_path: Path) -> None:
    def interrupt(event: str, facts: Mapping[str, Any]) -> None:
        if event == "record" and facts["round"] == 2:
            raise Stopped

    whole = edgefl.run(scenario, out=tmp_path / "whole", on_round=stop_after(3))
    with pytest.raises(Stopped):
        edgefl.run(scenario, out=tmp_path / "cut", on_progress=interrupt, on_round=stop_after(3))
    rest = edgefl.run(resume=tmp_path / "cut", on_round=stop_after(3))
    assert rest.early_stop["round"] == 3 and rest.result == whole.result and records(rest) == records(whole)


@pytest.mark.usefixtures("with_pictures")
def test_a_stop_is_in_the_checkpoint(scenario: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is interrupted after its last checkpoint only has to be finished."""

    def interrupt(run: Any) -> None:
        raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr("edgefl.cells.run_scenario.draw_curves", interrupt)
        with pytest.raises(Stopped):
            edgefl.run(scenario, out=tmp_path / "run", on_round=stop_after(2))
    assert not edgefl.read_run(tmp_path / "run").is_finished
    heard: list[str] = []
    run = edgefl.run(resume=tmp_path / "run", on_progress=lambda event, facts: heard.append(event))
    assert run.is_finished and run.early_stop == REASON and "round" not in heard and len(run.records("rounds")) == 2


def test_clients_may_be_under_way(scenario: dict[str, Any], tmp_path: Path) -> None:
    buffered = {"policy": "buffered", "buffer": 2, "cohort": 1.0}
    untrained = {**scenario, "round": buffered, "training": {"mode": "none", "batch": 8}}
    run = edgefl.run(untrained, out=tmp_path / "run", on_round=stop_after(2))
    assert run.early_stop == REASON and run.records("rounds")[-1]["under_way"] > 0 and verify(run.path)["valid"]


def test_each_run_of_a_comparison_ends_by_itself(scenario: dict[str, Any], tmp_path: Path) -> None:
    compared = {**scenario, "compare": {"training.lr": [0.01, 0.001]}}
    answers = iter([None, "stop", "stop"])
    run = edgefl.run(compared, out=tmp_path / "run", on_round=lambda record: next(answers))
    assert [member.early_stop["round"] for member in run.runs.values()] == [2, 1] and run.is_finished


def test_a_run_that_has_played_all_its_rounds_isnt_stopped(scenario: dict[str, Any], tmp_path: Path) -> None:
    run = edgefl.run(scenario, out=tmp_path / "run", on_round=stop_after(4))
    assert run.is_finished and run.early_stop is None and "stopped" not in run.records("rounds")[-1]


@pytest.mark.parametrize("answer", [True, "halt", ["stop"]])
def test_another_answer_is_refused(scenario: dict[str, Any], tmp_path: Path, answer: Any) -> None:
    untrained = {**scenario, "training": {"mode": "none", "batch": 8}}
    with pytest.raises(RunError, match=r"on_round returned .* after round 1; it may return None, or \"stop\""):
        edgefl.run(untrained, out=tmp_path / "run", on_round=lambda record: answer)


def test_rounds_of_other_processes_are_refused(scenario: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(
        RunError, match="on_round is called in this process, but jobs and address play rounds in others"
    ):
        edgefl.run(scenario, out=tmp_path / "run", jobs=2, on_round=stop_after(1))
    assert not (tmp_path / "run").exists()
