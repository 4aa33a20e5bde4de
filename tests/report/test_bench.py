"""What shows an answer of ``edgefl bench``: its numbers are those of the record, and foreign names are text."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace
from statistics import median

import pytest
from drawn_bench import MIB, drawn_bench
from hostile_names import TEXT, harmful

from edgefl.records.bench import Bench
from edgefl.report.bench import answer, bench_csv, interval, median_cost, print_bench, sections
from edgefl.report.console import Screen


@pytest.fixture(scope="module")
def memory() -> Bench:
    return drawn_bench(names=("end-to-end", "layer-wise", "progressive"), shares=(1.0, 0.3), seeds=4)


def printed(result: Bench, width: int = 120) -> str:
    screen = Screen(file=io.StringIO(), width=width, color_system=None, highlight=False, emoji=False, markup=False)
    print_bench(result, screen)
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue()


def test_the_csv_has_a_line_for_each_fleet_variant_and_seed_with_the_records_numbers(memory: Bench) -> None:
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
                assert line["run"] == (row.runs[index] if row.runs else "")
                cost = costs.get((fleet.fleet, row.variant))
                spent = cost and cost.bytes[index]
                assert line["bytes_to_target"] == ("" if spent is None else str(spent))


def test_each_interval_has_its_winner_or_its_tie_and_the_score_of_the_best(memory: Bench) -> None:
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


def test_the_answer_counts_the_fleets_and_joins_neighbours_with_one_winner(memory: Bench) -> None:
    fleets = [
        replace(fleet, winner="layer-wise" if i in (1, 2) else None, tied=["end-to-end"] if i > 2 else [])
        for i, fleet in enumerate(memory.fleets)
    ]
    first, small, few = answer(replace(memory, fleets=fleets))
    assert first == "8 fleets: best is layer-wise on 2; these seeds show no best on 5; nobody can train on 1."
    assert small == "Where all devices are small, the best by their memory is layer-wise (6.1 to 17.2 MiB)."
    assert few == "Where 30 % of the devices are small, no variant is shown to be best."


def test_an_interval_names_a_unit_once_if_both_ends_have_it(memory: Bench) -> None:
    fleet = replace(memory.fleets[0], low=512 * 1024.0, high=2 * MIB)
    assert interval(memory, fleet) == "512 KiB to 2 MiB"
    assert interval(memory, replace(fleet, low=MIB)) == "1 to 2 MiB"
    assert interval(memory, replace(fleet, low=0.0, high=None)) == "any"
    flops = replace(memory, budget="flops")
    assert interval(flops, replace(fleet, low=1e9, high=None)) == "1 GFLOP and more"


def test_a_seed_that_misses_the_target_counts_as_more_than_all_others(memory: Bench) -> None:
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
    assert "118 runs were trained for 640 combinations of variant, fleet and seed in 66.7 min" in text


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
