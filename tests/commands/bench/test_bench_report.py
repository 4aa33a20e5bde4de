"""What shows an answer of ``edgefl bench``: its numbers are those of the record, and foreign names are text."""

from __future__ import annotations

import csv
import html
import io
import json
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import plotly.graph_objects as go
import pytest
from drawn_bench import MIB, NEEDS, drawn_bench
from hostile_names import TEXT, harmful

from edgefl.commands.bench.answer import BenchAnswer
from edgefl.commands.bench.chart import charts_of_bench, staircase, step_corners
from edgefl.commands.bench.suite_folder import write_bench_page
from edgefl.commands.bench.table import answer, bench_csv, interval, median_cost, print_bench, sections
from edgefl.commands.bench.winners import best_beyond_chance
from edgefl.drawing.charts.chart import Chart, Panel, Series
from edgefl.drawing.charts.palette import RUNS
from edgefl.drawing.figures import draw_figure
from edgefl.drawing.page.traces import traces
from edgefl.drawing.text_tables import Screen
from edgefl.results.paired import Winner, winner_of


@pytest.fixture(scope="module")
def memory() -> BenchAnswer:
    return drawn_bench(names=("end-to-end", "layer-wise", "progressive"), shares=(1.0, 0.3), seeds=4)


def printed(result: BenchAnswer, width: int = 120) -> str:
    screen = Screen(file=io.StringIO(), width=width, color_system=None, highlight=False, emoji=False, markup=False)
    print_bench(result, screen)
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue()


def test_the_csv_has_a_line_for_each_fleet_variant_and_seed_with_the_records_numbers(memory: BenchAnswer) -> None:
    lines = list(csv.DictReader(io.StringIO(bench_csv(memory))))
    assert len(lines) == len(memory.fleets) * 3 * 4
    costs = {(cost.fleet, cost.variant): cost for cost in memory.costs or ()}
    wanted = iter(lines)
    for fleet in memory.fleets:
        for row in fleet.rows:
            for index, seed in enumerate(memory.seeds):
                line = next(wanted)
                assert (line["fleet"], line["variant"], line["seed"]) == (fleet.fleet, row.variant, str(seed))
                assert float(line["low"]) == fleet.low and float(line["small_share"]) == fleet.small_share
                assert line["high"] == ("" if fleet.high is None else str(fleet.high))
                score = row.scores[index]
                assert line["score"] == ("" if score is None else str(score))
                assert line["run"] == (row.runs[index] or "")
                cost = costs.get((fleet.fleet, row.variant))
                spent = cost and cost.bytes[index]
                assert line["bytes_to_target"] == ("" if spent is None else str(spent))


def test_each_interval_has_its_winner_or_its_tie_and_the_score_of_the_best(memory: BenchAnswer) -> None:
    table = next(iter(sections(memory))).table
    assert table is not None
    cells = list(zip(*(column.cells for column in table.columns), strict=True))
    fleets = [fleet for fleet in memory.fleets if fleet.small_share == 1]
    assert [row[0] for row in cells] == ["below 6.1 MiB", "6.1 to 7.4 MiB", "7.4 to 17.2 MiB", "17.2 MiB and more"]
    assert cells[0][1:] == ("nobody can train", "-", "-", "-")
    for row, fleet in list(zip(cells, fleets, strict=True))[1:]:
        best = max(fleet.rows, key=lambda each: each.mean or 0.0)
        assert row[2] == f"{best.mean:.3f} ± {best.half_width:.3f}"
        if fleet.winner is None:
            assert row[1] == f"tie: {', '.join(fleet.tied)}" and fleet.tied[0] == best.variant
        else:
            assert row[1] == best.variant
        gaps = (fleet.gap, fleet.detectable)
        assert row[3:] == tuple("-" if gap is None else f"{gap:.3f}" for gap in gaps)


def test_the_answer_counts_the_fleets_and_joins_neighbours_with_one_winner(memory: BenchAnswer) -> None:
    fleets = [
        replace(fleet, winner="layer-wise" if i in (1, 2) else None, tied=["end-to-end"] if i > 2 else [])
        for i, fleet in enumerate(memory.fleets)
    ]
    first, small, few = answer(replace(memory, fleets=fleets))
    assert first == "8 fleets: best is layer-wise on 2; these seeds show no best on 5; nobody can train on 1."
    assert small == "Where all devices are small, the best by their memory is layer-wise (6.1 to 17.2 MiB)."
    assert few == "Where 30 % of the devices are small, no variant is shown to be best."


def test_where_none_is_better_than_chance_the_answer_says_so(memory: BenchAnswer) -> None:
    fleets = [replace(fleet, winner=None, tied=[], gap=None, detectable=None) for fleet in memory.fleets]
    result = replace(memory, fleets=fleets)
    assert answer(result)[0] == "8 fleets: none is better than chance on 7; nobody can train on 1."
    table = next(iter(sections(result))).table
    assert list(table.columns[1].cells) == ["nobody can train", "none is better than chance"]


@pytest.mark.parametrize("higher", [True, False])
def test_a_variant_at_chance_level_is_never_best(higher: bool) -> None:
    sign = 1.0 if higher else -1.0
    good, fair, wild, flat = (
        [sign * score for score in scores]
        for scores in ([0.30, 0.31, 0.32], [0.20, 0.21, 0.19], [0.9, 0.01, 0.02], [0.1, 0.1, 0.1])
    )
    best = best_beyond_chance({"good": good, "flat": flat}, sign * 0.1, higher=higher)
    assert best == winner_of({"good": good, "flat": flat}, higher=higher) and best.name == "good"
    assert winner_of({"flat": flat}, higher=higher).name == "flat"
    assert best_beyond_chance({"flat": flat}, sign * 0.1, higher=higher) == Winner(None)
    assert best_beyond_chance({"flat": flat}, None, higher=higher).name == "flat"
    tie = winner_of({"wild": wild, "fair": fair}, higher=higher)
    assert tie.tied == ("wild", "fair")  # the best mean is of one lucky seed
    assert best_beyond_chance({"wild": wild, "fair": fair}, sign * 0.1, higher=higher) == Winner(None, ("fair",))
    tie = best_beyond_chance({"wild": wild, "good": [3 * score for score in good]}, sign * 0.1, higher=higher)
    assert tie.name is None and tie.tied == ("good",) and tie.gap is not None
    one = best_beyond_chance({"a": good[:1], "b": flat[:1]}, sign * 0.1, higher=higher)
    assert one.name is None and one.tied == ("a",)


def test_an_interval_names_a_unit_once_if_both_ends_have_it(memory: BenchAnswer) -> None:
    fleet = replace(memory.fleets[0], low=512 * 1024.0, high=2 * MIB)
    assert interval(memory, fleet) == "512 KiB to 2 MiB"
    assert interval(memory, replace(fleet, low=MIB)) == "1 to 2 MiB"
    assert interval(memory, replace(fleet, low=0.0, high=None)) == "any"
    flops = replace(memory, budget="flops")
    assert interval(flops, replace(fleet, low=1e9, high=None)) == "1 GFLOP and more"
    three = replace(fleet, low=3 * MIB, high=3 * MIB)  # an amount that the suite names
    assert interval(replace(memory, fleets=[three]), three) == "3 MiB"
    odd = replace(fleet, low=1_500_000.0, high=1_500_000.0, winner="layer-wise")
    assert "layer-wise (1.5 MB)" in answer(replace(memory, fleets=[odd]))[1]


def test_a_seed_that_misses_the_target_counts_as_more_than_all_others(memory: BenchAnswer) -> None:
    assert median_cost([3.0, None, 1.0]) == 3.0 and median_cost([None, None, 1.0]) is None
    assert median_cost([2.0, None]) is None and median_cost([4.0, 2.0]) == 3.0
    text = printed(memory)
    for cost in memory.costs or ():
        found = re.search(rf"{cost.variant} .*(not reached in {cost.seeds - cost.reached} of 4)", text)
        assert bool(found) == (cost.reached < 4)
    reached = next(cost for cost in memory.costs or () if cost.reached == 4)
    assert f"{median(reached.energy_joules):.3g} J" in text  # type: ignore[type-var]  # all are reached


def test_conditions_failures_one_seed_and_settings_at_an_edge_are_told() -> None:
    result = drawn_bench(names=("a", "b"), conditions=("none", "crash"), seeds=1, failed={"runs/a-1": "no memory"})
    text = printed(result)
    assert re.search(r"kept of the score under none\n.*\n.*\ncrash +90 % +90 %\n", text)
    assert "Runs that failed: 1" in text and "no memory" in text
    assert "±" not in text and "could show" not in text
    assert "b: training.lr: the best is the largest value" in text and "training.lr=0.002" in text
    assert "118 runs of 640 combinations of variant, fleet and seed: runs/memory (66.7 min)" in text


@pytest.mark.parametrize("width", [80, 120])
def test_eight_variants_fit_the_width(width: int) -> None:
    assert max(map(len, printed(drawn_bench(seeds=2), width).splitlines())) <= width


def test_hostile_names_are_printed_without_control_characters_and_formulas() -> None:
    result = drawn_bench(names=(TEXT, "b"), shares=(1.0,), seeds=2, suite=TEXT, folder=TEXT, failed={TEXT: TEXT})
    assert not harmful(printed(result), terminal=False)
    named = drawn_bench(names=(TEXT.replace("\r", ""), "b"), shares=(1.0,), seeds=2)
    written = list(csv.DictReader(io.StringIO(bench_csv(named), newline="")))
    assert {line["variant"] for line in written} == {f"'{named.variants[0].variant}", "b"}
    assert not [cell for line in written for cell in line.values() if cell.startswith("=")]


# --- figures ---------------------------------------------------------------------------------------------------------


def charts(result: BenchAnswer) -> dict[str, Chart]:
    return {chart.name: chart for chart in charts_of_bench(result)}


def line(panel: Panel, name: str) -> Series:
    """A variant's thin line."""
    return next(each for each in panel.series if each.name == name and each.form is None and not each.heavy)


def height(series: Series, place: float) -> float | None:
    """The height of a line at a place of the x axis that is no corner, found by hand."""
    for (x, y), (end, same) in pairwise(zip(series.x, series.y, strict=True)):
        if x is not None and end is not None and x < place < end:
            assert y == same, "level between its corners"
            return y  # type: ignore[no-any-return]  # a number or None
    return None


def test_a_line_has_the_score_of_each_interval_on_both_sides_of_a_threshold(memory: BenchAnswer) -> None:
    panels = charts(memory)["staircase-of-all"].panels
    fleets = {(fleet.small_share, fleet.low): fleet for fleet in memory.fleets}
    checked = 0
    for panel, share in zip(panels, (1.0, 0.3), strict=True):
        for need in (6.1 * MIB, 7.4 * MIB, 17.2 * MIB):
            (below,) = (fleet for fleet in memory.fleets if fleet.high == need and fleet.small_share == share)
            for fleet, place in ((below, need * (1 - 1e-9)), (fleets[share, need], need * (1 + 1e-9))):
                for row in fleet.rows:
                    assert height(line(panel, row.variant), place) == row.mean
                    checked += row.mean is not None
    assert checked == 18 + (0 + 1) + (1 + 2) + (2 + 3)  # where all are small, only variants that fit have a score


def test_a_line_is_thick_where_its_variant_is_shown_to_be_best_and_nowhere_else(memory: BenchAnswer) -> None:
    for panel, share in zip(charts(memory)["staircase-of-all"].panels, (1.0, 0.3), strict=True):
        for fleet in memory.fleets:
            if fleet.small_share == share and fleet.low is not None:
                inside = (fleet.low or 5.5 * MIB) * 1.001
                thick = [each.name for each in panel.series if each.heavy and height(each, inside) is not None]
                assert thick == ([] if fleet.winner is None else [fleet.winner])


def test_marks_have_the_interval_over_the_seeds_and_hide_no_other() -> None:
    chart = charts(drawn_bench())["staircase-of-all"]
    for panel in chart.panels:
        marks = [each for each in panel.series if each.form == "points"]
        assert len(marks) == len(NEEDS) == len({each.symbols[0] for each in marks})
        places = [place for each in marks for place in each.x]
        assert len(set(places)) == len(places)
        for each in marks:
            of_line = line(panel, each.name)
            for place, mean, low, high in zip(each.x, each.y, each.low, each.high, strict=True):
                assert height(of_line, place) == mean and mean - low == pytest.approx(high - mean)


def test_the_first_figure_has_few_lines_with_their_names_and_the_finding_as_title() -> None:
    result = drawn_bench()
    wins = {0: "split", 1: "split", 2: "layer-wise", 3: "layer-wise"}
    fleets = [replace(fleet, winner=wins.get(i), tied=[]) for i, fleet in enumerate(result.fleets)]
    chart = staircase(replace(result, fleets=fleets))
    assert chart is not None
    (panel,) = chart.panels
    names = ["end-to-end", "layer-wise", "split"]  # the suite's first, and those that are best where all are small
    assert [each.notes for each in panel.series if each.written] == [[name] for name in names]
    assert {each.name for each in panel.series} == {*names} == {str(row[3]) for row in chart.rows}
    assert chart.title == "Best: split, then layer-wise"  # split is named best where it doesn't fit yet
    assert "5 more variants" in chart.caption and not traces(panel)["layout"]["showlegend"]
    fleets[0] = replace(fleets[0], winner=None)
    chart = staircase(replace(result, fleets=fleets))
    assert chart is not None and chart.title == "The best schedule is the one that just fits"
    assert "split is best from 4.2 MiB, layer-wise is best from 6.1 MiB" in chart.caption
    chart = staircase(replace(result, fleets=[replace(fleet, winner=None, tied=["LoRA"]) for fleet in fleets]))
    assert chart is not None and chart.title == "No variant is shown to be best"
    assert {each.name for each in chart.panels[0].series} == {"end-to-end", "LoRA"}


def test_small_and_large_budgets_are_drawn_over_a_logarithm() -> None:
    result = drawn_bench(names=("a", "b"), shares=(1.0,), seeds=2)
    far = [replace(fleet, low=fleet.low and 6.1 * MIB if i < 2 else 610 * MIB, high=(6.1 * MIB, 610 * MIB, None)[i])
           for i, fleet in enumerate(result.fleets)]  # fmt: skip
    chart = staircase(replace(result, fleets=far))
    assert chart is not None
    axis = traces(chart.panels[0])["layout"]["xaxis"]
    assert axis["type"] == "log"
    low, high = axis["range"]
    assert isinstance(low, float) and isinstance(high, float)
    assert 0 < 10**low < 6.1 < 610 < 10**high < 1000


def test_level_pieces_that_dont_touch_have_a_gap() -> None:
    assert step_corners([(1.0, 2.0, 5.0), (2.0, 3.0, 6.0), (4.0, 5.0, 7.0)]) == (
        [1.0, 2.0, 2.0, 3.0, None, 4.0, 5.0], [5.0, 5.0, 6.0, 6.0, None, 7.0, 7.0],
    )  # fmt: skip


def test_without_a_budget_scores_are_bars() -> None:
    result = drawn_bench(names=("a", "b"), conditions=("none", "crash", "noise"), seeds=3)
    found = charts(result)
    assert next(iter(found)) == "scores" and not {"staircase", "staircase-of-all"} & found.keys()
    for index, series in enumerate(found["scores"].panels[0].series):
        rows = [fleet.rows[index] for fleet in result.fleets]
        assert (list(series.x), list(series.y)) == (["none", "crash", "noise"], [row.mean for row in rows])
        assert [high - low for high, low in zip(series.high, series.low, strict=True)] == pytest.approx(
            [2 * row.half_width for row in rows]
        )


def test_a_total_has_the_score_that_is_reached_within_it_until_the_next(memory: BenchAnswer) -> None:
    chart = charts(memory)["within-totals"]
    for panel, axis in zip(chart.panels, ("virtual_seconds", "bytes", "energy_joules"), strict=True):
        totals = [each for each in memory.spent if each.axis == axis]
        for name in ("end-to-end", "layer-wise"):
            for each in totals:
                assert height(line(panel, name), each.total * 1.01) == each.means[name]


def test_eight_variants_have_eight_colours_and_marks() -> None:
    assert len(set(RUNS)) == len(RUNS) >= 8
    panel = charts(drawn_bench(shares=(0.3,), seeds=2))["staircase-of-all"].panels[0]
    assert len({(each.colour, each.symbols[0]) for each in panel.series if each.symbols}) == 8


@pytest.mark.parametrize(("form", "begins"), [("pdf", b"%PDF"), ("svg", b"<?xml"), ("html", b"<!doctype html>")])
def test_the_staircase_can_be_a_file_of_every_form(form: str, begins: bytes, tmp_path: Path) -> None:
    chart = charts_of_bench(drawn_bench(names=("a", "$x_y$"), shares=(1.0,), seeds=2))[0]
    draw_figure(chart, tmp_path / f"staircase.{form}")
    assert (tmp_path / f"staircase.{form}").read_bytes().lstrip().startswith(begins)


def test_with_one_seed_every_figure_can_be_drawn(tmp_path: Path) -> None:
    figures = charts(drawn_bench(names=("a", "b"), shares=(1.0,), seeds=1))
    assert list(figures) == ["staircase", "staircase-of-all", "within-totals"]
    for name, chart in figures.items():
        draw_figure(chart, tmp_path / f"{name}.png")
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_plotly_takes_every_panel_and_its_numbers_are_those_of_the_chart(memory: BenchAnswer) -> None:
    for chart in charts_of_bench(memory):
        for panel in chart.panels:
            go.Figure(**traces(panel))  # raises for a name or a value that plotly's schema doesn't have
    panel = charts(memory)["staircase-of-all"].panels[0]
    drawn: dict[str, Any] = next(dict(each) for each in traces(panel)["data"] if each["name"] == "layer-wise")
    assert drawn["y"] == pytest.approx(line(panel, "layer-wise").y, rel=1e-4)
    assert drawn["x"] == pytest.approx([x / MIB for x in line(panel, "layer-wise").x], rel=1e-4)
    assert drawn["mode"] == "lines"


# --- the page --------------------------------------------------------------------------------------------------------


def test_the_page_has_the_staircase_first_then_the_answer_and_no_link_outside(
    memory: BenchAnswer, tmp_path: Path
) -> None:
    write_bench_page(memory, tmp_path / "bench.html")
    page = (tmp_path / "bench.html").read_text(encoding="utf-8")
    outside = re.sub(r"<script[^>]*>.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r'(?:src|href)="(?!#|data:)', outside) and "://" not in outside
    order = [
        outside.index(text) for text in ('data-figure="staircase"', "8 fleets: best is", "Best where all", "<footer")
    ]
    assert order == sorted(order)
    found = re.findall(r'data-figure="([^"]+)"', outside)
    assert found == [chart.name for chart in charts_of_bench(memory)]
    text = html.unescape(re.sub(r"<[^>]+>", " ", outside))
    for fleet in memory.fleets:
        for row in fleet.rows:
            assert row.mean is None or f"{row.mean:.3f} ± {row.half_width:.3f}" in text
    plots = re.search(r'<script type="application/json" id="plots">(.*?)</script>', page, re.DOTALL)
    assert plots is not None
    assert len(json.loads(plots[1])) == sum(len(chart.panels) for chart in charts_of_bench(memory))


def test_names_with_markup_are_text_on_the_page_and_in_figures(tmp_path: Path) -> None:
    bad = """"</script><script>alert('x')</script>"""
    result = drawn_bench(names=(bad, TEXT), shares=(1.0,), seeds=2, suite=bad, folder=TEXT, failed={bad: TEXT})
    write_bench_page(result, tmp_path / "bench.html")
    page = (tmp_path / "bench.html").read_text(encoding="utf-8")
    assert "alert(" in page and "<script>alert" not in page and page.count("</script>") == 3
    outside = re.sub(r"<script[^>]*>.*?</script>", "", page, flags=re.DOTALL)
    assert not harmful(outside, terminal=False)
    for chart in charts_of_bench(result)[:2]:
        draw_figure(chart, tmp_path / f"{chart.name}.svg")
        assert "<script>alert" not in (tmp_path / f"{chart.name}.svg").read_text(encoding="utf-8")
