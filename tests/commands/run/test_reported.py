"""The score that a run reports where that isn't the one of its last round (``evaluation.reported``)."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

import edgefl
from edgefl.console import main
from edgefl.errors import ScenarioError
from edgefl.records.metrics import Metrics, best_metrics
from edgefl.results.facts import facts_of
from edgefl.runs import Run, read_run
from edgefl.scenario import load

SMALL = {
    "name": "small",
    "data": {"source": "glyphs", "clients": {"image": 2}, "samples": 16, "validation": 20, "test": 60, "size": 16},
    "model": {"image": {"blocks": 1, "width": 8, "heads": 1}},
    "schedule": {"rounds": 5},
    "training": {"batch": 8, "lr": 0.02},
    "round": {"cohort": 1.0},
    "executor": "inline",
    "evaluation": {"split": "test"},
}
BEST = {"split": "test", "reported": {"rule": "best", "last": 4}}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two equal runs, of which one reports the best of its last four rounds of five."""
    rows = {"last": {}, "best": {"evaluation.reported": BEST["reported"]}}
    return edgefl.run({**SMALL, "compare": {"rows": rows}}, out=tmp_path_factory.mktemp("reported") / "both")


def by_hand(run: Run) -> dict[str, float]:
    """The largest score of each name in the last four lines of the run's ``rounds.jsonl``."""
    lines = [json.loads(line) for line in (run.path / "rounds.jsonl").read_text().splitlines()]
    scores = [line["metrics"]["image"] for line in lines[1:]]
    assert len(scores) == 4 and all(each["round"] == i + 1 for i, each in enumerate(lines))
    return {name: sorted(each[name] for each in scores)[-1] for name in scores[0]}


def test_the_best_of_the_last_rounds_is_the_score_of_the_run(runs: Run, tmp_path: Path) -> None:
    last, best = runs.runs["last"], runs.runs["best"]
    assert (last.path / "rounds.jsonl").read_bytes() == (best.path / "rounds.jsonl").read_bytes()
    expected, final = by_hand(best), last.records("rounds")[-1]["metrics"]["image"]
    assert expected != final, "the last round is the best in everything, so that this test says nothing"
    assert last.result.metrics == {"image": final} and best.result.metrics == {"image": expected}
    assert facts_of(best).metrics == {"image": expected}
    compared = edgefl.compare([best])
    figures = compared.rows[0].figures
    assert figures["image.accuracy"].values == [expected["accuracy"]]
    assert compared.reported == "best of the last 4 rounds, chosen on the test split"
    edgefl.export(runs, "csv", tmp_path)
    with (tmp_path / "runs.csv").open() as file:
        exported = {row["run"]: row for row in csv.DictReader(file)}
    assert float(exported["best"]["metrics.image.accuracy"]) == expected["accuracy"]
    assert {label: row["metrics_best_of_last_rounds"] for label, row in exported.items()} == {"last": "", "best": "4.0"}


def test_tables_say_which_score_is_reported(
    runs: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    for words in (["run", "--resume"], ["compare"]):
        with pytest.raises(SystemExit):
            main([*words, str(runs.path)])
    text = capsys.readouterr().out
    assert "Metrics: best of the last 4 rounds, chosen on the test split, after round 5 (chance level" in text
    assert "Metrics: test split, after round 5 (chance level" in text
    assert "Scores: test split, last evaluation or best of the last 4 rounds, chosen on the test split." in text
    assert "metrics: test split, last evaluation or best of the last 4 rounds, chosen on the test split; costs" in text


def test_an_unfinished_run_has_the_score_of_its_last_evaluation(runs: Run, tmp_path: Path) -> None:
    class Interrupted(Exception):
        pass

    def interrupt(event: str, facts: Any) -> None:
        if event == "record" and facts["round"] == 3:
            raise Interrupted

    with pytest.raises(Interrupted):
        edgefl.run({**SMALL, "evaluation": BEST}, out=tmp_path / "run", on_progress=interrupt)
    begun = facts_of(read_run(tmp_path / "run"))
    assert begun.metrics == runs.runs["best"].records("rounds")[begun.rounds - 1]["metrics"]
    assert begun.score_words == "test split"
    assert edgefl.run(resume=tmp_path / "run").result == runs.runs["best"].result


def test_lower_is_better_for_some_and_what_diverged_is_never_the_best() -> None:
    rounds: list[Metrics] = [
        {"text": {"perplexity": 9.0, "token_accuracy": 0.2}, "image": {"accuracy": None}},
        {"text": {"perplexity": None, "token_accuracy": 0.5}, "image": {"accuracy": None}},
        {},
        {"text": {"perplexity": 8.0, "token_accuracy": 0.4}, "image": {"accuracy": None}},
    ]
    assert best_metrics(rounds) == {
        "text": {"perplexity": 8.0, "token_accuracy": 0.5}, "image": {"accuracy": None}
    }  # fmt: skip


@pytest.mark.parametrize(
    ("evaluation", "says"),
    [
        ({"reported": {"rule": "best", "last": 6}}, "last: the last 6 rounds are more than the 5 of the schedule"),
        ({"every": 5}, "evaluation.every: leaves one evaluation in the last 4 rounds, so none is the best"),
        ({"every": 9}, "evaluation.every: leaves one evaluation in the last 4 rounds, so none is the best"),
        ({"split": "validation"}, "the last round is scored on test, those before it on validation; write .*: test"),
        ({"reported": {"rule": "bets"}}, "evaluation.reported.rule: .*best"),
        ({"reported": {"last": 1}}, "evaluation.reported.last: .*2"),
    ],
)
def test_what_has_no_best_is_refused(evaluation: dict[str, Any], says: str) -> None:
    with pytest.raises(ScenarioError, match=says):
        load({**SMALL, "evaluation": {**BEST, **evaluation}})
    assert load({**SMALL, "evaluation": {**BEST, "every": 2}}).evaluation.reported is not None
