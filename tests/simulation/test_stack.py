"""Runs with ``training.stack``: those without it but for rounding, whoever computes them and wherever they were cut."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from edgefl_games import TABLES
from tensors import assert_equal_tensors

import edgefl
from edgefl.commands.run.fingerprint import fixed_part
from edgefl.errors import ScenarioError
from edgefl.scenario import load
from edgefl.training import Inline, Task
from edgefl.work.stacking import loop

Tiny = Callable[..., dict[str, Any]]
TOLERANCE = 1e-4
"""Of the weights relative to what was learnt, and of losses and scores (docs/explanation/performance.md)."""


class Stopped(Exception):
    """A run that is cut off."""


@pytest.fixture(autouse=True)
def _nothing_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "_TOLD", set())


@pytest.fixture
def scenario(tiny: Tiny) -> Callable[..., dict[str, Any]]:
    """Twelve clients of one class and four of another kind, of whom some have other numbers of batches."""

    def make(stack: Any, training: Mapping[str, Any] | None = None, **sections: Any) -> dict[str, Any]:
        data = {"source": "glyphs", "clients": {"image": 12, "text": 4}, "partition": {"quantity": 1.0},
                "samples": 24, "validation": 20, "test": 20}  # fmt: skip
        options = {"batch": 8, "optimizer": "sgd", "lr": 0.02, "stack": stack, **(training or {})}
        base = {"data": data, "training": options, "schedule": {"name": "end-to-end", "rounds": 2}}
        return tiny(**base, round={"cohort": 1.0}) | sections

    return make


@pytest.fixture
def stacked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of clients that were trained at once, in order."""
    sizes: list[int] = []
    submit = Inline.submit

    def counting(self: Inline, task: Task) -> Any:
        if task.others:
            sizes.append(1 + len(task.others))
        return submit(self, task)

    monkeypatch.setattr(Inline, "submit", counting)
    return sizes


def without_key_biases(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Weights without the biases of attention's keys, whose gradient is zero but for rounding (test_stacked.py)."""
    return {
        name: torch.cat([tensor.chunk(3)[0], tensor.chunk(3)[2]]) if name.endswith("qkv.bias") else tensor
        for name, tensor in tensors.items()
    }


def weights(run: Any) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(run.path / "weights.safetensors")


def rows(run: Any, table: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run.path / f"{table}.jsonl").read_text().splitlines()]


def assert_close(one: Any, other: Any) -> None:
    """Values are equal, but for floats of what was learnt."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for name in one:
            assert_close(one[name], other[name])
    elif isinstance(one, float) and isinstance(other, float):
        assert one == pytest.approx(other, rel=TOLERANCE)
    else:
        assert one == other


@pytest.mark.parametrize(
    "training", [{}, {"optimizer": "adam", "lr": 1e-3, "epochs": 2}], ids=lambda t: t.get("optimizer", "sgd")
)
def test_a_run_with_stacks_is_one_without_but_for_rounding(
    scenario: Callable[..., dict[str, Any]], stacked: list[int], tmp_path: Path, training: dict[str, Any]
) -> None:
    off = edgefl.run(scenario("off", training), output=tmp_path / "off")
    assert not stacked
    on = edgefl.run(scenario(4, training), output=tmp_path / "on")
    assert set(stacked) <= {2, 3, 4} and 4 in stacked and len(set(stacked)) > 1
    learnt = {"loss", "losses", "metrics"}
    for table in TABLES:
        assert len(rows(on, table)) == len(rows(off, table))
        for one, other in zip(rows(on, table), rows(off, table), strict=True):
            assert one.keys() == other.keys()
            for name in one:
                (assert_close if name in learnt else assert_same)(one[name], other[name])
    start = weights(edgefl.run(scenario("off", {**training, "lr": 1e-12}), output=tmp_path / "start"))
    start, found, expected = map(without_key_biases, (start, weights(on), weights(off)))
    gap = torch.cat([(found[n] - expected[n]).flatten() for n in expected]).norm()
    moved = torch.cat([(start[n] - expected[n]).flatten() for n in expected]).norm()
    assert 0 < gap < TOLERANCE * moved


def assert_same(one: Any, other: Any) -> None:
    assert one == other


def test_a_run_that_was_cut_goes_on_to_the_same_bytes(
    scenario: Callable[..., dict[str, Any]], stacked: list[int], tmp_path: Path
) -> None:
    given = scenario(4, schedule={"name": "end-to-end", "rounds": 3})
    whole = edgefl.run(given, output=tmp_path / "whole")

    def stop(event: str, facts: Mapping[str, Any]) -> None:
        if event == "record" and facts["round"] == 2:
            raise Stopped

    with pytest.raises(Stopped):
        edgefl.run(given, output=tmp_path / "cut", on_progress=stop)
    resumed = edgefl.run(resume=tmp_path / "cut")
    assert stacked
    assert_equal_tensors(weights(resumed), weights(whole))
    for table in TABLES:
        assert (whole.path / f"{table}.jsonl").read_bytes() == (resumed.path / f"{table}.jsonl").read_bytes()


@pytest.mark.slow
def test_workers_stack_to_the_same_bits(scenario: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    inline = edgefl.run(scenario(4), output=tmp_path / "inline")
    executor = {"name": "processes", "workers": 2, "device": "cpu"}
    workers = edgefl.run(scenario(4, executor=executor), output=tmp_path / "workers")
    assert_equal_tensors(weights(workers), weights(inline))
    for table in TABLES:
        assert (inline.path / f"{table}.jsonl").read_bytes() == (workers.path / f"{table}.jsonl").read_bytes()


@pytest.mark.parametrize("policy", ["asynchronous", "buffered"])
def test_overlapping_rounds_train_one_by_one(
    scenario: Callable[..., dict[str, Any]], stacked: list[int], tmp_path: Path, policy: str
) -> None:
    round = {"policy": policy, "cohort": 6}
    off = edgefl.run(scenario("off", round=round), output=tmp_path / "off")
    on = edgefl.run(scenario(4, round=round), output=tmp_path / "on")
    assert not stacked
    assert_equal_tensors(weights(on), weights(off))


def test_what_cannot_be_stacked_has_the_bits_of_off(
    scenario: Callable[..., dict[str, Any]], stacked: list[int], tmp_path: Path
) -> None:
    training = {"precision": "bfloat16"}
    off = edgefl.run(scenario("off", training), output=tmp_path / "off")
    with pytest.warns(
        RuntimeWarning, match="training.stack: works of kind '(image|text)' train one by one: .*bfloat16"
    ):
        on = edgefl.run(scenario(4, training), output=tmp_path / "on")
    assert not stacked
    assert_equal_tensors(weights(on), weights(off))


@pytest.mark.parametrize("value", [1, 0, -4, 2.5, "on", True, None])
def test_what_is_no_number_of_clients_is_refused(scenario: Callable[..., dict[str, Any]], value: Any) -> None:
    with pytest.raises(ScenarioError, match=r"training\.stack: must be .*off"):
        load(scenario(value))


def test_it_is_part_of_what_a_run_is_made_of_unless_it_is_off(scenario: Callable[..., dict[str, Any]]) -> None:
    assert "stack" not in fixed_part(load(scenario("off")))["training"]
    assert fixed_part(load(scenario(4)))["training"]["stack"] == 4
    assert load(load(scenario(4)).resolved()).training.stack == 4
