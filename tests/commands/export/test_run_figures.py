"""Figures of runs: what they show equals the records, and the files that edgefl export writes can be opened."""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import plotly.graph_objects as go
import pytest
from matplotlib.container import ErrorbarContainer
from PIL import Image
from scipy import stats

import edgefl
from edgefl import units
from edgefl.commands.profile.timeline import memory_timeline
from edgefl.commands.sweep.chart import sweep_chart
from edgefl.console import main
from edgefl.devices.budgets import BUDGETS, Budget, colour_of
from edgefl.drawing.charts import Chart, charts_of, charts_of_comparison, groups_of, palette, records_of
from edgefl.drawing.charts.chart import MOST_UPRIGHT, ChartAxis, Panel, Series
from edgefl.drawing.charts.compared import side_by_side
from edgefl.drawing.charts.curves import overview
from edgefl.drawing.charts.picture import draw, figure_of
from edgefl.drawing.page.traces import traces
from edgefl.drawing.text_tables import with_spread
from edgefl.errors import RunError, UnknownName
from edgefl.results.facts import summary
from edgefl.runs import Run
from tests.commands.profile.test_profile_report import TIMELINE


@pytest.fixture
def evaluated(compared_runs: Run) -> Run:
    return compared_runs


def charts(run: Run) -> dict[str, Chart]:
    return {chart.name: chart for chart in charts_of(run, records_of(run))}


def charts_beside(comparison: Run) -> list[Chart]:
    records = [records_of(run, label) for label, run in comparison.runs.items()]
    return charts_of_comparison(groups_of(comparison, records))


def rows(chart: Chart) -> list[dict[str, Any]]:
    return [dict(zip(chart.columns, row, strict=True)) for row in chart.rows]


def test_the_fleet_has_every_client_with_its_last_verdict_in_each_stage(layerwise_run: Run) -> None:
    found = rows(charts(layerwise_run)["fleet"])
    verdicts = {(v["stage"], v["client"]): v for v in layerwise_run.records("eligibility")}
    assert {(row["stage"], row["client"]) for row in found} == verdicts.keys()
    updates = sum(record["outcome"] == "finished" for record in layerwise_run.records("clients"))
    assert sum(row["updates"] for row in found) == updates > 0
    for row in found:
        v = verdicts[row["stage"], row["client"]]
        assert row["memory_bytes"] == v["costs"]["memory"] and row["virtual_seconds"] == v["costs"]["seconds"]
        assert row["memory_limit_bytes"] == v["costs"]["memory"] + v["margins"]["memory"]


def test_refused_clients_are_counted_by_the_budget_that_refuses_them(evaluated: Run) -> None:
    run = next(iter(evaluated.runs.values()))
    refused = [v for v in run.records("eligibility") if not v["eligible"]]
    assert refused and {v["binding"] for v in refused} == {"memory"}
    found = charts(run)
    assert sum(row["refused_by_memory"] for row in rows(found["eligible"])) == len({v["client"] for v in refused})
    shown = [series for series in found["fleet"].panels[0].series if series.name == "refused by memory"]
    assert [len(series.x) for series in shown] == [len(refused)] and shown[0].hollow
    (excluded,) = rows(found["excluded"])
    assert excluded["excluded_samples"] == sum(v["samples"] for v in refused)
    assert excluded["excluded_samples"] == sum(
        excluded[f"excluded_samples_{kind}"] for kind in ("image", "text", "image-text")
    )


def test_parts_of_memory_sum_to_the_peak_of_the_largest_work(layerwise_run: Run) -> None:
    table = layerwise_run.clients
    for row in rows(charts(layerwise_run)["memory"]):
        works = table[(table.stage == row["stage"]) & (table.kind == row["kind"])]
        assert row["peak_memory_bytes"] == works.peak_memory_bytes.max()
        parts = sum(value for name, value in row.items() if name.endswith("_bytes") and "budget" not in name)
        assert parts == 2 * row["peak_memory_bytes"]  # the peak itself, and its parts


def test_costs_are_means_of_the_records_as_predicted_and_as_measured(layerwise_run: Run) -> None:
    table = layerwise_run.clients
    found = rows(charts(layerwise_run)["costs"])
    assert len(found) == table.groupby(["stage", "kind"]).ngroups
    for row in found:
        works = table[(table.stage == row["stage"]) & (table.kind == row["kind"])]
        assert row["client_rounds"] == len(works)
        assert row["simulated_seconds"] == pytest.approx(works.virtual_seconds.mean())
        metered = works[works.measured_peak_memory_bytes.notna()]
        assert len(metered)
        assert row["predicted_flops"] == pytest.approx((metered.forward_flops + metered.backward_flops).mean())
        assert row["measured_flops"] == pytest.approx(row["predicted_flops"])
        assert row["measured_peak_memory_bytes"] == works.measured_peak_memory_bytes.max()


def test_a_metric_stands_over_the_rounds_seconds_bytes_and_joules_until_then(evaluated: Run) -> None:
    run = next(iter(evaluated.runs.values()))
    chart = charts(run)["metric-accuracy"]
    image = [row for row in rows(chart) if row["line"] == "image"]
    records = run.records("rounds")
    assert [row["accuracy"] for row in image] == [r["metrics"]["image"]["accuracy"] for r in records]
    last, result = image[-1], run.result
    assert last["virtual_seconds"] == pytest.approx(result["virtual_seconds"])
    totals = result["totals"]
    assert last["traffic_bytes"] == totals["carried_download_bytes"] + totals["carried_upload_bytes"]
    assert last["energy_joules"] == pytest.approx(totals["energy_joules"])
    assert [row["split"] for row in image] == ["validation", "test"]
    assert len(chart.panels) == 4


def test_runs_that_differ_in_their_seeds_are_one_line_with_mean_and_deviation(evaluated: Run) -> None:
    found = {chart.name: chart for chart in charts_beside(evaluated)}
    table = {row["run"]: row for row in rows(found["runs-metrics"])}
    assert [row["seeds"] for row in table.values()] == [2, 2] and "end-to-end" in table
    scores = [
        run.result["metrics"]["text"]["accuracy"] for label, run in evaluated.runs.items() if "end-to-end" in label
    ]
    assert table["end-to-end"]["test.text.accuracy"] == pytest.approx(mean(scores))
    assert table["end-to-end"]["test.text.accuracy_deviation"] == pytest.approx(stdev(scores))
    curve = [row for row in rows(found["metric-text-accuracy"]) if row["line"] == "end-to-end"]
    assert curve[-1]["accuracy"] == pytest.approx(mean(scores)) and curve[-1]["seeds"] == 2
    costs = {row["run"]: row for row in rows(found["runs-costs"])}
    assert (
        costs["end-to-end"]["eligible_share"] < costs[next(name for name in costs if "layer" in name)]["eligible_share"]
    )


def test_a_clients_spans_end_where_its_flight_ended(layerwise_run: Run) -> None:
    chart = charts(layerwise_run)["timeline"]
    upload = next(series for series in chart.panels[0].series if series.name == "upload")
    ends = [begin + length for begin, length in zip(upload.base, upload.x, strict=True)]
    assert ends == pytest.approx([row["ended_virtual_seconds"] for row in rows(chart)])
    flights = layerwise_run.clients
    slowest = flights.groupby("round").virtual_seconds.max()
    assert [row["slowest_seconds"] for row in rows(charts(layerwise_run)["stragglers"])] == list(slowest)


def test_a_long_timeline_is_the_rounds_around_the_longest(layerwise_run: Run) -> None:
    records = records_of(layerwise_run)
    per_round = len(records.flights) // len(records.rounds)
    few = next(chart for chart in charts_of(layerwise_run, records, 2 * per_round) if chart.name == "timeline")
    longest = max(records.rounds, key=lambda r: r["virtual_seconds"])["round"]
    shown = {row["round"] for row in rows(few)}
    assert longest in shown and len(shown) == 2 and max(shown) - min(shown) == 1
    assert any("of 4 are shown" in note for note in few.notes)


def test_axes_choose_their_prefix() -> None:
    assert ChartAxis("memory", "bytes").scale([3 * 2**20]) == (2**20, "memory, MiB")
    assert ChartAxis("time", "seconds").scale([90.0]) == (1.0, "time, s")
    assert ChartAxis("time", "seconds").scale([7300.0]) == (3600.0, "time, h")
    assert ChartAxis("", "share").scale([0.4]) == (0.01, "%")
    assert ChartAxis("", "bytes").scale([]) == (1.0, "B")


def check_traces(found: list[Chart]) -> None:
    for chart in found:
        assert chart.rows and chart.caption.endswith(".")
        for panel in chart.panels:
            go.Figure(**traces(panel))  # raises for a name or a value that plotly's schema doesn't have
            json.dumps(traces(panel), allow_nan=False)


def test_plotly_takes_every_trace_of_a_run(layerwise_run: Run) -> None:
    check_traces(charts_of(layerwise_run, records_of(layerwise_run)))


@pytest.mark.slow(smaller="test_plotly_takes_stacked_areas_and_maps_and_names_in_them_are_text")
def test_plotly_takes_every_trace(evaluated: Run) -> None:
    check_traces(charts_beside(evaluated))


def test_plotly_takes_stacked_areas_and_maps_and_names_in_them_are_text() -> None:
    cells = sweep_chart("<b>", "round_seconds", ["<i>", "seed"], [["<i>=<u>", "b"], ["1", "2"]], [60.0, None, 6.0, 3.0])
    timeline = memory_timeline(TIMELINE, "tiny")
    for chart in (cells, timeline):
        for panel in chart.panels:
            go.Figure(**traces(panel))
            assert not re.search("<[biu]>", json.dumps(traces(panel)))
    (shown,) = traces(cells.panels[0])["data"]
    assert shown["z"] == [[60.0, None], [6.0, 3.0]] and shown["text"][0] == ["60 s", "no client"]
    areas = [trace for trace in traces(timeline.panels[0])["data"] if "stackgroup" in trace]
    sums = [sum(values) for values in zip(*(trace["y"] for trace in areas), strict=True)]
    assert sums == [2.0, 3.5, 3.0, 3.0]  # MiB, as the moments add up


def test_what_is_on_another_split_is_a_mark_apart_from_the_line(evaluated: Run) -> None:
    run = next(iter(evaluated.runs.values()))
    line, tested = [each for each in charts(run)["metric-accuracy"].panels[0].series if each.name == "image"]
    scores = [r["metrics"]["image"]["accuracy"] for r in run.records("rounds")]
    assert (list(line.y), line.form) == (scores[:-1], None)
    assert (list(tested.y), tested.form, tested.colour) == (scores[-1:], "points", line.colour)
    shown = [trace for trace in traces(charts(run)["metric-accuracy"].panels[0])["data"] if trace["name"] == "image"]
    assert [trace["mode"] for trace in shown] == ["lines+markers", "markers"]


def test_each_split_has_its_mark_in_the_legend_and_its_chance_line(evaluated: Run, tmp_path: Path) -> None:
    run = next(iter(evaluated.runs.values()))
    samples = json.loads((run.path / "evaluation.json").read_text())["samples"]
    pairs = {split: samples[split]["image-text"] for split in ("validation", "test")}
    assert pairs["validation"] != pairs["test"]
    panel = charts(run)["metric-r-at-10"].panels[0]
    assert {name: level for level, name in panel.across} == {
        f"chance ({split})": pytest.approx(min(10 / n, 1)) for split, n in pairs.items()
    }
    shown = {trace["name"]: trace["marker"]["symbol"] for trace in traces(panel)["data"] if trace["x"] == [None]}
    assert shown == {"validation": "circle", "test": "square"}
    draw(replace(charts(run)["metric-r-at-10"], panels=[panel]), tmp_path / "drawn.svg")
    words = re.findall(r"<!-- (.*?) -->", (tmp_path / "drawn.svg").read_text())  # each text is drawn below its comment
    assert (words.count("validation"), words.count("test")) == (1, 1)  # in the legend
    assert (words.count("chance (validation)"), words.count("chance (test)")) == (1, 1)
    assert [name for _, name in charts(run)["metric-accuracy"].panels[0].across] == ["chance"]  # as many classes
    beside = {chart.name: chart for chart in charts_beside(evaluated)}
    assert "image-text: R@10, test" in [each.title for each in beside["runs-metrics"].panels]
    assert list(beside["metric-image-text-r-at-10"].panels[0].symbols) == ["validation", "test"]


def test_seeds_that_end_early_are_no_mean_with_those_that_go_on(evaluated: Run) -> None:
    whole, other = [records_of(run, label) for label, run in evaluated.runs.items() if "end-to-end" in label]
    short = replace(other, rounds=[replace(other.rounds[-1], round=1)])  # its last round is the first
    (chart,) = [c for c in charts_of_comparison({"a": [whole, short]}) if c.name == "metric-text-accuracy"]
    score = [run.rounds[i].metrics["text"]["accuracy"] for run, i in ((short, 0), (whole, 0), (whole, 1))]
    assert sorted((row["round"], row["split"], row["accuracy"], row["seeds"]) for row in rows(chart)) == [
        (1, "test", score[0], 1), (1, "validation", score[1], 1), (2, "test", score[2], 1)
    ]  # fmt: skip
    assert [(each.form, len(each.y)) for each in chart.panels[0].series] == [("points", 2), (None, 1)] or [
        (each.form, len(each.y)) for each in chart.panels[0].series
    ] == [(None, 1), ("points", 2)]


def test_a_run_that_goes_on_is_not_compared_by_its_last_validation_score(evaluated: Run, tmp_path: Path) -> None:
    shutil.copytree(evaluated.path, tmp_path / "cut")
    first, *_ = edgefl.read_run(tmp_path / "cut").runs.values()
    (first.path / "result.json").unlink()
    rounds = first.path / "rounds.jsonl"
    rounds.write_text(rounds.read_text().splitlines(keepends=True)[0])
    cut = edgefl.read_run(tmp_path / "cut")
    records = [records_of(run, label) for label, run in cut.runs.items()]
    assert [each.facts.metrics_split for each in records] == ["validation", "test", "test", "test"]
    table = rows(next(c for c in charts_of_comparison({r.label: [r] for r in records}) if c.name == "runs-metrics"))
    assert [row["test.text.accuracy"] is None for row in table] == [True, False, False, False]
    told = summary(cut).compared
    assert told.split == "test" and [bool(row.metrics) for row in told.rows] == [False, True, True, True]


def test_bands_are_those_of_the_table_and_the_figure_says_so(evaluated: Run) -> None:
    curve = {chart.name: chart for chart in charts_beside(evaluated)}["metric-text-accuracy"]
    assert curve.spread == "Means over the seeds; bands and error bars: standard deviation."
    records = [records_of(run, label) for label, run in evaluated.runs.items()]
    five = {"a": [records[i % 2] for i in range(5)], "b": [records[2 + i % 2] for i in range(6)]}
    curve = {chart.name: chart for chart in charts_of_comparison(five)}["metric-text-accuracy"]
    assert "half of the 95 % interval (Student's t)" in curve.spread and "accuracy_half_width" in curve.columns
    last = next(row for row in reversed(rows(curve)) if row["line"] == "a")
    values = [run.rounds[-1].metrics["text"]["accuracy"] for run in five["a"]]
    low, high = stats.t.interval(0.95, 4, loc=mean(values), scale=stats.sem(values))
    assert last["accuracy_half_width"] == pytest.approx((high - low) / 2) and last["accuracy_half_width"] > 0
    point = next(each for each in curve.panels[0].series if each.name == "a" and each.form == "points")
    assert (point.low[0], point.high[0]) == pytest.approx((low, high))


def test_no_colour_means_two_things_and_only_what_fits_is_green() -> None:
    meanings = [
        palette.KINDS, palette.RUNS, (palette.FITS, palette.IDLE), (*map(colour_of, BUDGETS), Budget.colour),
        tuple(palette.PHASES.values()), (palette.PREDICTED, palette.MEASURED), (palette.WORST,),
        tuple(palette.PARTS.values()), (palette.INK, palette.QUIET, palette.UNKNOWN),
    ]  # fmt: skip
    every = [colour for meaning in meanings for colour in meaning]
    assert len(every) == len(set(every))
    for colour in every:
        red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
        is_green = green > 1.3 * red and green > 1.3 * blue
        assert is_green == (colour in (palette.FITS, palette.IDLE)), colour


def test_a_figure_that_has_nothing_to_show_is_left_out(layerwise_run: Run, evaluated: Run) -> None:
    assert not any(row["eligible"] < row["clients"] for row in rows(charts(layerwise_run)["eligible"]))
    assert "excluded" not in charts(layerwise_run) and "excluded" in charts(next(iter(evaluated.runs.values())))
    for chart in [*charts(layerwise_run).values(), *charts_beside(evaluated)]:
        for panel in chart.panels:
            assert any(value for series in panel.series for value in series.y), (chart.name, panel.title)


def test_bars_of_runs_have_their_values_and_spreads_that_of_the_seeds(evaluated: Run) -> None:
    chart = {chart.name: chart for chart in charts_beside(evaluated)}["runs-costs"]
    peak = next(panel for panel in chart.panels if "peak memory" in panel.title)
    assert [each.notes[0] for each in peak.series] == [units.show_bytes(each.y[0]) for each in peak.series]
    (bar, *_) = traces(peak)["data"]
    assert bar["text"] == [peak.series[0].notes[0]]


def exported(run: Run | Path, folder: Path, **options: Any) -> list[Path]:
    return [Path(file) for file in edgefl.export(run, "figures", folder, **options).files]


@pytest.mark.slow(smaller="test_a_run_that_evaluates_leaves_its_curves")
def test_figures_are_files_that_can_be_opened_with_their_numbers(evaluated: Run, tmp_path: Path) -> None:
    run = next(iter(evaluated.runs.values()))
    files = exported(run, tmp_path / "one", formats=["pdf", "svg", "png"])
    names = {path.stem for path in files}
    assert {"eligible", "fleet", "memory", "costs", "metric-accuracy", "timeline", "excluded"} <= names
    assert {path.suffix for path in files} == {".pdf", ".svg", ".png", ".csv"} and len(files) == 4 * len(names)
    for name in names:
        pdf = (tmp_path / "one" / f"{name}.pdf").read_bytes()
        assert pdf.startswith(b"%PDF") and b"/Type3" not in pdf
        svg = (tmp_path / "one" / f"{name}.svg").read_text(encoding="utf-8")
        assert "<svg " in svg and svg.rstrip().endswith("</svg>")
        with Image.open(tmp_path / "one" / f"{name}.png") as image:
            assert image.width >= 600
    with open(tmp_path / "one" / "metric-accuracy.csv", encoding="utf-8") as file:
        written = [row for row in csv.DictReader(file) if row["line"] == "image"]
    assert [float(row["accuracy"]) for row in written] == [
        r["metrics"]["image"]["accuracy"] for r in run.records("rounds")
    ]
    again = exported(run, tmp_path / "two", formats=["pdf", "svg", "png"])
    assert [path.read_bytes() for path in files] == [path.read_bytes() for path in again]


@pytest.mark.slow(smaller="test_a_comparison_interrupted_after_its_last_run_gets_its_curves")
def test_figures_of_a_comparison_have_a_folder_for_each_run(evaluated: Run, tmp_path: Path) -> None:
    files = exported(evaluated.path, tmp_path, formats=["svg"])
    folders = {path.parent for path in files}
    assert folders == {tmp_path, *(tmp_path / run.path.name for run in evaluated.runs.values())}
    assert (tmp_path / "runs-costs.svg").is_file() and (tmp_path / "metric-image-text-r-at-1.csv").is_file()


def test_a_run_that_evaluates_leaves_its_curves(evaluated: Run, tiny: Callable[..., Any], tmp_path: Path) -> None:
    for folder in (evaluated.path, *(run.path for run in evaluated.runs.values())):
        with Image.open(folder / "curves.png") as image:
            assert image.width > 500
    run = next(iter(evaluated.runs.values()))
    assert "curves.png" in json.loads((run.path / "files.json").read_bytes())["files"]
    simulated = edgefl.run(tiny(training="none"), out=tmp_path / "none")
    assert not (simulated.path / "curves.png").exists()
    assert {"fleet", "costs", "timeline"} <= charts(simulated).keys()
    assert not any(name.startswith("metric-") for name in charts(simulated))


@pytest.mark.usefixtures("with_pictures")
def test_a_comparison_interrupted_after_its_last_run_gets_its_curves(evaluated: Run, tmp_path: Path) -> None:
    again = tmp_path / "again"
    shutil.copytree(evaluated.path, again)
    (again / "curves.png").unlink()
    with pytest.raises(SystemExit) as ended:
        main(["run", "--resume", str(again), "--as", "json"])
    assert not ended.value.code and (again / "curves.png").is_file() and edgefl.read_run(again).is_finished


def test_what_cannot_be_drawn_is_told_in_a_line(
    layerwise_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunError, match="^there is no run at nowhere$"):
        edgefl.export("nowhere", "figures")
    with pytest.raises(UnknownName, match="unknown format 'pfd'; did you mean 'pdf'"):
        edgefl.export(layerwise_run, "figures", formats=["pfd"])
    with pytest.raises(UnknownName, match="unknown figure 'fleat'; did you mean 'fleet'"):
        edgefl.export(layerwise_run, "figures", only=["fleat"])
    files = exported(layerwise_run, tmp_path / "only", formats=["png"], only=["eligible"])
    assert (
        [path.name for path in files]
        == ["eligible.png", "eligible.csv"]
        == sorted((path.name for path in (tmp_path / "only").iterdir()), reverse=True)
    )
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="isn't the folder of a run"):
        edgefl.export("file", "figures")
    with pytest.raises(RunError, match="can't write to .*file: it is a file"):
        edgefl.export(layerwise_run, "figures", tmp_path / "file", formats=["svg"])
    shutil.copytree(layerwise_run.path, tmp_path / "runs" / "mine")
    with pytest.raises(RunError, match="did you mean runs/mine"):
        edgefl.export("mine", "figures")
    with pytest.raises(SystemExit) as stopped:
        main(["export", "nowhere", "--to", "figures"])
    assert stopped.value.code == 2


def test_more_bars_than_stand_beside_each_other_lie_with_their_names(tmp_path: Path) -> None:
    def bars(count: int) -> Panel:
        series = [
            Series(f"run {i}", [f"run {i}"], [1.0 + i], palette.of_run(i), [0.5 + i], [1.5 + i], notes=[f"{i}"],
                   written=True)
            for i in range(count)
        ]  # fmt: skip
        return Panel("accuracy", "bars", ChartAxis(""), ChartAxis("", bottom=0.0), series, [(2.0, "chance")])

    few, many = traces(bars(MOST_UPRIGHT)), traces(bars(MOST_UPRIGHT + 1))
    assert [trace["x"] for trace in few["data"]] == [[f"run {i}"] for i in range(MOST_UPRIGHT)]
    assert [trace["y"] for trace in many["data"]] == [[f"run {i}"] for i in range(MOST_UPRIGHT + 1)]
    assert [trace["x"] for trace in many["data"]] == [[1.0 + i] for i in range(MOST_UPRIGHT + 1)]
    assert all(trace["orientation"] == "h" and "error_x" in trace for trace in many["data"])
    assert [shape["x0"] for shape in many["layout"]["shapes"]] == [2.0] and not bars(MOST_UPRIGHT).is_horizontal
    go.Figure(many)
    chart = Chart("c", "c", "c", [bars(9), bars(9)], ["run"], [])
    draw(chart, tmp_path / "c.svg")
    drawn = (tmp_path / "c.svg").read_text(encoding="utf-8")
    draw(Chart("c", "c", "c", [bars(9)], ["run"], []), tmp_path / "one.svg")
    alone = (tmp_path / "one.svg").read_text(encoding="utf-8")
    assert drawn.count("<!-- run 8 -->") == alone.count("<!-- run 8 -->") == 1  # the second panel has the first's names
    assert len({palette.of_run(i) for i in range(12)}) == 12


# --- texts -----------------------------------------------------------------------------------------------------------


def texts_of(figure: Any) -> list[tuple[str, Any]]:
    """What a figure of matplotlib says, and the boxes in which the renderer draws it."""
    figure.draw_without_rendering()
    drawn = []
    for axes in figure.axes:
        ticks = [
            tick.label1
            for axis, (low, high) in ((axes.xaxis, sorted(axes.get_xlim())), (axes.yaxis, sorted(axes.get_ylim())))
            for tick in axis.get_major_ticks()
            if low <= tick.get_loc() <= high and tick.label1.get_visible()
        ]
        drawn += [*axes.texts, axes.title, axes.xaxis.label, axes.yaxis.label, *ticks]
        drawn += axes.get_legend().get_texts() if axes.get_legend() else []
    drawn += [text for legend in figure.legends for text in legend.get_texts()]
    return [(text.get_text(), text.get_window_extent()) for text in drawn if text.get_text() and text.get_visible()]


def overprinted(figure: Any) -> list[tuple[str, str]]:
    return [(a, b) for (a, one), (b, other) in combinations(texts_of(figure), 2) if one.overlaps(other)]


def test_values_stand_above_whiskers_and_titles_beside_ticks(evaluated: Run) -> None:
    groups = groups_of(evaluated, [records_of(run, label) for label, run in evaluated.runs.items()])
    for chart in side_by_side(groups):
        figure = figure_of(chart)
        values = {note for panel in chart.panels for series in panel.series for note in series.notes}
        assert overprinted(figure) == []
        for axes in figure.axes:
            tops = {
                float(x): axes.transData.transform((x, top))[1]
                for bars in axes.containers
                if isinstance(bars, ErrorbarContainer)
                for x, top in zip(*bars.lines[1][1].get_data(), strict=True)
            }
            over = [text for text in axes.texts if text.get_text() in values and text.xy[0] in tops]
            assert len(over) == len(tops) > 0
            assert all(text.get_window_extent().y0 > tops[text.xy[0]] for text in over)
    chart = overview(groups)
    assert chart is not None
    odd = [
        replace(p, y=replace(p.y, title="image-text: recall"), x=replace(p.x, title="virtual time"))
        for p in chart.panels
    ]
    figure = figure_of(replace(chart, panels=odd), title="runs", measured=False)
    assert overprinted(figure) == []
    for axes in figure.axes:
        label = axes.yaxis.label.get_window_extent()
        assert not any(label.overlaps(other.bbox) for other in figure.axes)


def test_a_mean_and_its_spread_have_one_unit() -> None:
    assert with_spread("32.4 GFLOP", 32.4e9, 460e6) == "32.4 ± 0.46 GFLOP"
    assert with_spread("0.812", 0.8123, 0.0123) == "0.812 ± 0.012"
    assert with_spread("1,234 J", 1234.0, 5.0) == "1,234 ± 5 J"
    assert with_spread("2.1 MiB", 2.1 * 2**20, 1.0) == "2.1 ± 9.5e-07 MiB"
