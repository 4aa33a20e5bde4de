"""The page of edgefl report: whole, without a network, and usable in a browser.

In Chromium, where there is one: no error, no request, every figure drawn, in light and dark, on a phone, by keyboard.
"""

from __future__ import annotations

import html
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from drawn_bench import drawn_bench
from visited_page import VisitedPage

import edgefl
from edgefl.commands.bench.suite_folder import write_bench_page
from edgefl.drawing.charts import charts_of, charts_of_comparison, groups_of, records_of
from edgefl.errors import RunError
from edgefl.runs import Run


@pytest.fixture
def compared(compared_runs: Run) -> Run:
    return compared_runs


def figures_in(page: str) -> list[str]:
    return re.findall(r'data-figure="([^"]+)"', page)


def test_the_page_is_one_file_with_one_script_and_every_figure(compared: Run) -> None:
    path = Path(edgefl.report(compared).file)
    assert path == compared.path / "report.html" and path.stat().st_size < 6_000_000
    page = path.read_text(encoding="utf-8")
    assert page.count("plotly.js v") == 1
    outside = re.sub(r"<script[^>]*>.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r'(?:src|href)="(?!#|data:)', outside)
    records = {label: records_of(run, label) for label, run in compared.runs.items()}
    wanted = [chart.name for chart in charts_of_comparison(groups_of(compared, list(records.values())))]
    for label, run in compared.runs.items():
        wanted += [chart.name for chart in charts_of(run, records[label]) if chart.name != "fleet"]
    assert sorted(figures_in(page)) == sorted(wanted)
    figures = re.findall(r"<figure [^>]*data-figure=.*?</figure>", page, flags=re.DOTALL)
    assert [(each.count("<figcaption>"), each.count("<table>")) for each in figures] == [(1, 1)] * len(wanted)
    assert page.count('id="explore"') == 1  # all runs' fleets
    for label in compared.runs:
        assert f">{label}</option>" in page


def test_the_page_says_how_clients_were_selected(tiny: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    scenario = tiny(training={"mode": "none"}, round={"cohort": 2, "selection": {"name": "oort", "proxy": "samples"}})
    page = Path(edgefl.report(edgefl.run(scenario, out=tmp_path / "run")).file).read_text(encoding="utf-8")
    words = " ".join(re.sub(r"<[^>]+>", " ", page).split())
    assert "name: oort" in words and "proxy: samples" in words


def test_an_unfinished_run_says_so_and_one_without_training_too(
    layerwise_run: Run, tiny: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    shutil.copytree(layerwise_run.path, tmp_path / "half")
    (tmp_path / "half" / "result.json").unlink()
    rounds = tmp_path / "half" / "rounds.jsonl"
    rounds.write_bytes(b"".join(rounds.read_bytes().splitlines(keepends=True)[:2]))
    page = Path(edgefl.report(tmp_path / "half", tmp_path / "half.html").file).read_text(encoding="utf-8")
    assert "This run isn't finished: 2 rounds are recorded." in html.unescape(page) and "--resume" in page
    for table in ("rounds", "clients", "eligibility"):
        (tmp_path / "half" / f"{table}.jsonl").write_bytes(b"")
    page = Path(edgefl.report(tmp_path / "half", tmp_path / "none.html").file).read_text(encoding="utf-8")
    assert "no round is recorded yet" in page and not figures_in(page)

    run = edgefl.run(tiny(training="none"), out=tmp_path / "simulated")
    page = Path(edgefl.report(run).file).read_text(encoding="utf-8")
    assert "simulates costs without training" in page and {"costs", "timeline"} <= set(figures_in(page))
    assert page.count('id="explore"') == 1 and "fleet" not in figures_in(page)


def test_names_of_a_foreign_run_are_text(layerwise_run: Run, tmp_path: Path) -> None:
    shutil.copytree(layerwise_run.path, tmp_path / "run")
    bad = """"</script><script>alert('x')</script>"""
    scenario = tmp_path / "run" / "scenario.yaml"
    scenario.write_text(
        re.sub(r"^name: .*$", f"name: '{bad.replace(chr(39), chr(39) * 2)}'", scenario.read_text(), flags=re.M)
    )
    for table in ("clients", "eligibility"):
        path = tmp_path / "run" / f"{table}.jsonl"
        records = [{**json.loads(line), "device": bad} for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    page = Path(edgefl.report(tmp_path / "run").file).read_text(encoding="utf-8")
    assert "alert(" in page and "<script>alert" not in page
    assert page.count("</script>") == page.count("<script") == 3


def test_a_page_that_cannot_be_written_is_told(layerwise_run: Run, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"its name ends in \.pdf"):
        edgefl.report(layerwise_run, tmp_path / "r.pdf")
    with pytest.raises(RunError, match="the folder .*gone doesn't exist"):
        edgefl.report(layerwise_run, tmp_path / "gone" / "r.html")


# --- in a browser ----------------------------------------------------------------------------------------------------


class Visit(VisitedPage):
    """A report, and its figures."""

    wait = 300_000  # plotly's

    def __init__(self, browser: Any, path: Path, width: int, scheme: str):
        super().__init__(browser, path, width, scheme)
        self.ready(scheme)

    def ready(self, theme: str) -> None:
        self.page.wait_for_selector(f'html[data-ready="{theme}"]')

    def undrawn(self) -> list[str]:
        """Figures that are shown and have a plot without a drawing."""
        script = """() => [...document.querySelectorAll('.plot')]
            .filter((div) => div.offsetParent && !(div.querySelector('.main-svg')?.getBoundingClientRect().height > 50))
            .map((div) => div.closest('figure').dataset.figure)"""
        found: list[str] = self.page.evaluate(script)
        return found

    def check(self) -> None:
        """As of any page; nothing but the file alone was asked for, and all that is shown is drawn."""
        super().check()
        assert {url for url in self.asked if not url.startswith(("data:", "blob:"))} == {self.url}
        assert not self.undrawn()


@pytest.mark.slow(smaller="test_the_page_is_one_file_with_one_script_and_every_figure")
def test_in_a_browser_every_figure_is_drawn_without_a_network(compared: Run, browser: Any, tmp_path: Path) -> None:
    path = Path(edgefl.report(compared, tmp_path / "r.html").file)
    visit = Visit(browser, path, 1280, "light")
    visit.check()
    page = visit.page
    # each run of the comparison, and each metric, is drawn when it is chosen
    labels = page.locator("#choose-run option").all_inner_texts()
    assert labels == list(compared.runs)
    for label in labels[1:]:
        page.select_option("#choose-run", label=label)
        visit.ready("light")
        visit.check()
        assert page.locator("figure[data-figure=eligible]:visible").count() == 1
    metrics = page.locator("#choose-compared option").all_inner_texts()
    assert "image: accuracy" in metrics
    page.select_option("#choose-compared", label="image: accuracy")
    visit.ready("light")
    visit.check()
    assert page.locator('figure[data-figure="metric-image-accuracy"]').is_visible()
    # a series is hidden and shown by its button
    first = page.locator('figure[data-figure="metric-image-accuracy"]')
    assert first.locator(".plot").first.evaluate("(div) => div.data.filter((t) => t.visible !== false).length") >= 2
    first.locator(".legend button").first.click()
    assert first.locator(".legend button").first.get_attribute("aria-pressed") == "false"
    hidden = first.locator(".plot").first.evaluate("(div) => div.data.filter((t) => t.visible === false).length")
    assert hidden == 2  # the line, and the mark of the final evaluation apart from it
    visit.context.close()


@pytest.mark.slow(smaller="test_the_page_is_one_file_with_one_script_and_every_figure")
def test_in_a_browser_a_bench_shows_its_staircase_first(browser: Any, tmp_path: Path) -> None:
    write_bench_page(drawn_bench(), tmp_path / "bench.html")
    visit = Visit(browser, tmp_path / "bench.html", 1280, "dark")
    visit.check()
    first = visit.page.locator("figure").first
    assert first.get_attribute("data-figure") == "staircase"
    box = first.locator(".plot").first.bounding_box()
    assert box is not None and box["y"] + box["height"] < 900  # within the window, without scrolling
    # its lines have names beside them; in the figure of all a button hides a line, the thick one over it, and the marks
    assert not first.locator(".legend").count()
    every = visit.page.locator("figure[data-figure=staircase-of-all]")
    every.locator(".legend button").nth(1).click()
    hidden = "(div) => div.data.filter((trace) => trace.visible === false).map((trace) => trace.mode)"
    assert every.locator(".plot").first.evaluate(hidden) == ["lines", "lines", "markers"]
    visit.context.close()


@pytest.mark.slow(smaller="test_keys_move_sliders_and_go_from_client_to_client")
def test_in_a_browser_it_is_dark_narrow_and_driven_by_keys(compared: Run, browser: Any, tmp_path: Path) -> None:
    run = next(iter(compared.runs.values()))
    path = Path(edgefl.report(run, tmp_path / "r.html").file)
    visit = Visit(browser, path, 390, "dark")
    visit.check()
    page = visit.page
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "theme"
    page.keyboard.press("Enter")
    visit.ready("light")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark
    visit.check()
    # the table under a figure opens by key, and has a heading for each column
    summary = page.locator('figure[data-figure="eligible"] summary')
    summary.focus()
    page.keyboard.press("Enter")
    table = page.locator('figure[data-figure="eligible"] table')
    assert table.is_visible()
    assert table.locator("th[scope=col]").count() == table.locator("tbody tr").first.locator("td").count()
    assert table.locator("tbody tr").count() == 3
    assert page.locator(".plot:not([role=img][aria-label])").count() == 0
    visit.check()
    visit.context.close()
