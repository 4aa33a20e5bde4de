"""Runs side by side: means and intervals by hand, groups by what differs, metrics at equal costs."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from math import atan, pi, tan
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
from rich.console import Console
from scipy import stats
from small_grid import UNTRAINED

import edgefl
from edgefl.commands.compare.answer import ComparedRuns
from edgefl.commands.compare.latex import comparison_latex
from edgefl.commands.compare.members import flat, labels_of, members_of
from edgefl.commands.compare.over_seeds import compared_runs
from edgefl.commands.compare.table import comparison_csv, comparison_orderings, print_comparison
from edgefl.console import main
from edgefl.errors import RunError
from edgefl.results.equal_costs import Curve, KindEvaluation, at_equal
from edgefl.results.facts import facts_of
from edgefl.results.spread import SeedSpread
from edgefl.scenario import load

Tiny = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def comparison(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Two schedules by two seeds, evaluated after every round."""
    scenario = tiny(
        data={"source": "glyphs", "clients": {"text": 4}, "samples": 40, "validation": 40, "test": 40},
        schedule={"name": "end-to-end", "rounds": 3},
        evaluation={"every": 1},
        compare={"seed": [3, 4], "schedule": ["end-to-end", {"name": "layerwise", "stages": 2, "rounds": 3}]},
    )
    return edgefl.run(scenario, out=tmp_path_factory.mktemp("seeds") / "run")


@pytest.fixture(scope="module")
def compared(comparison: Any) -> ComparedRuns:
    return edgefl.compare([comparison.path])


def shown(found: dict[str, Any], width: int = 100, **options: Any) -> str:
    file = io.StringIO()
    console = Console(file=file, width=width, no_color=True, color_system=None, markup=False, highlight=False)
    print_comparison(found, console=console, **options)
    assert max(map(len, file.getvalue().splitlines())) <= width
    return file.getvalue()


# --- spreads ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("values", [(1.0, 2.0), (1.0, 2.0, 4.0, 3.0, 5.0), tuple(map(float, range(40)))])
def test_half_an_interval_is_students(values: tuple[float, ...]) -> None:
    spread = SeedSpread(values)
    low, high = stats.t.interval(0.95, len(values) - 1, loc=fmean(values), scale=stats.sem(values))
    assert spread.half_width == pytest.approx((high - low) / 2, rel=1e-12) and spread.deviation == stdev(values)
    assert SeedSpread((1.0,)).half_width is None and SeedSpread((1.0, None)).mean is None


# --- the best --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("end_to_end", "layerwise", "best"),
    [
        # unpaired intervals overlap; gaps .10 and .11: t = .105 / .005 = 21, above the quantile 12.7 of one degree
        ((0.2, 0.8), (0.1, 0.69), [True, False]),
        # unpaired intervals are apart; gaps .1 and .2: t = .15 / .05 = 3
        ((0.8, 0.9), (0.7, 0.7), [False, False]),
        ((0.8, 0.8), (0.8, 0.8), [False, False]),
        ((0.8, 0.8), (0.1, None), [False, False]),  # nobody to compare with
    ],
)
def test_the_best_is_marked_if_its_paired_gap_is_beyond_chance(
    comparison: Any, end_to_end: tuple[float, ...], layerwise: tuple[float, ...], best: list[bool]
) -> None:
    scores = {"end-to-end": end_to_end, "layerwise": layerwise}
    facts = {
        str(run.path): replace(
            facts_of(run),
            metrics={"text": {"accuracy": scores[run.scenario["schedule"]["name"]][run.scenario["seed"] - 3]}},
        )
        for run in comparison.runs.values()
    }
    rows = compared_runs(members_of([comparison.path]), facts).rows
    assert [row.figures["text.accuracy"].best for row in rows] == best


@pytest.fixture(scope="module")
def budgets(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Two schedules under three amounts of memory, with the least of which nobody trains."""
    scenario = tiny(
        data={"source": "glyphs", "clients": {"text": 4}, "samples": 40, "validation": 40, "test": 40},
        training={"mode": "none"},
        compare={
            "schedule": [{"name": "layerwise", "stages": 2, "rounds": 2}, {"name": "end-to-end", "rounds": 2}],
            "fleet.budgets.memory": ["1 KiB", "1.5 GiB", "2..4 GB"],
            "seed": [3, 4],
        },
    )
    return edgefl.run(scenario, out=tmp_path_factory.mktemp("budgets") / "run")


def test_where_nobody_trained_nothing_is_cheap_and_the_best_is_so_under_its_budget(budgets: Any) -> None:
    found = edgefl.compare([budgets.path])
    stars = {
        (str(row.sets["schedule.name"]), row.label.rpartition("=")[2]): {n for n, f in row.figures.items() if f.best}
        for row in found.rows
    }
    assert all(not names for (_, memory), names in stars.items() if memory == "1 KiB")
    for memory in ("1.5 GiB", "2..4 GB"):
        assert "flops" in stars["layerwise", memory] and not stars["end-to-end", memory]
    nobody = next(row for row in found.rows if row.label.endswith("1 KiB"))
    assert nobody.figures["updates"].values == [0, 0] and nobody.figures["bytes"].values == [0, 0]
    latex = [line for line in comparison_latex(found, full=True).splitlines() if "1 KiB" in line]
    assert len(latex) == 2 and not any("mathbf" in line for line in latex)
    for part in found.equal:  # those who spent nothing are no limit
        spent = [row.figures[part.axis].values for row in found.rows if row.figures["updates"].mean]
        assert part.budget == min(map(min, spent)) > 0
    assert {row.label.partition("=")[2] for row in found.rows} == {"1 KiB", "1.5 GiB", "2..4 GB"}  # as they are written


def test_latex_has_the_numbers_of_the_table_and_the_best_in_bold(compared: ComparedRuns) -> None:
    text = comparison_latex(compared)
    assert text.count(r"\toprule") == text.count(r"\midrule") == text.count(r"\bottomrule") == 1
    rows = [line.removesuffix(r" \\").split(" & ") for line in text.splitlines() if line.endswith(r"\\")]
    columns = len(rows[0])
    assert {len(row) for row in rows} == {columns} and rf"\begin{{tabular}}{{l{'r' * (columns - 1)}}}" in text
    peak = next(row.index("peak memory") for row in rows if "peak memory" in row)
    assert [row[peak].startswith(r"$\mathbf{") for row in rows[-2:]] == [False, True]
    of_text = compared.rows[0].figures["text.accuracy"]
    assert rows[-2][1] == rf"${of_text.mean:.3f} \pm {of_text.deviation:.3f}$"
    assert r"\%" in rows[-3] and "%" not in "".join("".join(row) for row in rows).replace(r"\%", "")
    odd = replace(compared, rows=[replace(row, label="a_b & 50% {x}") for row in compared.rows])
    assert r"a\_b \& 50\% \{x\}" in comparison_latex(odd)


def test_what_is_eligible_is_so_in_the_hardest_stage_and_peaks_are_of_all_that_were_asked(
    tiny: Tiny, tmp_path: Path
) -> None:
    scenario = tiny(
        data={"source": "glyphs", "clients": {"text": 4}, "samples": 40, "validation": 40, "test": 40},
        training={"mode": "none", "batch": 8},
        schedule={"name": "layerwise", "stages": 2, "rounds": 2},
    )
    needs = {row["stage"]: row["peak_memory_bytes"] for row in edgefl.profile(scenario)["rows"]}
    hardest = max(needs.values())
    assert min(needs.values()) < hardest
    scenario["fleet"] = {"budgets": {"memory": f"{(min(needs.values()) + hardest) // 2} B"}}
    run = edgefl.run(scenario, out=tmp_path / "run")
    (row,) = edgefl.compare([run.path]).rows
    assert row.figures["eligible_share"].mean == 0.0 and row.figures["eligible_share_ever"].mean == 1.0
    assert row.figures["peak_memory_bytes"].mean == hardest
    assert max(r["peak_memory_bytes"] for r in run.records("clients")) < hardest


# --- groups ----------------------------------------------------------------------------------------------------------


def test_a_label_has_names_first_and_what_tells_equal_names_apart() -> None:
    labels, also = labels_of(
        [
            {"method.name": "fedavg", "training.lr": 0.1},
            {"method.name": "fedprox", "method.mu": 0.1, "training.lr": 0.1},
            {"method.name": "fedprox", "method.mu": 0.5, "training.lr": 0.2},
        ]
    )
    assert labels == ["fedavg", "fedprox, mu=0.1", "fedprox, mu=0.5"] and also == ["training.lr"]
    assert labels_of([{"method.name": "fedavg", "schedule.name": "elastic"}]) == (["fedavg, elastic"], [])


def test_a_label_has_values_as_they_are_written(tiny: Tiny) -> None:
    written: list[tuple[str, list[Any], list[str]]] = [
        ("fleet.budgets.memory", ["3 MiB", "12..48 MiB", {"6 MiB": "70%", "unlimited": "30%"}, None],
         ["memory=3 MiB", "memory=12..48 MiB", "memory={6 MiB: 70%, unlimited: 30%}", "memory=unlimited"]),
        ("round.deadline", ["90 s", "10 min"], ["deadline=90 s", "deadline=10 min"]),
        ("round.cohort", [3, "50%"], ["cohort=3", "cohort=50%"]),
        ("fleet.devices", [{"macbook-air-m1": 1.0}, {"macbook-air-m1": "25%", "raspberry-pi-4-8gb": "75%"}],
         ["devices={macbook-air-m1: 100%}", "devices={macbook-air-m1: 25%, raspberry-pi-4-8gb: 75%}"]),
        ("training.lr", [1e-3, 3e-2], ["lr=0.001", "lr=0.03"]),
        ("schedule", [{"name": "layerwise", "stages": [1, 1], "rounds": 2}, {"name": "layerwise", "rounds": 2}],
         ["stages=[1, 1]", "stages=2"]),
        ("fleet.battery.initial", ["40..60%", "50%"], ["initial=40..60%", "initial=50%"]),
    ]  # fmt: skip
    for path, values, labels in written:
        scenarios = [load(with_field(tiny(), path, value)) for value in values]
        assert labels_of([flat(scenario.to_data()) for scenario in scenarios])[0] == labels


def with_field(scenario: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    first, *rest = path.split(".", 1)
    return {**scenario, first: with_field(scenario.get(first, {}), rest[0], value) if rest else value}


def test_means_are_those_of_the_runs(comparison: Any, compared: ComparedRuns) -> None:
    assert [row["label"] for row in compared["rows"]] == ["end-to-end", "layerwise"]
    for row in compared["rows"]:
        runs = [run for run in comparison.runs.values() if run.scenario["schedule"]["name"] == row["label"]]
        assert row["seeds"] == [3, 4] == [run.scenario["seed"] for run in runs]
        for name, value in (
            ("text.accuracy", lambda run: run.result["metrics"]["text"]["accuracy"]),
            ("virtual_seconds", lambda run: run.result["virtual_seconds"]),
            ("energy_joules", lambda run: run.result["totals"]["energy_joules"]),
            ("bytes", lambda run: sum(run.result["totals"][f"carried_{way}_bytes"] for way in ("download", "upload"))),
        ):
            values = [value(run) for run in runs]
            figure = row["figures"][name]
            assert figure["values"] == pytest.approx(values)
            assert figure["mean"] == pytest.approx(fmean(values))
            assert figure["deviation"] == pytest.approx(stdev(values))
    memory = [row["figures"]["peak_memory_bytes"] for row in compared["rows"]]
    assert [cell["best"] for cell in memory] == [False, True] and memory[1]["mean"] < memory[0]["mean"]


def test_single_runs_are_grouped_as_their_comparison_is(comparison: Any, compared: ComparedRuns) -> None:
    alone = edgefl.compare([run.path for run in comparison.runs.values()])
    assert alone == compared
    one = edgefl.compare([next(iter(comparison.runs.values())).path])
    assert comparison_orderings(one) == "one row alone has no order\n" != comparison_orderings(compared)


def test_a_copy_of_a_run_is_told_by_its_folder(comparison: Any, tmp_path: Path) -> None:
    run = next(iter(comparison.runs.values()))
    shutil.copytree(run.path, tmp_path / "copy")
    found = edgefl.compare([run.path, tmp_path / "copy", run.path])
    assert [row["label"] for row in found["rows"]] == [str(run.path), str(tmp_path / "copy")]
    assert found["rows"][0]["figures"] == found["rows"][1]["figures"]


def test_unfinished_runs_are_left_out_and_said(comparison: Any, tmp_path: Path) -> None:
    cut = tmp_path / "cut"
    shutil.copytree(comparison.path, cut)
    runs = list(edgefl.read_run(cut).runs.values())
    (runs[0].path / "result.json").unlink()
    found = edgefl.compare([cut])
    assert found["left_out"] == [f"{runs[0].path} isn't finished; continue it with edgefl run --resume {cut}"]
    assert [(row["label"], row["seeds"]) for row in found["rows"]] == [("layerwise", [3, 4]), ("end-to-end", [4])]
    assert "(seed 4)" in shown(found) and "share fewer than two seeds" in " ".join(shown(found).split())
    assert not any(figure["best"] for row in found["rows"] for figure in row["figures"].values())
    for run in runs[1:]:
        (run.path / "result.json").unlink()
    with pytest.raises(RunError, match="isn't finished; continue it"):
        edgefl.compare([cut])
    with pytest.raises(RunError, match="there is no run at"):
        edgefl.compare([tmp_path / "nowhere"])


def raw_scores(run: Any, round: int) -> float:
    """The accuracy after a round, read as JSON."""
    record = json.loads((run.path / "rounds.jsonl").read_text().splitlines()[round - 1])
    return float(record["metrics"]["text"]["accuracy"])


@pytest.mark.parametrize(("round", "split"), [(3, "test"), (2, "validation")])
def test_it_says_who_is_behind_or_what_two_seeds_could_show(
    comparison: Any, compared: ComparedRuns, round: int, split: str
) -> None:
    scores: dict[str, list[float]] = {}
    for run in comparison.runs.values():
        scores.setdefault(run.scenario["schedule"]["name"], []).append(raw_scores(run, round))
    worse, best = sorted(scores, key=lambda name: sum(scores[name]))
    gaps = [a - b for a, b in zip(scores[best], scores[worse], strict=True)]
    centre, error = sum(gaps) / 2, abs(gaps[0] - gaps[1]) / 2
    # Student's distribution of one degree of freedom: F(t) = 1/2 + atan(t) / pi
    assert 1 - 2 / pi * atan(centre / error) > 0.05
    could = (tan(pi * 0.475) + tan(pi * 0.3)) * error
    words = f"{worse} is not shown to be behind {best}: by {centre:.3f}, where 2 seeds could show {could:.3f}"
    if split == "test":
        assert compared.standings["text.accuracy"] == words
        assert f"text accuracy: {words}" in " ".join(shown(compared).split())
    else:
        equal = next(part for part in compared.equal if part.split == split)
        assert equal.standings["text.accuracy"] == words


def test_a_mean_over_kinds_is_a_metric_and_shown_where_all_kinds_have_it(comparison: Any) -> None:
    facts = {str(run.path): facts_of(run) for run in comparison.runs.values()}
    for number, (path, each) in enumerate(facts.items()):
        metrics = {"image": {"accuracy": number / 8}, **each.metrics, "audio": {"accuracy": 0.25}}
        facts[path] = replace(each, metrics=metrics)
    found = compared_runs(members_of([comparison.path]), facts)
    for row in found.rows:
        of = [[values["accuracy"] for values in facts[path].metrics.values()] for path in row.runs]
        assert row.figures["mean.accuracy"].values == [pytest.approx(sum(values) / 3) for values in of]
    assert found.metrics[-1].startswith("mean.") and "mean accuracy: " in shown(found)
    facts = {path: replace(each, metrics={**each.metrics, "image-text": {"r@10": 0.5}}) for path, each in facts.items()}
    found = compared_runs(members_of([comparison.path]), facts)
    assert "mean accuracy: " not in shown(found) and "mean accuracy: " in shown(found, full=True)
    assert "mean.r@10" not in found.metrics


def test_runs_that_were_scored_on_two_splits_are_not_compared(comparison: Any, tmp_path: Path) -> None:
    facts = {str(run.path): facts_of(run) for run in comparison.runs.values()}
    odd = [path for path, each in facts.items() if each.schedule == "layerwise"]
    moved = {path: replace(each, metrics_split="validation") if path in odd else each for path, each in facts.items()}
    found = compared_runs(members_of([comparison.path]), moved)
    assert found.split == "test" and found.left_out == [
        f"the metrics of {path} are on another split than test" for path in odd
    ]
    first, second = (row.figures["text.accuracy"] for row in found.rows)
    assert first.values == [facts[path].metrics["text"]["accuracy"] for path in facts if path not in odd]
    assert second.mean is None and not first.best and found.standings["text.accuracy"] == ""


def test_chance_is_that_of_the_split_of_each_table(tiny: Tiny, tmp_path: Path) -> None:
    scenario = tiny(
        data={"source": "glyphs", "clients": {"image-text": 2}, "samples": 20, "validation": 30, "test": 60},
        evaluation={"every": 1},
        compare={"schedule": [{"name": "end-to-end", "rounds": 2}, {"name": "layerwise", "stages": 2, "rounds": 2}]},
    )
    found = edgefl.compare([edgefl.run(scenario, out=tmp_path / "run").path])
    part = next(part for part in found.equal if part.axis == "bytes")  # ten of so many pairs
    assert (found.split, found.chance["image-text.r@10"]) == ("test", pytest.approx(10 / 60))
    assert (part.split, part.chance["image-text.r@10"]) == ("validation", pytest.approx(10 / 30))
    above, below = shown(found).split("At equal traffic")
    assert "R@10, test" in above and "(chance 0.167)" in above
    assert "R@10, validation" in below and "(chance 0.333)" in below
    assert " R@10, test " in comparison_latex(found) and " (chance 0.167) " in comparison_latex(found)
    line = next(csv.DictReader(io.StringIO(comparison_csv(found))))
    assert (line["split"], line["at_bytes.split"]) == ("test", "validation")


# --- equal costs -----------------------------------------------------------------------------------------------------


def curve(*points: tuple[float, str, float]) -> Curve:
    """A curve by cost, split and value; all costs alike."""
    axes = ("virtual_seconds", "bytes", "energy_joules")
    evaluations = [
        KindEvaluation(i, split, {"image": {"accuracy": value}}, dict.fromkeys(axes, cost))
        for i, (cost, split, value) in enumerate(points, 1)
    ]
    return Curve(tuple(evaluations), evaluations[-1].spent)


def values(curves: list[Curve], splits: list[str]) -> tuple[float, str, list[float | None]]:
    equal = at_equal(curves, splits)[0]
    return equal.budget, equal.split, [e and e.metrics["image"]["accuracy"] for e in equal.evaluations]


def test_a_metric_keeps_its_last_value_up_to_the_budget_that_all_reached() -> None:
    long = curve((10, "val", 0.1), (20, "val", 0.2), (30, "val", 0.3))
    short = curve((12, "val", 0.5), (25, "val", 0.6))
    assert values([long, short], ["val"]) == (25, "val", [0.2, 0.6])
    late = curve((26, "val", 0.9), (30, "val", 0.9))
    assert values([short, late], ["val"]) == (25, "val", [0.6, None])


def test_values_of_two_splits_are_not_compared() -> None:
    long = curve((10, "val", 0.1), (20, "val", 0.2), (30, "test", 0.3))
    short = curve((12, "val", 0.5), (25, "test", 0.6))
    assert values([long, short], ["test", "val"]) == (25, "val", [0.2, 0.5])
    assert values([short, short], ["test", "val"]) == (25, "test", [0.6, 0.6])


def test_at_equal_bytes_the_records_say_what_each_run_had(comparison: Any, compared: ComparedRuns) -> None:
    part = next(part for part in compared["equal"] if part["axis"] == "bytes")
    ways = ["carried_download_bytes", "carried_upload_bytes"]
    totals = [run.rounds[ways].to_numpy().sum() for run in comparison.runs.values()]
    assert part["budget"] == min(totals) and part["split"] == "validation"
    for row in part["rows"]:
        runs = [run for run in comparison.runs.values() if run.scenario["schedule"]["name"] == row["label"]]
        for run, round, value in zip(runs, row["rounds"], row["figures"]["text.accuracy"]["values"], strict=True):
            spent = run.rounds[ways].sum(axis=1).cumsum()
            last = run.rounds[(spent <= part["budget"]) & (run.rounds["round"] < 3)].iloc[-1]
            assert (round, value) == (last["round"], last["metrics.text.accuracy"])


def test_at_equal_costs_the_lowest_loss_is_the_best(comparison: Any, tmp_path: Path) -> None:
    shutil.copytree(comparison.path, tmp_path / "run")
    for run in edgefl.read_run(tmp_path / "run").runs.values():
        metrics = {"text": {"loss": 0.1 if run.scenario["schedule"]["name"] == "layerwise" else 0.2}}
        file = run.path / "rounds.jsonl"
        rounds = [json.loads(line) | {"metrics": metrics} for line in file.read_text().splitlines()]
        file.write_text("".join(json.dumps(record) + "\n" for record in rounds))
        result = run.path / "result.json"
        result.write_text(json.dumps(json.loads(result.read_text()) | {"metrics": metrics}))
    found = edgefl.compare([tmp_path / "run"])
    for rows in (found.rows, *(part.rows for part in found.equal)):
        assert {row.label: row.figures["text.loss"].best for row in rows} == {"end-to-end": False, "layerwise": True}


# --- what is printed -------------------------------------------------------------------------------------------------


def test_the_table_says_which_spread_it_shows(compared: ComparedRuns) -> None:
    text = shown(compared)
    assert text.startswith("Comparison: mean ± standard deviation over seeds 3, 4\n")
    assert "*: the best, ahead of each other row beyond chance" in text and "At equal traffic of all clients" in text
    cell = compared["rows"][0]["figures"]["text.accuracy"]
    assert f"{cell['mean']:.3f} ± {cell['deviation']:.3f}" in text
    shown(compared, width=80, full=True)
    five = replace(compared, spread="95 % interval")
    assert "± half of the 95 % interval (Student's t)" in shown(five)


def test_csv_and_json_hold_the_same(compared: ComparedRuns) -> None:
    lines = list(csv.DictReader(io.StringIO(comparison_csv(compared))))
    assert [line["label"] for line in lines] == ["end-to-end", "layerwise"] and lines[0]["seeds"] == "3 4"
    for line, row in zip(lines, compared["rows"], strict=True):
        assert float(line["energy_joules.mean"]) == row["figures"]["energy_joules"]["mean"]
    assert json.loads(json.dumps(compared.to_data(), allow_nan=False)) == compared.to_data()


@pytest.mark.slow(smaller="test_means_are_those_of_the_runs")
def test_a_run_of_several_seeds_prints_one_table(comparison: Any, capsys: pytest.CaptureFixture[str]) -> None:
    main_ends("run", "--resume", str(comparison.path))
    out = capsys.readouterr().out
    assert out.startswith("Comparison: mean ± standard deviation over seeds 3, 4") and len(out.splitlines()) < 20
    main_ends("run", "--resume", str(comparison.path), "--full")
    assert "=== seed=3,end-to-end: " in capsys.readouterr().out
    main_ends("compare", str(comparison.path), "--as", "orderings")
    out = capsys.readouterr().out
    assert "| claimed | metric | gap | 95 % interval | detectable | seeds | seeds for 80 % | verdict |" in out
    assert "| text.accuracy |" in out and "over seeds 3, 4, test split." in out
    main_ends("compare", str(comparison.path), "--as", "json")
    assert json.loads(capsys.readouterr().out)["spread"] == "standard deviation"
    assert main_ends("compare", str(comparison.path / "nowhere")) == 2


def main_ends(*words: str) -> int:
    """The exit code of a command."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    return int(ended.value.code or 0)


def test_rows_are_called_by_their_labels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = {"plain": {}, "near, prox": {"method": {"name": "fedprox", "mu": 0.01}, "training.lr": 0.02}}
    scenario = {**UNTRAINED, "compare": {"seed": [1, 2], "rows": rows}}
    run = edgefl.run(scenario, out=tmp_path / "table")
    found = edgefl.compare([run])
    assert [row.label for row in found.rows] == list(rows)
    assert [row.seeds for row in found.rows] == [[1, 2], [1, 2]] and found.also_differ == []
    assert found.rows[1].sets["training.lr"] == 0.02 and found.rows[1].sets["method.name"] == "fedprox"
    assert sorted(set(run.rounds["rows"])) == sorted(rows)
    assert list(run.runs) == [f"seed={seed},{label}" for seed in (1, 2) for label in ("plain", "near,-prox")]
    with pytest.raises(SystemExit):
        main(["compare", str(run.path), "--as", "latex"])
    assert "near, prox" in capsys.readouterr().out
    # folders of single runs are no rows, so that their fields tell them apart
    alone = [run.runs["seed=1,plain"], run.runs["seed=1,near,-prox"]]
    assert [row.label for row in edgefl.compare(alone).rows] == ["fedavg", "fedprox"]


def test_what_differs_beside_rows_stands_behind_their_labels() -> None:
    scenarios = [{"training.lr": lr, "training.batch": batch} for lr in (0.1, 0.2) for batch in (4, 8)]
    labels, also = labels_of(scenarios, ["slow", "slow", "fast", "fast"])
    assert labels == ["slow, batch=4", "slow, batch=8", "fast, batch=4", "fast, batch=8"] and also == ["training.lr"]
    assert labels_of(scenarios, ["slow", "slow", "fast", None])[0][0] == "lr=0.1, batch=4"
