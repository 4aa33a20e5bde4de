"""Every table of the papers trains on miniatures of its data sets, with towers of two narrow blocks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import small_tables

import edgefl
from edgefl.data import open_federation
from edgefl.errors import DataError
from edgefl.scenario import load
from tools.paper_tables.published_tables import PrintedPaper, published_tables, table_of
from tools.paper_tables.training_tables import data_below, scenarios_of, train_table

Trained = set[tuple[str, ...]]
"""Scenarios that were trained, each with the metrics that were looked at."""
BASES = {
    "mcfl-t1": "none",
    "mcfl-t4-medical": "4-fedavg",
    "fedcola-t4": "fedcola",
    "creamfl-t3": "mean",
    "fedmml-t4": "fedmml",
    "fedmml-t6": "fedmml",
    "pmcmfl-t1": "pmcmfl-10",
}
"""A row of each base."""
MOST = 400.0
"""The largest score in per cent, a sum of four recalls."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("sets")
    small_tables.write_sets(root)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGEFL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield root


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights")
    small_tables.write_weights(folder)
    return folder


@pytest.fixture(scope="module")
def trained() -> Trained:
    return set()


@pytest.mark.slow(smaller="test_a_row_of_each_base_is_valid_with_its_data")
@pytest.mark.parametrize("name", published_tables())
def test_every_row_of_a_table_trains_and_has_its_scores(
    name: str, folders: Path, weights: Path, trained: Trained, tmp_path: Path
) -> None:
    """Rows that are those of a table before but for their size are not trained again."""
    paper = small_tables.small_paper(table_of(name)[0], name, weights)
    metrics = tuple(paper.tables[name].metrics)
    rows = []
    for row in scenarios_of(paper.tables[name]):
        key = (replace(row.scenario, name="").to_yaml(), *metrics)
        rows += [row.name] * (key not in trained)
        trained.add(key)
    if not rows:
        return
    answer = train_table(name, rows, data=folders, out=tmp_path, paper=paper)
    assert [row.row for row in answer.rows] == rows
    for row in answer.rows:
        assert not row.failed, row
        for cell in row.cells:
            assert cell.own is not None and math.isfinite(cell.own) and 0 <= cell.own <= MOST, row
            assert (cell.difference is None) == (cell.published is None)


def one_row(name: str) -> PrintedPaper:
    """The paper with one small row of this table alone."""
    paper, table = table_of(name)
    table = table.model_copy(update={"rows": {BASES[name]: table.rows[BASES[name]]}})
    return small_tables.small_paper(paper.model_copy(update={"tables": {name: table}}), name)


@pytest.mark.parametrize("name", BASES)
def test_a_row_of_each_base_is_valid_with_its_data(name: str, folders: Path) -> None:
    (row,) = scenarios_of(one_row(name).tables[name])
    with data_below(folders):
        edgefl.validate(row.scenario)


def test_every_base_has_its_row() -> None:
    assert {table_of(name)[1].base for name in BASES} == {table.base for _, table in published_tables().values()}


def test_a_row_trains_and_has_its_scores(folders: Path, tmp_path: Path) -> None:
    (row,) = train_table("mcfl-t1", data=folders, out=tmp_path, paper=one_row("mcfl-t1")).rows
    image, text, mean = (cell.own for cell in row.cells)
    assert image is not None and text is not None and mean == pytest.approx((image + text) / 2)


def test_a_small_row_keeps_what_it_is_about() -> None:
    paper = small_tables.small_paper(table_of("fedmml-t8")[0], "fedmml-t8")
    rows = {row.name: row.scenario for row in scenarios_of(paper.tables["fedmml-t8"])}
    assert [rows[f"lw-{n}"].round.cohort for n in (30, 20, 10)] == [7, 5, 2]
    assert rows["lw-10"].schedule_options.allocation == [0, 0, 0, 1, 1, 1]


def test_clients_of_three_kinds_hold_samples_of_three_folders(folders: Path, tmp_path: Path) -> None:
    (row,) = scenarios_of(one_row("fedcola-t4").tables["fedcola-t4"])
    with data_below(folders):
        made = open_federation(row.scenario.data, seed=1, tokens=12, cache=tmp_path)
    assert made.facts["image"] | made.facts["text"] == {
        "channels": 3, "size": 16, "vocabulary": 60, "tokens": 12, "classes": made.facts["text"]["classes"],
    }  # fmt: skip
    assert made.server_samples["test"] == {"image": 20, "text": 20, "image-text": 40}
    kinds = [made.kinds[kind] for kind in made.client_kind]
    assert kinds == ["image"] * 12 + ["text"] * 12 + ["image-text"] * 8
    assert made.client_samples.tolist() == [6] * 32


def test_without_its_data_a_setting_says_where_it_looked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EDGEFL_DATA", raising=False)
    with pytest.raises(DataError, match=f"cifar100 is read .* tried {tmp_path}/data/cifar100 .EDGEFL_DATA is not set"):
        open_federation(load("papers/fedcola-flickr30k").data, seed=1, tokens=40, cache=tmp_path / "cache")
