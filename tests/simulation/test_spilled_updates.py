"""Updates that a rule needs all at once: counted beforehand, on disk above a limit, and the same bits wherever."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tensors import assert_equal_tensors

import edgefl
from edgefl.cells.needs import check_updates, held_updates
from edgefl.errors import ScenarioError
from edgefl.runs.tensor_file import TensorFile
from edgefl.scenario import load
from edgefl.setup.compose import compose

Tiny = Callable[..., dict[str, Any]]
Small = Callable[..., dict[str, Any]]


@pytest.fixture
def small(tiny: Tiny) -> Small:
    def make(**sections: Any) -> dict[str, Any]:
        data = {"source": "glyphs", "clients": {"image": 6, "text": 2}, "partition": {"quantity": 1.0},
                "samples": 40, "validation": 20, "test": 20}  # fmt: skip
        schedule = {"name": "end-to-end", "rounds": 2}
        return tiny(method="fedavg", data=data, schedule=schedule, round={"cohort": 1.0}) | sections

    return make


def limited(scenario: dict[str, Any], memory: Any) -> dict[str, Any]:
    return {**scenario, "executor": {"name": "inline", "device": "cpu", "updates_memory": memory}}


BUFFERED = {"policy": "buffered", "cohort": 4, "buffer": 3}
CASES = {
    "median": {"aggregation": {"rule": "median"}},
    "trimmed, clipped, codec": {"aggregation": {"rule": "trimmed-mean", "trim": 0.2, "clip": 0.5},
                                "payload": {"up": {"top_k": 0.5}}},
    "multi-krum, slices": {"aggregation": {"rule": "multi-krum"}, "schedule": {"name": "heterofl", "rounds": 2},
                           "fleet": {"budgets": {"memory": "100..400 KiB"}}},
    "scaffold": {"method": "scaffold", "training": {"optimizer": "sgd", "lr": 0.05}},
    "buffered": {"round": BUFFERED},
    "semi-synchronous": {"round": {"policy": "semi-synchronous", "cohort": 1.0, "window": 0.1}},
    "asynchronous": {"round": {"policy": "asynchronous", "cohort": 4}},
}  # fmt: skip


QUICK = ("median", "trimmed, clipped, codec", "buffered")


@pytest.mark.parametrize("case", [c if c in QUICK else pytest.param(c, marks=pytest.mark.slow) for c in CASES])
def test_the_bits_are_those_of_updates_in_memory(
    small: Small, tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing fits into the memory, some of it does, and everything."""
    added: list[int] = []

    class Counted(TensorFile):
        def add(self, tensors: Any) -> Any:
            added.append(len(tensors))
            return super().add(tensors)

    monkeypatch.setattr("edgefl.simulation.learning.training.TensorFile", Counted)
    scenario, spilled_each = small(**CASES[case]), []
    held = edgefl.run(limited(scenario, "1 GiB"), out=tmp_path / "held")
    for memory in (0, "300 KiB"):
        assert not added
        run = edgefl.run(limited(scenario, memory), out=tmp_path / f"run {memory}")
        assert_equal_tensors(run.weights(), held.weights())
        assert run.records("clients") == held.records("clients")
        assert sorted(p.name for p in run.path.iterdir()) == sorted(p.name for p in held.path.iterdir())
        spilled_each.append(len(added))
        added.clear()
    finished = [row for row in held.records("clients") if row["outcome"] == "finished"]
    assert len(finished) == sum(row["finished"] for row in held.records("rounds"))
    payloads = sum(len(row["upload_bytes_by_payload"]) for row in finished)  # each is added by itself
    assert spilled_each[0] == payloads > spilled_each[1]


def test_what_is_on_disk_is_read_as_it_was_written(tmp_path: Path) -> None:
    spill = TensorFile(tmp_path)
    tensors = [{"a/w": torch.randn(3, 5), "a/n": torch.tensor(7), "b/empty": torch.empty(0, 4)},
               {"a/w": torch.randn(2).to(torch.bfloat16)}]  # fmt: skip
    first = spill.add(tensors[0])
    assert_equal_tensors(dict(first), tensors[0])
    second = spill.add(tensors[1])
    assert_equal_tensors(dict(first), tensors[0])
    assert_equal_tensors(dict(second), tensors[1])
    assert list(tmp_path.iterdir()) == []


def held(scenario: dict[str, Any]) -> tuple[int, int]:
    found = held_updates(compose(load({"edgefl": 1, **scenario})))
    return found.updates, found.bytes


def test_what_a_round_holds_is_counted_beforehand(small: Small) -> None:
    kinds = compose(load({"edgefl": 1, **small()})).method.setting.kinds
    image, text = (sum(s.bytes for s in kinds[k].parameters().values()) for k in ("image", "text"))
    robust = {"aggregation": {"rule": "median"}}
    assert held(small()) == (0, 0) == held(small(round={"policy": "asynchronous"}))
    assert held(small(**robust)) == (8, 6 * image + 2 * text)
    assert held(small(round={"cohort": 4}, **robust)) == (4, 3 * image + text)
    assert held(small(round={"cohort": 4, "stratify": False}, **robust)) == (4, 4 * max(image, text))
    assert held(small(round=BUFFERED)) == (3, 3 * max(image, text))
    layerwise = {"name": "layerwise", "stages": 2, "rounds": 2}
    assert 0 < held(small(schedule=layerwise, **robust))[1] < 6 * image + 2 * text


def test_more_than_memory_and_disk_is_refused_with_the_number(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = load({"edgefl": 1, **limited(small(aggregation={"rule": "median"}), "1 KiB")})
    setup, told = compose(scenario), list[str]()
    check_updates(scenario, setup, tmp_path / "new" / "run", told.append)
    assert len(told) == 1 and f"at {tmp_path}: those beyond the memory lie in a temporary file there" in told[0]
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=2048))
    expected = (
        r"round\.cohort: the 8 updates of a round need [\d.]+ [KM]iB on the server; this machine has 1 KiB for .*"
    )
    expected += r"and 2 KiB at .*; allowed: a smaller round\.cohort, or a rule that averages"
    with pytest.raises(ScenarioError, match=expected) as caught:
        edgefl.run(limited(small(aggregation={"rule": "median"}), "1 KiB"), out=tmp_path / "run")
    assert caught.value.exit_code == 2 and not (tmp_path / "run").exists()
    with pytest.raises(ScenarioError, match=r"or a method that adds updates up as they land \(scaffold reads all"):
        edgefl.validate(limited(small(**CASES["scaffold"]), "1 KiB"))
    with pytest.raises(ScenarioError, match=r"round\.buffer: .* or round.policy: synchronous"):
        edgefl.validate(limited(small(round=BUFFERED), "1 KiB"))
