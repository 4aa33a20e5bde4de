"""The fit of efficiencies against rows that a loop by hand made with known ones, and what it leaves out."""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import replace
from math import exp, log

import numpy as np
import pytest

from edgefl.cost.client_cost import ComputeCost
from edgefl.devices.processors import OPERATOR_NAMES, ProcessorType, efficiency_of, load_fitted_rates, processor_of
from edgefl.devices.profile import Hardware, hardware
from edgefl.devices.written_facts import library_folder
from tools import fit_rates
from tools.fit_rates import GROUPS, START, Table, Widths, chain, fit, unseen
from tools.published_steps.measurements import Measurement, measurements
from tools.published_steps.predicting import MeasuredQuantity, measured_quantities, source_of

PEAK, BANDWIDTH, HOST = 1e11, 1e10, 2e-5
KNOWN: dict[ProcessorType, dict[str, float]] = {
    "cpu": {
        "product": 0.62, "convolution": 0.31, "convolution 1x1": 0.22,
        "depthwise convolution": 0.02, "memory of depthwise convolution": 0.07, "memory of pointwise": 0.33,
        "launch": 1.4, "loading": 9e-8, "sample": 5e-3,
    },
    "gpu": {
        "product": 0.41, "convolution": 0.35, "convolution 1x1": 0.3, "grouped convolution": 0.15,
        "memory of convolution": 0.7, "memory of pointwise": 0.8, "memory of grouped convolution": 0.5,
        "tf32": 0.7, "float16": 0.55, "bfloat16": 0.5, "kernel": 8e-6, "launch": 2.0, "loading": 1e-7, "sample": 2e-3,
    },
}  # fmt: skip
WIDE = Widths(20.0, 0.01, 0.01, 0.01, 0.01, 1.0, 1e-3)


def made(type: ProcessorType, device: str, seed: int, count: int = 60) -> list[MeasuredQuantity]:
    """Rows of random operators, whose seconds a loop adds up with the KNOWN numbers."""
    rng = np.random.default_rng(seed)
    known, (arithmetic, memory) = KNOWN[type], GROUPS[type]
    precisions = ("float32",) if type == "cpu" else ("float32", "tf32", "float16")
    row = next(row for row in measurements() if row.seconds_per_step is not None)
    rows = []
    for number in range(count):
        precision, loads = precisions[number % len(precisions)], number % 3 == 0
        classes = rng.choice(len(OPERATOR_NAMES), size=rng.integers(1, 5), replace=False)
        operators = [[10 ** rng.uniform(6, 10), 10 ** rng.uniform(5, 9), rng.integers(1, 40), c] for c in classes]
        peak = PEAK * {"float32": 1.0, "tf32": 2.0, "float16": 4.0}[precision]
        seconds = launches = 0.0
        for flops, moved, times, of_class in operators:
            name = OPERATOR_NAMES[int(of_class)]
            by = next((known[group] for group, names in arithmetic.items() if name in names), None)
            computes = 0.0 if by is None else flops / (peak * by * known.get(precision, 1.0))
            by = next((known[f"memory of {group}"] for group, names in memory.items() if name in names), None)
            moves = 0.0 if by is None else moved / (BANDWIDTH * by)
            seconds += times * (computes + moves if type == "cpu" else max(computes, moves) + known["kernel"])
            launches += times * HOST * known["launch"]
        batch, values = 4 * (1 + number % 5), 50_000
        loading = batch * (values * known["loading"] + known["sample"]) if loads else 0.0
        seconds = seconds + launches + loading if type == "cpu" else max(seconds, launches, loading)
        measured = replace(
            row, device=device, model=f"net {number}", batch=batch, input=(values,), precision=precision, value=seconds,
            measured="seconds_per_step", includes=("data loading",) if loads else (), framework="PyTorch 2.4",
        )  # fmt: skip
        rows.append(held_row(type, measured, np.array(operators)))
    return rows


def held_row(type: ProcessorType, row: Measurement, operators: np.ndarray) -> MeasuredQuantity:
    hardware = Hardware(
        row.device, "made", PEAK, PEAK, BANDWIDTH, HOST, 100.0, 10.0, processor_class=f"some-{type}",
        processor=processor_of(type, efficiency_of("x86-cpu" if type == "cpu" else "discrete-gpu").efficiency),
        peak_tf32_flops_per_second=2 * PEAK, peak_float16_flops_per_second=4 * PEAK,
    )  # fmt: skip
    return MeasuredQuantity(row, hardware, ComputeCost(0, {}, 0, 0, 0.0, operators, precision=row.precision), "seconds")


@pytest.mark.parametrize("type", ["cpu", "gpu"])
def test_the_fit_finds_the_numbers_that_made_the_rows(type: ProcessorType) -> None:
    table = Table.of(type, made(type, "one", seed=3))
    every = np.ones(len(table.rows), bool)
    found = fit(table, every, WIDE)
    assert found.predicted(table, every) == pytest.approx(np.exp(table.measured), rel=0.04)
    numbers = dict(zip(START[type], np.exp(found.numbers(chain(table.rows[0]))), strict=True))
    shares = [name for name in numbers if name in GROUPS[type][0] or name.startswith("memory of")]
    for name in [*shares, *(name for name in ("tf32", "float16") if name in numbers)]:
        assert numbers[name] == pytest.approx(KNOWN[type][name], rel=0.1), name
    assert numbers.get("bfloat16", 0.0) == pytest.approx(START[type].get("bfloat16", 0.0))  # no row has it


@pytest.mark.parametrize("type", ["cpu", "gpu"])
def test_the_derivatives_are_those_of_differences(type: ProcessorType) -> None:
    table = Table.of(type, made(type, "one", seed=5, count=12))
    at = np.log(list(START[type].values())) + np.random.default_rng(2).normal(0, 0.3, (12, len(START[type])))
    _, slope = table.log_seconds(at)
    for number in range(at.shape[1]):
        step = np.zeros_like(at)
        step[:, number] = 1e-6
        differences = (table.log_seconds(at + step)[0] - table.log_seconds(at - step)[0]) / 2e-6
        assert slope[:, number] == pytest.approx(differences, abs=1e-4)


def test_a_device_without_rows_gets_what_the_others_of_its_class_have_and_few_rows_move_it_little() -> None:
    rows = made("cpu", "one", seed=7)
    slow = [replace(h, row=replace(h.row, device="two", value=2 * h.row.value)) for h in made("cpu", "two", 8, 3)]
    slow = [replace(h, device=replace(h.device, name="two")) for h in slow]
    table = Table.of("cpu", rows + slow)
    of_one = np.arange(len(table.rows)) < len(rows)
    without = fit(table, of_one).predicted(table, ~of_one)
    both = fit(table, np.ones(len(table.rows), bool)).predicted(table, ~of_one)
    measured = np.exp(table.measured[~of_one])
    assert without == pytest.approx(measured / 2, rel=0.15)  # as fast as the other device
    assert np.all(without < both) and np.all(both < measured)


def test_nothing_of_what_is_left_out_is_in_a_prediction() -> None:
    one, two = made("gpu", "one", seed=1, count=20), made("gpu", "two", seed=2, count=20)
    changed = [replace(h, row=replace(h.row, value=7 * h.row.value)) for h in one]
    before, after = (unseen(Table.of("gpu", rows + two), lambda h: h.row.device) for rows in (one, changed))
    assert after[:20] == pytest.approx(before[:20], rel=1e-9)
    assert not np.allclose(after[20:], before[20:], rtol=0.1)


def test_a_row_counts_by_the_root_of_how_many_its_device_and_source_have() -> None:
    rows = made("cpu", "one", 1, 9) + made("cpu", "two", 2, 4)
    assert fit_rates.weights(rows) == pytest.approx([1 / 3] * 9 + [1 / 2] * 4)


STATED = ("mb1-ssd", "yolo11m", "yolo11x", "yolov8n", "mlp-784-128-10", "fer-cnn")
"""Networks whose steps have stated costs, so that no network is built here."""


def test_the_command_predicts_by_the_formula_that_was_fitted() -> None:
    rows = measured_quantities(row for row in measurements() if row.model in STATED)
    for type in ("cpu", "gpu"):
        table = Table.of(type, [one for one in rows if one.quantity == "seconds"])
        for index, one in enumerate(table.rows):
            assert one.device.processor_class is not None
            entry = efficiency_of(one.device.processor_class, one.row.device, one.row.software.key)
            assert (entry.of, entry.runtime) == (one.row.device, one.row.software.key)
            known = entry.efficiency
            names = {f"memory of {name}": share for name, share in known.memory.items()}
            names |= {**known.arithmetic, **known.reduced}
            names |= {name: getattr(known, name) for name in ("kernel", "launch", "loading", "sample")}
            numbers = np.array([log(names[name]) for name in START[type]])
            expected = exp(table.log_seconds(np.tile(numbers, (len(table.rows), 1)))[0][index])
            assert one.predicted_value() == pytest.approx(expected, rel=1e-9)


def test_every_type_and_every_measured_device_has_an_entry() -> None:
    entries = load_fitted_rates().entries
    assert {"cpu", "gpu"} <= {entry.of for entry in entries if entry.runtime is None}
    timed = {row.device for row in measurements() if row.seconds_per_step is not None}
    assert timed <= {entry.of for entry in entries}
    assert all(0 < share <= 1 for entry in entries for share in entry.efficiency.arithmetic.values())


def test_held_out_predictions_name_the_rows_that_there_are() -> None:
    with (library_folder() / "processors" / "held_out.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["device"] for row in rows} <= {row.device for row in measurements()}
    for row in rows:
        for name, value in row.items():
            assert not name.startswith("unseen_") or float(value) > 0


def test_a_source_of_many_rows_counts_as_one_of_few_where_sources_have_factors() -> None:
    one, two = made("gpu", "one", seed=3), made("gpu", "two", seed=4, count=4)
    page = one[0].row.source.model_copy(update={"url": "https://example.org/another"})
    slow = [replace(h, row=replace(h.row, value=1.6 * h.row.value, source=page)) for h in two]
    table = Table.of("gpu", one + slow)
    every, of_one = np.ones(len(table.rows), bool), np.arange(len(table.rows)) < len(one)

    def median_error(width: float) -> float:
        predicted = fit(table, every, replace(WIDE, source=width)).predicted(table, of_one)
        return float(np.median(np.log(predicted) - table.measured[of_one]))

    # devices and runtimes have no numbers of their own, so that only the source can tell the rows apart
    assert abs(median_error(1e-3)) < 0.03
    assert median_error(1.0) == pytest.approx(log(1.6) / 2, abs=0.03)


def test_four_in_five_rows_lie_within_the_intervals_of_other_rows() -> None:
    """A loop over the file of held-out rows: of half of the pairs of device and source the interval, of the others how
    many it holds, each pair counted once."""
    with (library_folder() / "processors" / "held_out.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    loads = {(row.device, row.model, row.batch, source_of(row)): bool(row.includes) for row in measurements()}
    kinds: dict[tuple[str, bool | None], dict[tuple[str, str], list[dict[str, str]]]] = {}
    for row in rows:
        type = hardware(row["device"]).processor.type
        loading = loads[row["device"], row["model"], int(row["batch"]), row["source"]] if type == "gpu" else None
        kinds.setdefault((type, loading), {}).setdefault((row["device"], row["source"]), []).append(row)
    known = {(each.of, each.loading, each.seen): each for each in load_fitted_rates().intervals}
    assert sum(known[*kind, False].rows for kind in kinds) == sum(
        row.seconds_per_step is not None for row in measurements()
    )
    for column, seen in (("unseen_device", True), ("unseen_source", False)):
        inside = []
        for kind, pairs in kinds.items():
            several = Counter(source for _, source in pairs)
            used = {pair: of for pair, of in pairs.items() if not seen or several[pair[1]] > 1}
            off = {pair: [abs(log(float(r[column]) / float(r["seconds"]))) for r in of] for pair, of in used.items()}
            half = log(known[*kind, seen].factor)
            covered = sum(sum(each <= half * 1.01 for each in of) / len(of) for of in off.values()) / len(off)
            assert 0.7 <= covered <= 0.9, (kind, seen, covered)
            for left_out, of in off.items():  # by the other pairs alone
                others = sorted(
                    (each, 1 / len(them)) for pair, them in off.items() if pair != left_out for each in them
                )
                weight = np.cumsum([share for _, share in others])
                half = others[int(np.searchsorted(weight, 0.8 * weight[-1]))][0]
                inside.append(sum(each <= half for each in of) / len(of))
        assert 0.7 <= np.mean(inside) <= 0.9, (column, np.mean(inside))


@pytest.mark.slow(smaller="test_the_fit_finds_the_numbers_that_made_the_rows")
def test_the_committed_files_are_what_the_tool_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["fit_rates.py", "--check"])
    assert fit_rates.main() == 0
