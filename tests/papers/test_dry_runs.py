"""``tools/papers.py train --dry``: missing files, costs on declared data, and hours from measured steps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import edgefl
from edgefl.scenario import load
from edgefl.scenario.scenario import with_fields
from tools.paper_tables.answer import DryTable
from tools.paper_tables.dry_runs import TESTED, Speeds, declare, dry_table, measure_hours, samples_tested
from tools.paper_tables.printed import print_dry_run
from tools.paper_tables.published_tables import published, published_tables, table_of
from tools.paper_tables.training_tables import scenarios_of
from tools.papers import main

ROUND = "forward_flops", "backward_flops"


@pytest.fixture(scope="module")
def dry(tmp_path_factory: pytest.TempPathFactory) -> DryTable:
    return dry_table("mcfl-t1", ["none", "attention"], data=tmp_path_factory.mktemp("empty"))


def test_files_that_are_not_there_are_told_with_place_and_size(dry: DryTable) -> None:
    found = {(file.source, file.file): file for file in dry.missing}
    pictures = found["cifar100", "train.bin"]
    assert pictures.size_bytes == 153_700_000 and pictures.holds == "50,000 pictures"
    assert Path(pictures.folder).name == "cifar100" and ("ag-news", "train.csv") in found


def test_a_row_costs_what_profile_says_of_the_same_declared_data(dry: DryTable) -> None:
    """MCFL's data by hand: 50,000 pictures and 120,000 texts, over four clients each."""
    data = {
        "source": "declared", "clients": {"image": 4, "text": 4}, "samples": {"image": 12500, "text": 30000},
        "shapes": {"image": {"size": 224, "classes": 100}, "text": {"vocabulary": 30522, "classes": 4}},
    }  # fmt: skip
    fields = {"data": data, **table_of("mcfl-t1")[1].rows["attention"].set}
    answer = edgefl.profile(with_fields(load("papers/mcfl-cifar100-agnews"), fields), clients=True)
    rounds = sum(each.rounds for each in answer.round_totals)
    row = next(row for row in dry.rows if row.row == "attention")
    assert row.rounds == rounds == 50 and row.why is None

    def mean(*names: str) -> float:
        return sum(each.rounds * getattr(each, name) for each in answer.round_totals for name in names) / rounds

    assert row.flops == mean(*ROUND) and row.upload_bytes == mean("upload_bytes")
    assert row.download_bytes == mean("download_bytes") and (row.clients, row.eligible) == (8, 8)
    assert row.core_hours is None and dry.core_hours is None and not dry.measured


def test_declared_data_have_the_papers_sizes() -> None:
    (row,) = scenarios_of(table_of("fedcola-t2")[1], ["none"])
    sets = published("fedcola").sets
    declared = declare(row.scenario, sets).data
    # Flickr10k: 10,000 pictures with five captions, of 8 clients
    assert declared.samples == {"image": 50_000 // 12, "text": 10_000, "image-text": 6250}
    assert declared.shapes is not None and (declared.shapes.image.size, declared.shapes.image.classes) == (224, 100)
    assert declared.shapes.text.vocabulary == 30_522 and declared.test == TESTED
    assert samples_tested(row.scenario, sets) == {"image": 10_000, "text": 7600, "image-text": 25_000}
    # a caption of each picture in an epoch
    (row,) = scenarios_of(table_of("fedmml-t4")[1], ["lw"])
    assert declare(row.scenario, published("fedmml").sets).data.samples == {"image-text": 11_828}
    # of 64,000 questions of 30 clients a quarter lacks both and is dropped, and a third of the rest has both
    (row,) = scenarios_of(table_of("pmcmfl-t1")[1], ["pmcmfl-50"])
    lacking = declare(row.scenario, published("pmcmfl").sets).data
    assert lacking.samples == {"image-text": int(2133 * 0.75)}
    assert lacking.missing_of("image-text") == {
        "patterns": {each: pytest.approx(1 / 3) for each in ("image-text", "image", "text")}
    }
    # 100 public pictures with five captions
    (row,) = scenarios_of(table_of("mcfl-t4")[1], ["4-creamfl"])
    assert declare(row.scenario, published("mcfl").sets).data.public == 500


def test_hours_are_flops_at_the_rate_of_measured_steps(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["data.size=32", "schedule.rounds=2", "evaluation.every=1"]
    towers = {"image": "vit, patch: 8", "text": "transformer, tokens: 8"}
    small += [f"model.{name}={{tower: {of}, blocks: 1, width: 16, heads: 2}}" for name, of in towers.items()]
    speeds = Speeds()
    found = dry_table("mcfl-t1", ["none"], overrides=small, speeds=speeds)
    (row,) = found.rows
    assert {each.kind for each in found.measured} == {"image", "text"} and row.core_hours == found.core_hours
    (scenario,) = (each.scenario for each in scenarios_of(table_of("mcfl-t1")[1], ["none"], small))
    answer = edgefl.profile(declare(scenario, published("mcfl").sets))
    rate = {each.kind: each.flops / each.processor_seconds for each in found.measured}
    seconds = sum(
        each.rounds * sum(getattr(each.by_kind[kind], name) for name in ROUND) / rate[kind]
        for each in answer.round_totals for kind in rate
    )  # fmt: skip
    seconds += sum(
        2 * sum(getattr(each, name) for name in ROUND) * {"image": 10_000, "text": 7600}[each.kind] / TESTED
        / rate[each.kind]
        for each in answer.server_rows if each.evaluates
    )  # fmt: skip
    assert row.core_hours == pytest.approx(seconds / 3600, rel=1e-6)
    print_dry_run(found)
    shown = capsys.readouterr().out
    assert "core hours in all" in shown and "1 of 4 samples" in shown and "8 of 8" in shown and "cifar100" in shown
    known = dict(speeds.measured)
    assert dry_table("mcfl-t1", ["none"], overrides=small, speeds=speeds).core_hours == row.core_hours
    assert speeds.measured == known  # nothing is measured again


def test_a_row_that_cannot_be_priced_says_why() -> None:
    (row,) = dry_table("mcfl-t1", ["none"], overrides=["data.size=null"]).rows
    assert row.why is not None and "set data.size" in row.why and row.flops is None
    (row,) = dry_table("mcfl-t1", ["none"], overrides=["data.source.image=mnist-5k"]).rows
    assert row.why == "the size of mnist-5k isn't in the paper's file"


def test_the_command_refuses_hours_of_one_table(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "mcfl-t1", "--hours", "hours.json"])
    assert "leave out TABLE" in capsys.readouterr().err


SHORT = [f"model.{tower}.blocks=1" for tower in ("image", "text")]
PRICED = {
    "fedcola-t2": ("none", *SHORT), "mcfl-t1": ("none", *SHORT), "mcfl-t4-medical": ("4-fedavg", *SHORT),
    "fedmml-t4": ("fedmml", "model.text.blocks=1"), "fedmml-t6": ("fedmml", "model.audio.blocks=1"),
    "creamfl-t3": (
        "gca", "method.model.image.layers=18", "method.model.text.blocks=1", "model.text.tokens=8",
        "method.model.text.tokens=8",
    ),
    "pmcmfl-f3": ("random", "model.multiway.blocks=1"),
}  # fmt: skip
"""A row of a table of each base, those that are priced quickest, with fewer blocks, each of which takes its time."""


@pytest.mark.parametrize("name", PRICED)
def test_a_row_of_each_base_is_priced(name: str) -> None:
    row, *smaller = PRICED[name]
    (priced,) = dry_table(name, [row], overrides=smaller).rows
    assert priced.why is None and priced.flops and priced.upload_bytes, priced.why


def test_rows_are_priced_of_each_base() -> None:
    bases = {table.base for _, table in published_tables().values()}
    assert {table_of(name)[1].base for name in PRICED} == bases


@pytest.mark.slow(smaller="test_a_row_of_each_base_is_priced")
@pytest.mark.parametrize("name", [name for name, (_, table) in published_tables().items() if table.runnable])
def test_every_row_is_priced_or_says_why(name: str) -> None:
    for row in dry_table(name).rows:
        assert (row.why is None) != (row.flops is None)
        assert row.why is None or "declared" in row.why, (row.row, row.why)


@pytest.mark.slow(smaller="test_a_row_of_each_base_is_priced")
def test_a_table_that_the_file_of_hours_lacks_is_added_with_the_rates_that_it_has(tmp_path: Path) -> None:
    kept = Path(__file__).parents[2] / "docs" / "evidence" / "figures" / "papers.json"
    whole = json.loads(kept.read_text(encoding="utf-8"))
    assert whole["tables"].keys() == published_tables().keys()
    file, name = tmp_path / "hours.json", "mcfl-t6"  # a single row, of models that other tables have too
    lacking = {key: value for key, value in whole["tables"].items() if key != name}
    file.write_text(json.dumps(whole | {"tables": lacking}), encoding="utf-8")
    assert measure_hours(file).tables[name].core_hours == whole["tables"][name]["core_hours"]
    again = json.loads(file.read_text(encoding="utf-8"))
    assert (again["tables"], again["models"]) == (whole["tables"], whole["models"])
