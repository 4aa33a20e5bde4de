"""What ``edgefl sweep --page`` offers, refuses and keeps small."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from sweeps import asked_of, devices_page, fleet_page

import edgefl
from edgefl.commands.sweep.page import choices, page
from edgefl.drawing.sliders.page_columns import PageColumns
from edgefl.drawing.sliders.page_data import PackedColumn
from edgefl.errors import RunError, ScenarioError
from edgefl.scenario import load

Tiny = Callable[..., dict[str, Any]]

FLEET = {
    "devices": {"raspberry-pi-3b-plus": 3, "raspberry-pi-4-4gb": 4},
    "links": {"wifi-5": 4, "lte": 3},
    "budgets": {"memory": "400 kB..1.2 MB"},
}

DECLARED = {"source": "declared", "clients": {"image": 4, "text": 3}, "samples": 40,
            "shapes": {"image": {"channels": 1, "size": 32, "classes": 12}, "text": {"vocabulary": 200}}}  # fmt: skip


def numbers(column: PackedColumn) -> np.ndarray[Any, Any]:
    """The numbers of a column, as a page reads them."""
    read = np.frombuffer(base64.b64decode(column.data), np.dtype(column.type).newbyteorder("<"))
    return read if len(read) == column.length else np.full(column.length, read[0])


@given(
    arrays.arrays(np.float64, st.integers(0, 6), elements=st.floats(0, allow_nan=False))
    | arrays.arrays(np.int64, st.integers(0, 6), elements=st.integers(0, 2**53))
)
def test_a_column_has_the_same_numbers(values: np.ndarray[Any, Any]) -> None:
    columns = PageColumns()
    name = columns.add(values)
    told = columns.untold()
    assert np.array_equal(numbers(told[name]), values) and columns.untold() == {}
    assert columns.add(values.copy()) == name and columns.untold() == {}


def test_a_column_takes_few_bytes() -> None:
    columns = PageColumns()
    names = [columns.add(np.array(values)) for values in ([0, 255], [0, 256], [0, 2**16], [0.5, 1], [7.0] * 1000)]
    told = columns.untold()
    assert [told[name].type for name in names] == ["u1", "u2", "u4", "f8", "u1"]
    assert numbers(told[names[-1]]).tolist() == [7.0] * 1000 and len(told[names[-1]].data) == 4


def test_without_axes_it_proposes_schedules_batches_and_what_an_adapter_has(tiny: Tiny) -> None:
    plain = choices.propose_axes(load(tiny()))
    assert [axis.partition("=")[0] for axis in plain] == ["schedule", "training.batch", "training.checkpointing"]
    assert "training.batch=8,4,16" in plain
    adapted = choices.propose_axes(load(tiny(adapter={"name": "lora", "rank": 4})))
    assert "adapter.rank=4,2,8" in adapted and "training.precision=float32,bfloat16" in adapted
    compared = choices.propose_axes(
        load(tiny(compare={"schedule.rounds": [2, 3], "training": [{"batch": 8}, {"batch": 4}]}))
    )
    assert compared == []  # what the scenario compares is left alone


def test_a_cell_that_cannot_be_run_is_kept_with_the_reason_that_sweep_gives(tiny: Tiny) -> None:
    axes = ["schedule={name: layerwise, stages: 5, rounds: 5},end-to-end", "training.batch=4,8"]
    record = fleet_page(tiny(fleet=FLEET), axes)
    rows = edgefl.sweep(tiny(fleet=FLEET), axes).to_data()["rows"]
    assert [cell.refused or None for cell in record.cells] == [row.get("refused") for row in rows]
    assert [cell.label for cell in record.cells] == [row["label"] for row in rows]
    assert [cell.at for cell in record.cells] == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert sum(bool(cell.refused) for cell in record.cells) == 2 and record.start == 3
    assert [axis.own for axis in record.axes] == [1, 1]


def test_workers_price_the_same_and_the_scenario_is_shown_first(tiny: Tiny) -> None:
    axes = ["training.batch=4,8"]
    alone, beside = (fleet_page(tiny(fleet=FLEET), axes, jobs).to_data() for jobs in (1, 2))
    assert alone | {"predictions": 0} == beside | {"predictions": 0}
    assert alone["cells"][alone["start"]]["at"] == [1] == [alone["axes"][0]["own"]]


def test_ten_thousand_clients_take_less_than_four_megabytes(tiny: Tiny) -> None:
    scenario = tiny(
        data={**DECLARED, "clients": {"image": 6000, "text": 4000}, "samples": "40..50"},
        fleet={"devices": ["phone-entry", "phone-mid", "raspberry-pi-4-4gb", "macbook-air-m1"],
               "links": ["lte", "wifi-5"], "budgets": FLEET["budgets"]},
    )  # fmt: skip
    record = fleet_page(scenario, ["training.batch=4,8"])
    assert record.fleets[0].rows == 10_000
    assert len(json.dumps(record.to_data(), separators=(",", ":"))) < 400_000


# --- bad input -------------------------------------------------------------------------------------------------------


def test_too_many_cells_are_counted_and_named(tiny: Tiny, tmp_path: Path) -> None:
    axes = ["training.batch=" + ",".join(map(str, range(1, 41))), "seed=" + ",".join(map(str, range(30)))]
    with pytest.raises(ScenarioError, match=r"40 of training\.batch x 30 of seed = 1,200 cells are more than 1,000"):
        edgefl.sweep(tiny(), axes, page=tmp_path / "page.html")


def test_a_page_that_would_be_too_large_is_not_written(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "MOST_BYTES", 2000)
    with pytest.raises(
        RunError, match=r"the page would have .* MB for 1 cell of 7 clients; .* leave values out of --vary"
    ):
        edgefl.sweep(tiny(), ["training.batch=8"], page=tmp_path / "page.html", jobs=1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"page": "gone/page.html"}, "the folder gone doesn't exist"),
        ({"page": "page.pdf"}, r"its name ends in \.pdf; allowed: \.html"),
        ({"page": "page.html", "jobs": 0}, "jobs must be 1 or more, not 0"),
        ({"page": "page.html", "shard": "1/2", "out": "rows"}, "price all cells on this machine: leave out --shard"),
    ],
)
@pytest.mark.parametrize("devices", ["", "all"])
def test_what_cannot_be_is_refused_before_anything_is_read(
    tiny: Tiny, words: dict[str, Any], message: str, devices: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunError, match=message):
        edgefl.sweep({"method": "none such"}, devices=devices or (), **words)
    assert list(tmp_path.iterdir()) == []


def test_a_page_is_of_one_scenario(tiny: Tiny, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="--page takes one scenario, whose choices it has, and not 2"):
        edgefl.sweep([tiny(), tiny()], page=tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []


def test_if_no_cell_can_be_run_it_says_why(tiny: Tiny, tmp_path: Path) -> None:
    axes = ["schedule={name: layerwise, stages: 5, rounds: 5},{name: layerwise, stages: 6, rounds: 6}"]
    with pytest.raises(ScenarioError, match="more than the 2 blocks"):
        edgefl.sweep(tiny(), axes, page=tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []


def test_rows_and_page_are_of_the_same_cells(tiny: Tiny, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    texts = {**DECLARED, "clients": {"text": 7}}
    scenario = tiny(fleet=FLEET, data=texts, model={"text": {"blocks": 2, "width": 16, "heads": 2, "tokens": 12}})
    result = edgefl.sweep(scenario, page=file, jobs=1)
    cells = [cell.label for cell in asked_of(scenario).cells()]
    assert [row.label for row in result.rows] == cells and len(cells) > 10
    assert result.notices == [f"page: {file}"] and all(f'"label":"{label}"' in file.read_text() for label in cells)


# --- devices ---------------------------------------------------------------------------------------------------------


def test_devices_are_answered_as_in_the_table(tiny: Tiny) -> None:
    record = devices_page(tiny(fleet=FLEET), ["training.batch=4,16"])
    checks = edgefl.sweep(tiny(fleet=FLEET), ["training.batch=4,16"], devices="all").devices or {}
    assert [cell.label for cell in record.cells] == [*checks] == ["batch=4", "batch=16"]
    for cell, check in zip(record.cells, checks.values(), strict=True):
        found = {
            (record.devices[line.device].name, line.kind): answer
            for line, answer in zip(record.lines, cell.answers, strict=True)
        }
        assert len(found) == len(check.rows) and record.link == check.link
        for row in check.rows:
            answer = found[row.device, row.whose]
            assert answer is not None
            assert (answer.answer, answer.reason, answer.binding) == (row.answer, row.reason, row.binding)
            assert answer.peak_memory_bytes == row.peak_memory_bytes and answer.virtual_seconds == row.virtual_seconds
