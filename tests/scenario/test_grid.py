from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import edgefl
from edgefl.errors import DataError, EdgeflError, RunError, ScenarioError, UnknownName
from edgefl.scenario import load
from edgefl.scenario.grid import grid_of

Tiny = Callable[..., dict[str, Any]]
BASE: dict[str, Any] = {"model": {"image": {}, "text": {}}}

DECLARED = {"source": "declared", "clients": {"image": 2}, "samples": 20,
            "shapes": {"image": {"channels": 1, "size": 32, "classes": 12}}}  # fmt: skip


@pytest.fixture
def scenario(tiny: Tiny) -> dict[str, Any]:
    return tiny(data=DECLARED, compare={"training.batch": [4, 8]})


def test_a_file_what_is_compared_and_the_command_line_multiply(scenario: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "grid.yaml"
    file.write_text("schedule: [end-to-end, {name: layerwise, stages: 2}]\ntraining.checkpointing: [false, true]\n")
    grid = grid_of(load(scenario), ["seed=1,2,3"], str(file))
    assert grid.paths == ("training.batch", "schedule", "training.checkpointing", "seed")
    assert len(grid.cells) == len(dict(grid.cells)) == 2 * 2 * 2 * 3
    label, last = grid.cells[-1]
    assert label == "batch=8,layerwise,checkpointing=true,seed=3"
    assert (last.training.batch, last.schedule_name, last.training.checkpointing, last.seed) == (
        8,
        "layerwise",
        True,
        3,
    )
    # who names an axis last decides its values
    assert len(grid_of(load(scenario), ["training.batch=2", "training.checkpointing=false"], str(file)).cells) == 2


def test_axes_multiply_and_keep_commas_inside_brackets() -> None:
    scenario = load(BASE)
    cells = grid_of(scenario, ["fleet.budgets.memory=16MiB, 32 MiB", "training.batch={image: 1, text: 2},8"]).cells
    assert [label for label, _ in cells] == [
        "memory=16MiB,batch=image=1+text=2", "memory=16MiB,batch=8",
        "memory=32MiB,batch=image=1+text=2", "memory=32MiB,batch=8",
    ]  # fmt: skip
    assert cells[0][1].fleet.budgets.memory == (2**24, 2**24)
    assert cells[0][1].training.batch == {"image": 1, "text": 2}
    assert grid_of(scenario, ["fleet.budgets.memory=[1 B, 2 B],[3 B, 4 B]"]).cells[1][1].fleet.budgets.memory == (3, 4)
    assert [one.method_name for _, one in grid_of(scenario, ["method=fedavg,fedcola"]).cells] == ["fedavg", "fedcola"]
    assert grid_of(scenario).cells == (("scenario", scenario),)


@pytest.mark.parametrize(
    ("axis", "says"),
    [
        ("training.lr", "an axis is path=value,value"),
        ("training.lr=", "an axis is path=value,value"),
        ("training.lr=1,,2", "a value is missing beside a comma"),
        ("training.lr=1,1", "1 is listed twice"),
        ("training.lr=1,0", "training.lr: must be greater than 0, not 0"),
        ("training.lrr=1,0", "training.lrr: unknown key 'lrr'; did you mean 'lr'?"),
        ("trainin.lr=1,0", "trainin: unknown key 'trainin'; did you mean 'training'?"),
        ("seed=" + ",".join(map(str, range(10_001))), "10,001 cells are more than 10,000"),
    ],
)
def test_wrong_axes(axis: str, says: str) -> None:
    scenario = load(BASE)
    with pytest.raises(ScenarioError) as caught:
        grid_of(scenario, [axis])
    assert says in str(caught.value)
    assert axis[:10] in str(caught.value) or "cells" in says


WRONG = {
    "a list": ("- 1\n", r"grid.yaml:1: a grid maps paths to lists of values"),
    "empty": ("", r"grid.yaml: a grid maps paths to lists of values"),
    "no list": ("training.batch: 8\n", r"grid.yaml:1: training.batch: must be a list of the values to compare, not 8"),
    "nothing to try": ("\ntraining.batch: []\n", r"grid.yaml:2: training.batch: must be a list .* not \[\]"),
    "a section inside": ("training: {batch: [8]}\n", r"grid.yaml:1: training: must be a list"),
    "an unknown section": (
        "trainning.batch: [8]\n",
        r"grid.yaml:1: trainning.batch: 'trainning' can't be compared; did you",
    ),
    "an unknown field": (
        "training.bacth: [8, 16]\n",
        r"grid.yaml:1: training.bacth: unknown key 'bacth'; did you mean",
    ),
    "a wrong value": ("training.batch:\n- 8\n- -1\n", r"grid.yaml:3: training.batch"),
    "twice the same": ("training.batch: [8, 8]\n", r"8 is listed twice"),
    "not YAML": ("training.batch: [8\n", r"grid.yaml:"),
    "too many": (
        f"seed: {list(range(101))}\nround.quorum: {list(range(1, 102))}\n",
        r"2 of training.batch x 101 of seed x 101 of round.quorum = 20,402 cells are more",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_grid_is_told_with_its_line(scenario: dict[str, Any], tmp_path: Path, wrong: str) -> None:
    text, message = WRONG[wrong]
    (tmp_path / "grid.yaml").write_text(text)
    with pytest.raises(ScenarioError, match=message) as caught:
        edgefl.sweep(scenario, grid=tmp_path / "grid.yaml", out=tmp_path / "new")
    assert "\n" not in str(caught.value) and caught.value.exit_code == 2
    assert not (tmp_path / "new").exists()


def test_wrong_words_are_told_before_anything_is_computed(scenario: dict[str, Any], tmp_path: Path) -> None:
    cases: list[tuple[dict[str, Any], type[EdgeflError], str]] = [
        ({"grid": tmp_path / "none.yaml"}, ScenarioError, "none.yaml: there is no such file"),
        ({"vary": ["seed=1", "seed=2"]}, ScenarioError, "seed: is varied twice"),
        ({"vary": ["seed="]}, ScenarioError, "an axis is path=value,value"),
        ({"value": "round_second"}, UnknownName, "unknown value 'round_second'; did you mean 'round_seconds'"),
        ({"value": "metrics.image.accuracy"}, RunError, "known for trained cells only: add --train"),
        ({"train": True}, RunError, "add --out DIR"),
        ({"train": True, "out": tmp_path / "new"}, DataError, "no samples to train on"),
        ({"figure": tmp_path / "map.jpg"}, RunError, "its name ends in .jpg"),
        ({"figure": tmp_path / "no" / "map.png"}, RunError, "the folder .* doesn't exist"),
    ]
    for words, kind, message in cases:
        with pytest.raises(kind, match=message):
            edgefl.sweep(scenario, **words)
    assert list(tmp_path.iterdir()) == []
