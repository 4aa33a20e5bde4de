"""``tools/papers.py train``: the rows of a published table as runs, and their scores beside the printed ones."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import miniatures
import pytest
import yaml

import edgefl
from edgefl.cells.needs import written_metrics
from edgefl.errors import DataError, RunError, ScenarioError, UnknownName
from edgefl.records.metrics import metric_value
from edgefl.results.facts import facts_of
from edgefl.scenario import load
from edgefl.scenario.overrides import LeftOut
from edgefl.scenario.scenario import with_fields
from edgefl.setup.compose import compose, federation_of
from tools.paper_tables.answer import ScoredTable
from tools.paper_tables.dry_runs import declare
from tools.paper_tables.printed import print_scores
from tools.paper_tables.published_tables import PrintedPaper, published_tables, table_of
from tools.paper_tables.training_tables import data_below, other_sizes, scenarios_of, train_table
from tools.papers import main

SMALL: dict[str, Any] = {
    "edgefl": 1,
    "name": "small",
    "data": {
        "source": "glyphs",
        "clients": {"image": 3},
        "samples": 8,
        "validation": 20,
        "test": 30,
        "partition": "iid",
    },
    "model": {"image": {"tower": "vit", "blocks": 1, "width": 16, "heads": 2, "patch": 8}},
    "method": {"name": "fedprox", "mu": 0.1},
    "schedule": {"rounds": 1},
    "round": {"cohort": 2},
    "evaluation": {"split": "test"},
    "executor": "inline",
}
"""Three clients with eight pictures each."""


@pytest.fixture
def paper(tmp_path: Path) -> PrintedPaper:
    """A paper with one table, in the form of those of published/."""
    base = tmp_path / "small.yaml"
    base.write_text(yaml.safe_dump(SMALL))
    rows: dict[str, Any] = {
        "prox": {"printed": [50.0, 40.0]},
        "avg": {"set": {"method": "fedavg"}},
        "again": {"set": {"method.mu": 0.1}, "printed": [20.0, 30.0]},
        "seed": {"set": {"seed": 7}, "printed": [1.0, 2.0]},
        "never": {"left": "its data are lost"},
    }
    table = {
        "title": "Two methods", "where": "Table 1", "base": str(base), "rows": rows,
        "metrics": {"images": "image.accuracy", "mean": "mean.accuracy"},
        "assumed": ["one seed"], "code": ["one round"], "slips": ["a sum"], "then": "edgefl report {row}",
    }  # fmt: skip
    facts = {"rounds": {"value": 1, "what": "rounds", "where": "setting"}}
    sets = {"glyphs": {"train": 9870, "test": 30, "image": {}}}
    return PrintedPaper.model_validate(
        {"paper": "Small", "cite": "Nobody 2024", "facts": facts, "sets": sets, "tables": {"small-t1": table}}
    )


@pytest.fixture
def trained(paper: PrintedPaper, tmp_path: Path) -> ScoredTable:
    return train_table("small-t1", ["prox", "avg", "again"], out=tmp_path / "runs", paper=paper)


def test_rows_are_single_runs_with_their_scores_beside_the_printed_ones(trained: ScoredTable, tmp_path: Path) -> None:
    prox, avg, again = trained.rows
    alone = edgefl.run(SMALL | {"method": "fedavg"}, out=tmp_path / "alone")
    assert (Path(avg.folder) / "rounds.jsonl").read_bytes() == (alone.path / "rounds.jsonl").read_bytes()
    accuracy = metric_value(facts_of(alone).metrics, "image.accuracy")
    assert accuracy is not None and [cell.own for cell in avg.cells] == [100 * accuracy] * 2
    assert avg.cells[0].published is None and avg.cells[0].difference is None
    own = edgefl.read_run(prox.folder).records("rounds")[-1]["metrics"]["image"]["accuracy"]
    assert [cell.difference for cell in prox.cells] == [100 * own - 50, 100 * own - 40]
    # the row with the same scenario shares the run
    assert again.folder == prox.folder and [cell.difference for cell in again.cells] == [100 * own - 20, 100 * own - 30]
    assert sorted(path.name for path in (tmp_path / "runs" / "small-t1").iterdir()) == ["avg", "prox"]
    assert trained.exit_code == 0 and trained.then[1] == f"edgefl report {avg.folder}"


def test_a_row_says_that_its_data_have_another_size_than_the_papers(
    trained: ScoredTable, capsys: pytest.CaptureFixture[str]
) -> None:
    pictures = sum(1 for row in trained.rows if "pictures of glyphs)" in row.label)
    assert pictures == 3
    assert edgefl.read_run(trained.rows[0].folder).scenario["name"] == trained.rows[0].label
    print_scores(trained)
    shown = capsys.readouterr().out
    for text in ("[A] one seed", "[code] one round", "slip: a sum", "left out: never: its data are lost", "Table 1"):
        assert text in shown
    assert trained.left == {"never": "its data are lost"}


def test_a_repeated_call_trains_what_is_not_trained_yet(
    trained: ScoredTable, paper: PrintedPaper, tmp_path: Path
) -> None:
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("rounds.jsonl")}
    again = train_table("small-t1", out=tmp_path / "runs", paper=paper)
    assert [row.row for row in again.rows] == ["prox", "avg", "again", "seed"] and again.rows[:3] == trained.rows
    assert all(path.stat().st_mtime_ns == time for path, time in times.items()) and len(times) == 2
    assert edgefl.read_run(again.rows[3].folder).scenario["seed"] == 7


def test_a_row_whose_scenario_changed_is_refused_with_the_field(
    trained: ScoredTable, paper: PrintedPaper, tmp_path: Path
) -> None:
    with pytest.raises(RunError, match=r"avg: the run avg .* was begun with another scenario: training.lr: .* -> 0.5"):
        train_table("small-t1", ["avg"], out=tmp_path / "runs", overrides=["training.lr=0.5"], paper=paper)
    # where results don't depend on it
    same = train_table("small-t1", ["avg"], out=tmp_path / "runs", overrides=["executor.timeout=900"], paper=paper)
    assert same.rows[0] == trained.rows[1]


def test_a_row_that_diverges_leaves_the_others(
    paper: PrintedPaper, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wild = {"training.lr": 1e30, "training.optimizer": "sgd", "schedule.rounds": 3}
    table = paper.tables["small-t1"]
    rows = {"wild": table.rows["prox"].model_copy(update={"set": wild}), "avg": table.rows["avg"]}
    changed = paper.model_copy(update={"tables": {"small-t1": table.model_copy(update={"rows": rows})}})
    result = train_table("small-t1", out=tmp_path / "runs", paper=changed)
    assert "diverged in round 1" in str(result.rows[0].failed) and result.exit_code == 1
    assert [cell.own for cell in result.rows[0].cells] == [None, None] and result.rows[0].cells[0].published == 50
    assert result.rows[1].failed is None and result.rows[1].cells[0].own is not None
    print_scores(result)
    assert "wild: the model diverged in round 1" in capsys.readouterr().out


def test_what_cannot_be_trained_is_told_before_anything_is_written(paper: PrintedPaper, tmp_path: Path) -> None:
    def call(*rows: str, **more: Any) -> None:
        train_table("small-t1", rows, out=tmp_path / "runs", paper=paper, **more)

    with pytest.raises(UnknownName, match="did you mean 'again'"):
        call("agian")
    with pytest.raises(RunError, match="never can't be run: its data are lost"):
        call("never")
    with pytest.raises(RunError, match="nowhere isn't a folder"):
        call(data=tmp_path / "nowhere")
    with pytest.raises(ScenarioError, match="trainin"):
        call(overrides=["trainin.lr=1"])
    with pytest.raises(UnknownName, match="did you mean 'fedcola-t1'"):
        train_table("fedcola-1", out=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_missing_files_are_told_with_place_and_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EDGEFL_DATA", raising=False)
    with pytest.raises(DataError) as told:
        train_table("mcfl-t1", ["none"], data=tmp_path, out=tmp_path / "runs")
    assert f"{tmp_path}/cifar100" in str(told.value) and "153,700,000 bytes" in str(told.value)
    assert f"{tmp_path}/ag-news" in str(told.value)
    with data_below(tmp_path):
        assert os.environ["EDGEFL_DATA"] == str(tmp_path)
    assert "EDGEFL_DATA" not in os.environ


def test_the_command_lists_tables_and_tells_mistakes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in published_tables())
    with pytest.raises(SystemExit) as left:
        main(["train", "fedcola-t2", "--rows", "complementry"])
    assert left.value.code == 2 and "did you mean 'complementary'" in capsys.readouterr().err


RUNNABLE = [name for name, (_, table) in published_tables().items() if table.runnable]
WITH_METRICS = {
    (table.base, *table.metrics.values()): name
    for name, (_, table) in published_tables().items()
    # answers that only the server learns can't be declared: tests/methods/representations/test_server_task.py
    if "method.server_task" not in table.changes(table.runnable[-1])
}
"""A table of each base with these metrics."""


@pytest.mark.parametrize("name", RUNNABLE)
def test_every_row_is_a_scenario_that_takes_all_that_the_row_sets(name: str) -> None:
    _, table = table_of(name)
    with warnings.catch_warnings():
        warnings.simplefilter("error", LeftOut)
        rows = scenarios_of(table)
    assert [row.name for row in rows] == table.runnable
    base = load(table.base).to_yaml()
    changed = [row.scenario.to_yaml() != base for row in rows if table.changes(row.name)]
    assert all(changed)


@pytest.mark.parametrize("name", WITH_METRICS.values())
def test_the_cells_of_a_table_are_metrics_that_its_rows_have(name: str) -> None:
    paper, table = table_of(name)
    declared = declare(scenarios_of(table, table.runnable[-1:])[0].scenario, paper.sets)
    # more than a fold of retrieval's thousand; declared answers are classes, where VQA's have a score each
    setup = compose(with_fields(declared, {"data.test": 1001, "training.mode": "none"}), trains=False)
    written = written_metrics(setup, declared.evaluation.final)
    assert {metric.replace("soft_score", "accuracy") for metric in table.metrics.values()} <= set(written)


def test_sizes_of_sets_are_told_in_the_papers_units(tmp_path: Path) -> None:
    """Pictures of a set with captions, samples of others, and pairs of sets that are joined."""
    miniatures.cifar100(tmp_path / "cifar100", 300, 12, classes=10)
    miniatures.ag_news(tmp_path / "ag-news", 1000)
    miniatures.flickr(tmp_path / "flickr30k", 40, test=8)
    miniatures.coco(tmp_path / "coco", train=20, val=4)

    def found(table: str, row: str) -> dict[str, tuple[int, int, str]]:
        paper, printed = table_of(table)
        small = ["data.size=16", "data.vocabulary=60", *(["data.public=4"] if table == "creamfl-t1" else [])]
        with data_below(tmp_path):
            (each,) = scenarios_of(printed, [row], small)
            return {name: tuple(of) for name, *of in other_sizes(paper.sets, federation_of(each.scenario, str))}  # type: ignore[misc]

    own = {"cifar100": (300, 50_000, "pictures"), "ag-news": (1000, 120_000, "texts")}
    assert found("fedcola-t2", "none") == own | {"flickr30k": (40, 10_000, "pictures")}
    dealt = found("creamfl-t1", "fedavg")
    assert own.items() <= dealt.items() and dealt["flickr30k + coco-50k"][1:] == (31_000 * 5 + 50_000, "pairs")
    assert dealt["flickr30k + coco-50k"][0] == 40 * 5 + 4 * 5


def test_rows_with_the_same_scenario_share_a_run() -> None:
    same = {row.name: row.same for row in scenarios_of(table_of("pmcmfl-f5")[1])}
    assert same["ignore-clients-3"] == same["ignore-epochs-3"] == same["ignore-rounds-20"] == "ignore-rounds-20"
    assert same["ignore-clients-5"] == "ignore-clients-5"
