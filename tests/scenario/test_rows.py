"""Rows of a comparison: each sets several fields, and has a label."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgefl.errors import ScenarioError
from edgefl.scenario import load
from edgefl.scenario.grid import grid_of

Tiny = Callable[..., dict[str, Any]]
LAYERWISE = {"name": "layerwise", "stages": 2, "rounds": 2}
ROWS: dict[str, dict[str, Any]] = {
    "fa": {},
    "prox": {"method.mu": 0.1, "method": "fedprox"},
    "skewed layers": {"schedule": LAYERWISE, "data.partition.image": {"dirichlet": 0.1}},
}


def test_a_row_is_the_scenario_with_its_fields(tiny: Tiny) -> None:
    cells = dict(load(tiny(compare={"rows": ROWS, "seed": [3, 4]})).combinations())
    by_hand = {
        "fa": tiny(),
        "prox": tiny(method={"name": "fedprox", "mu": 0.1}),
        "skewed-layers": tiny(
            schedule=LAYERWISE, data={**tiny()["data"], "partition": {"image": {"dirichlet": 0.1}}}
        ),
    }  # fmt: skip
    assert list(cells) == [f"{label},seed={seed}" for label in by_hand for seed in (3, 4)]
    for label, scenario in by_hand.items():
        for seed in (3, 4):
            assert cells[f"{label},seed={seed}"].to_data() == load({**scenario, "seed": seed}).to_data()


def test_a_resolved_scenario_has_the_same_rows(tiny: Tiny) -> None:
    # a resolved base has all fields, and a word such as `fedmd` keeps those that the new part takes
    base = tiny(method={"name": "creamfl"}, compare={"rows": {"own": {}, "md": {"method": "fedmd"}}})
    scenario = load(base)
    again = load(scenario.to_data())
    assert [cell.to_data() for _, cell in again.combinations()] == [
        cell.to_data() for _, cell in scenario.combinations()
    ]
    assert again.compare == scenario.compare


@pytest.mark.parametrize(
    ("rows", "line", "says"),
    [
        ("a: {}\n    b: {training.lrr: 1}", 10, "training.lrr: unknown key 'lrr'; did you mean 'lr'?"),
        ("a: {}\n    b: {trainin.lr: 1}", 10, "compare.rows.b.trainin.lr: unknown section 'trainin'; did you mean"),
        ("a: {}\n    b:\n      training.lr: 0", 11, "training.lr: must be greater than 0, not 0"),
        ("a: {}\n    b: {}", 10, "compare.rows.b: is the same scenario as row 'a'"),
        ("a: {method: fedprox, method.mu: 1}\n    b: {method: {name: fedprox, mu: 1}}", 10, "same scenario as row 'a'"),
        ("a:", 9, "compare.rows.a: must map paths to values, or be {} for the scenario as it is, not empty"),
        ("[a]", 8, "compare.rows: must map labels to fields, such as `prox: {method: fedprox}`, not [\"a\"]"),
        ("a: {name: x}", 9, "compare.rows.a.name: isn't set here: it is the same for all"),
        ("a: {compare: x}", 9, "compare.rows.a.compare: isn't set here: it is the same for all"),
        ("a: {seed: 2}", 9, "compare.rows.a.seed: isn't set here: all run over the same seeds"),
        ("a: {executor: processes}", 9, "compare.rows.a.executor: isn't set here: results don't depend on it"),
        ("a: {training..lr: 2}", 9, "compare.rows.a.training..lr: 'training..lr' isn't a path"),
        ("a: {training.batch: 2}", 9, "compare.rows.a.training.batch: is compared beside the rows, too"),
        ("' ': {}", 9, "a name is 1 to 60 printable characters"),
        ("a: {schedule: {name: layerwise, stages: 20}}", 9, "20 stages"),
    ],
)  # fmt: skip
def test_errors_of_rows_stand_on_their_line(tmp_path: Path, rows: str, line: int, says: str) -> None:
    file = tmp_path / "rows.yaml"
    file.write_text(
        "edgefl: 1\ndata: {clients: {image: 2}}\nmodel:\n  image: {tower: vit, blocks: 2}\nschedule: end-to-end\n"
        f"compare:\n  training.batch: [1, 2]\n  rows:\n    {rows}\n"
    )
    with pytest.raises(ScenarioError) as error:
        load(file)
    assert says in str(error.value)
    assert error.value.line == line


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("compare.rows=pro", "there is no row 'pro'; did you mean 'prox'?"),
        ("compare.rows=[fa, 3]", "there is no row '3'; allowed: fa, prox, skewed layers"),
        ("method=fediot", "prox sets it: choose a row with --set compare.rows=prox, or none with --set compare.rows="),
        ("method.name=fediot", "prox sets it: choose a row"),
        ("method.mu=2", "prox sets it: choose a row"),
        ("compare.schedule=[layerwise]", "schedule: is compared beside the rows, too"),
        ("compare.rows={x: {method: fedprox}, y: {method: fedprox}}", "y: is the same scenario as row 'x'"),
    ],
)
def test_overrides_that_contradict_rows_are_refused(tiny: Tiny, override: str, says: str) -> None:
    with pytest.raises(ScenarioError) as error:
        load(tiny(compare={"rows": ROWS}), [override])
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("overrides", "labels"),
    [
        (["training.lr=0.1"], ["fa", "prox", "skewed-layers"]),
        (["compare.rows=[skewed layers, fa]"], ["skewed-layers", "fa"]),
        (["compare.rows=[fa]", "method=fediot"], ["fa"]),
        (["compare.rows=prox"], ["tiny"]),
        (["compare.rows=null", "method=fediot"], ["tiny"]),
        (["compare=null", "method=fediot"], ["tiny"]),
        (["compare.rows={a: {}}", "method=fediot"], ["a"]),
        (["compare.seed=[1, 2]"], [f"{row},seed={s}" for row in ("fa", "prox", "skewed-layers") for s in (1, 2)]),
    ],
)
def test_overrides_choose_rows(tiny: Tiny, overrides: list[str], labels: list[str]) -> None:
    combinations = load(tiny(compare={"rows": ROWS}), overrides).combinations()
    assert [label for label, _ in combinations] == labels


def test_one_row_is_a_scenario_that_compares_nothing(tiny: Tiny) -> None:
    scenario = load(tiny(compare={"rows": ROWS}), ["compare.rows=prox", "method.mu=0.5"])
    assert scenario.to_data() == load(tiny(method={"name": "fedprox", "mu": 0.5})).to_data()


def test_rows_multiply_in_a_sweep_and_stand_in_no_grid_file(tiny: Tiny, tmp_path: Path) -> None:
    scenario = load(tiny(compare={"rows": ROWS}))
    grid = grid_of(scenario, ["training.batch=4,8"])
    assert grid.paths == ("rows", "training.batch")
    assert grid.row_of == {f"{row.replace(' ', '-')},batch={size}": row for row in ROWS for size in (4, 8)}
    with pytest.raises(ScenarioError, match="method: is compared beside the rows"):
        grid_of(scenario, ["method=fedavg,fediot"])
    file = tmp_path / "grid.yaml"
    file.write_text("rows: {a: {}}\n")
    with pytest.raises(ScenarioError, match=r"grid.yaml:1: rows: rows stand in a scenario's compare"):
        grid_of(scenario, file=str(file))
