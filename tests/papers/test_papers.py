"""``tools/papers.py``: what is said of a table, what is written, and which folders and names it takes."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from edgefl.commands.compare.answer import Ordering, OrderingClaim, OrderingFigure, OrderingRow
from edgefl.errors import RunError, UnknownName
from tools.paper_tables import making, orderings, pmcmfl
from tools.paper_tables.making import PAGES
from tools.paper_tables.page_tables import (
    Committed,
    CopiedCell,
    PageTable,
    Tolerance,
    alike,
    committed_tables,
    differences,
    numbers,
    pages_folder,
    plain,
)
from tools.papers import main

BY_HAND = {"orderings": 1, "lw-fedmml": 1, "pmcmfl": 1}
"""Tables that are a summary in words, or small sums of a page's own rows."""


def committed(name: str) -> list[Committed]:
    return committed_tables((pages_folder() / f"{name}.md").read_text(encoding="utf-8"))


# --- pages -----------------------------------------------------------------------------------------------------------


def test_every_page_is_listed_with_its_tables_and_figures() -> None:
    assert {path.stem for path in pages_folder().glob("*.md")} == {*PAGES, "README", "items"}
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
        {"row": "text", "column": "MiB", "committed": "427.0", "now": "427.1", "within_tolerance": False}
    ]
    assert making.compare_table(now, OLD, "")["status"] == "differs"


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


@pytest.mark.parametrize(
    ("was", "now", "near"),
    [
        ("427.0", "431.0", True),  # 1 % of 427 is 4.27
        ("427.0", "431.3", False),
        ("+0.025 ± 0.014", "+0.025 ± 0.0141", True),
        ("+0.025 ± 0.014", "-0.025 ± 0.014", False),
        ("2 of 3", "3 of 3", False),
        ("holds", "reversed", False),
        ("6,692.3", "6,692.3 MiB", False),
    ],
)
def test_a_tolerance_is_of_numbers_and_words_must_be_equal(was: str, now: str, near: bool) -> None:
    assert Tolerance("why", relative=0.01).holds(was, now) == near


def test_a_table_within_its_tolerance_says_so() -> None:
    now = PageTable(
        "", "peaks", OLD.header, (OLD.rows[0], ("text", "427.1")), tolerance=Tolerance("why", relative=0.01)
    )
    found = making.compare_table(now, OLD, "")
    assert (found["status"], found["tolerance"]) == ("within tolerance", "within 1 % (why)")
    assert making.compare_table(PageTable("", "peaks", OLD.header, OLD.rows), OLD, "")["status"] == "equal"


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


def test_an_ordering_is_shown_as_the_page_has_it() -> None:
    """Values by hand: means .030 and .040, a gap of .010 with the deviation of (.02, .01, .00)."""
    figures = {m: OrderingFigure(mean=0.03, deviation=0.01) for m in ("image-text.r@10", "image.accuracy")}
    claim = OrderingClaim(
        worse="mean", better="gca", metric="image-text.r@10", gap=0.01, gap_deviation=0.01, low=-0.01484,
        high=0.03484, detectable=0.03097, seeds_needed=10, ahead=2, seeds=3, verdict="no ordering",
    )  # fmt: skip
    row = OrderingRow(label="mean", figures=figures)
    ordering = Ordering(
        title="", seeds=[1, 2, 3], metrics=list(figures), rows=[row], claims=[claim], not_run=[]
    )  # fmt: skip
    means, claims = orderings.tables_of(orderings.SECTIONS[3], ordering)
    assert means.header == ("variant", "r@10", "image.accuracy")
    assert means.rows == (("mean", "0.030 ± 0.010", "0.030 ± 0.010"),)
    figures_of_claim = ("+0.010 ± 0.010", "-0.015 to +0.035", "0.031", "2 of 3", "10", "no ordering")
    assert claims.rows == (("mean < gca", "r@10", *figures_of_claim),)
    (_, old) = (table for table in committed("orderings") if table.heading == means.heading)
    assert claims.header == old.header


def test_what_follows_from_a_gap_may_differ_in_numbers_but_not_in_words() -> None:
    header = ("claimed", "metric", "gap", "seeds for 80 %")
    made = PageTable("", "t", header, (("a < b", "m", "+0.010 ± 0.010", "10"),), 2, orderings.TRAINED, orderings.FOLLOW)
    for gap, needed, near in [
        ("+0.012 ± 0.006", "5", [True, True]),
        ("+0.010 ± 0.010", "> 10,000", [False]),
        ("+0.050 ± 0.010", "10", [False]),
    ]:
        old = Committed("", 1, header, (("a < b", "m", gap, needed),))
        assert [each.within_tolerance for each in differences(made, old)] == near


def test_intervals_and_seeds_on_the_page_of_orderings_follow_from_its_gaps() -> None:
    """By scipy's distributions from the rounded gap and deviation, as far as these say."""
    claims = [table for table in committed("orderings") if "gap" in table.header]
    assert len(claims) == len(orderings.SECTIONS)
    for table in claims:
        for row in table.rows:
            cells = dict(zip(table.header, row, strict=True))
            (gap, deviation), (ahead, n) = numbers(cells["gap"]), map(int, numbers(cells["seeds"]))
            reach, power = stats.t.ppf((0.975, 0.8), n - 1) / np.sqrt(n)
            assert numbers(cells["95 % interval"]) == pytest.approx(
                [gap - reach * deviation, gap + reach * deviation], abs=0.0025
            )
            assert numbers(cells["detectable"]) == pytest.approx([(reach + power) * deviation], abs=0.0025)
            needed = numbers(cells["seeds for 80 %"])
            low, high = (_needed(abs(gap) + d, deviation - d) for d in (0.0005, -0.0005))
            assert low <= needed[0] <= high if needed else abs(gap) < 0.0005, row
            least, most = (abs(gap) - d - reach * (deviation + d) for d in (0.0005, -0.0005))
            if least > 0 or most < 0:
                assert cells["verdict"] == ("no ordering" if most < 0 else "holds" if gap > 0 else "reversed"), row
            assert ahead in {"holds": {n}, "reversed": {0}}.get(cells["verdict"], range(n + 1)), row


def test_the_page_of_orderings_counts_what_is_out_of_reach() -> None:
    rows = [row for table in committed("orderings") if "gap" in table.header for row in table.rows]
    needed = [(numbers(row[6]) or [10_000])[0] for row in rows if row[7] == "no ordering"]
    text = " ".join((pages_folder() / "orderings.md").read_text(encoding="utf-8").split())
    counts = [sum(low <= n < high for n in needed) for low, high in ((0, 11), (11, 30), (30, 100), (100, 1e9))]
    assert f"Of {len(rows)} claims" in text
    few, some, many, most = counts
    assert f"{len(needed)} claims show no ordering. Of these {few} need at most 10 seeds, {some} need 11 to 29," in text
    assert f"{many} need 30 to 99, and {most} need 100 or more" in text


def _needed(gap: float, deviation: float) -> float:
    """The fewest seeds by trying each number; 10,000 for more, and for no gap."""
    n = np.arange(2, 10_000)
    enough = (stats.t.ppf(0.975, n - 1) + stats.t.ppf(0.8, n - 1)) * deviation / np.sqrt(n) <= gap
    return n[enough.argmax()] if enough.any() else 10_000


def test_every_section_of_orderings_is_made() -> None:
    found = [table.heading for table in committed("orderings")[1:]]
    assert found == [section.heading for section in orderings.SECTIONS for _ in range(2)]


# --- the command -----------------------------------------------------------------------------------------------------


def test_what_needs_training_is_left_out_and_says_how_long_it_takes(tmp_path: Path) -> None:
    result = making.papers(["orderings"], out=tmp_path / "out")
    assert result["counts"]["not regenerated"] == 17 and result["equal"]
    assert {table["reason"] for table in result["pages"][0]["tables"]} == {"needs about 1 h of training: --train"}
    assert json.loads((tmp_path / "out/papers.json").read_text()) == result.to_data()
    assert (tmp_path / "out/differences.csv").read_text().startswith("page,table,row,column,committed,now")
    again = making.papers(["orderings"], out=tmp_path / "out")  # its own folder is taken again
    assert again["counts"] == result["counts"]


def test_an_unknown_page_is_told_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="did you mean 'pmcmfl'"):
        making.papers(["pmcmf"], out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(RunError, match=r"already holds files \(thesis.tex, ...\); choose another folder"):
        making.papers(["orderings"], out=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(RunError, match="is a file"):
        making.papers(["orderings"], out=tmp_path / "thesis.tex")
    with pytest.raises(RunError, match="can't write .*: Not a directory"):
        making.papers(["orderings"], out=tmp_path / "thesis.tex" / "out")


@pytest.mark.parametrize("content", ["{", "[]", '{"pages": []}'])
def test_a_file_of_the_results_name_that_is_no_result_is_left_alone(tmp_path: Path, content: str) -> None:
    (tmp_path / "papers.json").write_text(content)
    with pytest.raises(RunError, match="isn't a result of tools/papers.py"):
        making.papers(["orderings"], out=tmp_path)
    assert (tmp_path / "papers.json").read_text() == content


def called(*arguments: str) -> int:
    try:
        return main(list(arguments))
    except SystemExit as end:
        return int(end.code or 0)


def test_without_a_name_the_pages_are_listed(capsys: Any) -> None:
    assert called() == 0
    lines = capsys.readouterr().out
    assert all(name in lines for name in PAGES) and "1 h (--train)" in lines
    assert called("--as", "json") == 0
    assert [page["page"] for page in json.loads(capsys.readouterr().out)["pages"]] == list(PAGES)


def test_the_command_prints_what_was_left_out(tmp_path: Path, capsys: Any) -> None:
    assert called("orderings", "-o", str(tmp_path / "out")) == 0
    out = capsys.readouterr().out
    assert "not regenerated, 17 tables: needs about 1 h of training: --train" in out
    assert out.endswith(f"Tables: 0 equal, 17 not regenerated.\nFiles: {tmp_path / 'out'}\n")
    assert called("orderings", "--all") == 2
    assert called("orderigns", "-o", str(tmp_path / "other")) == 2
    assert "did you mean 'orderings'" in capsys.readouterr().err


# --- whole pages -----------------------------------------------------------------------------------------------------


@pytest.mark.slow(smaller="test_a_table_within_its_tolerance_says_so")
@pytest.mark.parametrize("name", [name for name, page in PAGES.items() if not page.training_hours])
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
    assert lines[1:] == ['fedcola-colayer,downloads,mlp,"edgefl, MiB",317.98,316.98,False']


TINY = (
    "schedule.rounds=1", "training.batch=8", "training.epochs=1", "data.samples=8", "data.validation=20",
    "data.test=20", "data.public=20", "model.image.blocks=1", "model.text.blocks=1",
)  # fmt: skip


@pytest.mark.slow(smaller="test_an_ordering_is_shown_as_the_page_has_it")
def test_orderings_are_trained_and_read_again(tmp_path: Path) -> None:
    section = orderings.SECTIONS[3]  # CreamFL: two variants
    means, claims = orderings.trained_tables(tmp_path, sections=[section], overrides=TINY)
    assert [row[0] for row in means.rows] == ["mean", "gca"] and means.header == ("variant", "r@1_both", "r@10")
    assert [row[:2] for row in claims.rows] == [("mean < gca", "r@1_both"), ("mean < gca", "r@10")]
    assert all(row[5].endswith("of 3") for row in claims.rows)
    files = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("rounds.jsonl")}
    assert len(files) == 6
    assert orderings.trained_tables(tmp_path, sections=[section], overrides=TINY) == [means, claims]
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("rounds.jsonl")} == files
    with pytest.raises(RunError, match="holds the run of another scenario"):
        orderings.trained_tables(tmp_path, sections=[section], overrides=[*TINY, "training.lr=0.5"])
