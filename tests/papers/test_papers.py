"""``tools/papers.py``: what is said of a table, what is written, and which folders and names it takes."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from edgefl.errors import RunError, UnknownName
from tools.paper_tables import making, pmcmfl
from tools.paper_tables.making import PAGES
from tools.paper_tables.page_tables import (
    Committed,
    CopiedCell,
    PageTable,
    alike,
    committed_tables,
    differences,
    pages_folder,
    plain,
)
from tools.papers import main

OF_PAGES = ("items", "open-questions", "orderings")
"""Pages that tools/pages.py makes."""
BY_HAND = {"lw-fedmml": 1, "pmcmfl": 1}
"""Tables that are a summary in words, or small sums of a page's own rows."""


def committed(name: str) -> list[Committed]:
    return committed_tables((pages_folder() / f"{name}.md").read_text(encoding="utf-8"))


# --- pages -----------------------------------------------------------------------------------------------------------


def test_every_page_is_listed_with_its_tables_and_figures() -> None:
    assert {path.stem for path in pages_folder().glob("*.md")} == {*PAGES, *OF_PAGES, "README"}
    for name, page in PAGES.items():
        text = (pages_folder() / f"{name}.md").read_text(encoding="utf-8")
        assert len(committed(name)) == page.tables + BY_HAND.get(name, 0)
        assert text.count("\n![") == page.figures


@pytest.mark.parametrize("name", PAGES)
def test_a_table_is_written_as_the_page_has_it(name: str) -> None:
    lines = (pages_folder() / f"{name}.md").read_text(encoding="utf-8").splitlines()
    for table in committed(name):
        written = PageTable(table.heading, "t", table.header, table.rows).markdown().splitlines()
        there = lines[table.line - 1 :][: len(written)]
        assert (written[0], written[2:]) == (there[0], there[2:])
        assert set(there[1]) <= set("| -")


def test_tables_in_fenced_code_are_no_tables() -> None:
    text = "## A\n\n```text\n| a |\n| - |\n```\n\n| b | c |\n| --- | --- |\n| 1 | |\n"
    assert committed_tables(text) == [Committed("A", 8, ("b", "c"), (("1", ""),))]


def test_csv_has_the_digits_without_marks_of_thousands() -> None:
    table = PageTable(
        "", "t", ("", "1,024"), (("**model** (224,369,206 parameters)", "30,522.10"), ("0, 0, 10", "a, b"))
    )
    rows = list(csv.reader(io.StringIO(table.csv())))
    assert rows == [["", "1024"], ["model (224369206 parameters)", "30522.10"], ["0, 0, 10", "a, b"]]
    assert plain("90, all at once") == "90, all at once"


# --- differences -----------------------------------------------------------------------------------------------------

OLD = Committed("", 1, ("kind", "MiB"), (("image", "1,309.6"), ("text", "427.0")))


def test_a_cell_that_changed_is_named_by_row_and_column() -> None:
    now = PageTable("", "peaks", OLD.header, (("image", "1,309.6"), ("text", "427.1")))
    assert [each.to_data() for each in differences(now, OLD)] == [
        {"row": "text", "column": "MiB", "committed": "427.0", "now": "427.1"}
    ]
    assert making.compare_table(now, OLD, "")["status"] == "differs"
    assert making.compare_table(PageTable("", "peaks", OLD.header, OLD.rows), OLD, "")["status"] == "equal"


def test_a_row_or_a_column_of_one_side_only_is_a_difference() -> None:
    fewer = PageTable("", "peaks", OLD.header, OLD.rows[:1])
    assert [(d["row"], d["committed"], d["now"]) for d in differences(fewer, OLD)] == [
        ("text", "text", None),
        ("text", "427.0", None),
    ]
    wider = PageTable("", "peaks", (*OLD.header, "new"), tuple((*row, "1") for row in OLD.rows))
    assert [(d["row"], d["column"], d["now"]) for d in differences(wider, OLD)] == [
        ("header", "new", "new"),
        ("image", "new", "1"),
        ("text", "new", "1"),
    ]


def test_tables_of_one_title_are_paired_in_their_order() -> None:
    other = Committed("", 9, ("kind", "GB"), (("image", "1"),))
    first, second = PageTable("", "a", OLD.header, OLD.rows), PageTable("", "b", other.header, other.rows)
    assert list(making.pair_tables([first, second], [OLD, other])) == [(first, OLD), (second, other)]
    assert list(making.pair_tables([second], [OLD, other])) == [(None, OLD), (second, other)]
    assert list(making.pair_tables([first], [])) == [(first, None)]


def test_rows_that_a_page_joins_show_every_value_where_they_differ() -> None:
    assert alike(["1.0", "1.0"]) == "1.0"
    assert alike(["1.0", "1.1", "1.0"]) == "1.0 / 1.1"


def test_what_is_copied_is_said() -> None:
    table = PageTable(
        "", "t", ("option", "published", "edgefl"), (("a", CopiedCell(1.5), "1.5"), ("b", CopiedCell(2), "2"))
    )
    assert making.copied_cells_note(table) == 'Published figures, copied: column "published".'
    rows = PageTable("", "t", ("", "x", "y"), (("published", CopiedCell(1), CopiedCell(2)), ("ours", "1", "2")))
    assert making.copied_cells_note(rows) == 'Published figures, copied: row "published".'
    assert making.compare_table(rows, None, "")["published"][0].to_data() == {"row": "published", "column": "x"}


# --- tables that need no prediction ----------------------------------------------------------------------------------


@pytest.mark.slow(smaller="test_its_baselines_send_less_or_more")
def test_what_pmcmfls_baselines_send_is_as_committed() -> None:
    old = {table.header: table for table in committed("pmcmfl")}
    for made in (pmcmfl.baselines(), pmcmfl.shares()):
        assert list(differences(made, old[made.header])) == []


# --- the command -----------------------------------------------------------------------------------------------------


def test_an_unknown_page_is_told_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="did you mean 'pmcmfl'"):
        making.papers(["pmcmf"], out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(RunError, match=r"already holds files \(thesis.tex, ...\); choose another folder"):
        making.papers(["pmcmfl"], out=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(RunError, match="is a file"):
        making.papers(["pmcmfl"], out=tmp_path / "thesis.tex")
    with pytest.raises(RunError, match="can't write .*: Not a directory"):
        making.papers(["pmcmfl"], out=tmp_path / "thesis.tex" / "out")


@pytest.mark.parametrize("content", ["{", "[]", '{"pages": []}'])
def test_a_file_of_the_results_name_that_is_no_result_is_left_alone(tmp_path: Path, content: str) -> None:
    (tmp_path / "papers.json").write_text(content)
    with pytest.raises(RunError, match="isn't a result of tools/papers.py"):
        making.papers(["pmcmfl"], out=tmp_path)
    assert (tmp_path / "papers.json").read_text() == content


def called(*arguments: str) -> int:
    try:
        return main(list(arguments))
    except SystemExit as end:
        return int(end.code or 0)


def test_without_a_name_the_pages_are_listed(capsys: Any) -> None:
    assert called() == 0
    lines = capsys.readouterr().out
    assert all(name in lines for name in PAGES)
    assert called("--as", "json") == 0
    assert [page["page"] for page in json.loads(capsys.readouterr().out)["pages"]] == list(PAGES)


def test_names_and_all_pages_together_are_refused(tmp_path: Path, capsys: Any) -> None:
    assert called("pmcmfl", "--all") == 2
    assert called("pmcmf", "-o", str(tmp_path / "other")) == 2
    assert "did you mean 'pmcmfl'" in capsys.readouterr().err


# --- whole pages -----------------------------------------------------------------------------------------------------


@pytest.mark.slow(smaller="test_a_cell_that_changed_is_named_by_row_and_column")
@pytest.mark.parametrize("name", PAGES)
def test_a_page_made_again_is_as_committed(name: str, tmp_path: Path) -> None:
    result = making.papers([name], out=tmp_path)
    (page,) = result["pages"]
    assert result["equal"], list(making.all_differences(result))
    made = [table for table in page["tables"] if table["reason"] != "written by hand"]
    assert result["counts"]["not regenerated"] == BY_HAND.get(name, 0) and page["error"] is None
    assert len(made) == PAGES[name].tables
    for table in made:
        with (tmp_path / name / f"{table['table']}.csv").open(newline="") as file:
            assert len(list(csv.reader(file))) == len(table["rows"]) + 1
        assert table["heading"] in (tmp_path / name / "tables.md").read_text(encoding="utf-8")
    assert all(Path(figure["file"]).stat().st_size > 10_000 for figure in page["figures"])
    assert len(page["figures"]) == PAGES[name].figures


@pytest.mark.slow(smaller="test_a_cell_that_changed_is_named_by_row_and_column")
def test_a_page_that_says_something_else_is_told_cell_by_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    for path in pages_folder().iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    page = tmp_path / "fedcola-colayer.md"
    page.write_text(page.read_text(encoding="utf-8").replace("| 316.98 | 316.98 |", "| 316.98 | 317.98 |"))
    monkeypatch.setattr(making, "pages_folder", lambda: tmp_path)
    assert called("fedcola-colayer", "-o", str(tmp_path / "out")) == 1
    line = "fedcola-colayer  downloads  mlp  edgefl, MiB     317.98  316.98"
    assert line in capsys.readouterr().out
    lines = (tmp_path / "out/differences.csv").read_text().splitlines()
    assert lines[1:] == ['fedcola-colayer,downloads,mlp,"edgefl, MiB",317.98,316.98']
