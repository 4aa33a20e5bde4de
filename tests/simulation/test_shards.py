"""Clients of a large cohort whose changes are added up where they train: their sums don't depend on the executor."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from edgefl_games import Games
from tensors import assert_equal_tensors

import edgefl
from edgefl import registry
from edgefl.methods import Method, ServerState, Update
from edgefl.methods.aggregation.mean import Fold
from edgefl.registry.registered import PARTS
from edgefl.simulation.learning import shards
from edgefl.simulation.learning.shards import largest_shard
from edgefl.training import Assignment, Inline
from edgefl.training.summed import Adder
from edgefl.work.sums import SharedSum

Tiny = Callable[..., dict[str, Any]]
WORKERS = {"name": "processes", "workers": 2, "device": "cpu"}
FEW = {"source": "glyphs", "clients": {"image": 12, "text": 4}, "partition": {"quantity": 1.0},
       "samples": 40, "validation": 20, "test": 20}  # fmt: skip


class AtOnce(Method):
    """FedAvg that gets all updates at once."""

    def aggregate(self, state: ServerState, updates: Sequence[Update]) -> ServerState:
        return state.with_tensors(self.combine(state, updates, lambda address, cohort: {address: 1.0}))


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    edgefl.register("method", "at-once")(AtOnce)
    yield
    PARTS.clear()
    registry.forget()


@pytest.fixture
def small(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> Tiny:
    """Scenarios whose twelve image clients make shards of up to four."""
    monkeypatch.setattr(shards, "FEWEST_SHARDS", 3)

    def make(**sections: Any) -> dict[str, Any]:
        schedule = {"name": "end-to-end", "rounds": 1}
        return tiny(data=FEW, schedule=schedule, round={"cohort": 1.0}) | sections

    return make


@pytest.fixture
def merged(monkeypatch: pytest.MonkeyPatch) -> list[Update]:
    """An update of each sum of several clients that the server adds, in order."""
    found: list[Update] = []
    merge = Fold.merge

    def noted(fold: Fold, update: Update, means: Any) -> None:
        found.append(update)
        merge(fold, update, means)

    monkeypatch.setattr(Fold, "merge", noted)
    return found


def test_only_large_cohorts_have_shards_and_those_are_small() -> None:
    assert [largest_shard(n) for n in (1, 64, 127, 128, 200, 1000, 1024, 10**7)] == [1, 1, 1, 2, 3, 15, 16, 16]


CASES: dict[str, dict[str, Any]] = {
    "two rounds": {"schedule": {"name": "end-to-end", "rounds": 2}},
    "compensated": {"aggregation": {"compensation": True, "optimizer": "adam", "lr": 0.01}},
    "slices": {"schedule": {"name": "heterofl", "rounds": 1}, "fleet": {"budgets": {"memory": "100..400 KiB"}}},
    "over-selected": {"round": {"cohort": 0.7, "over_selection": 0.5}, "executor": {"clock": "events"}},
    "sparse": {"payload": {"up": {"top_k": 0.2}}},
    "two bytes down": {"payload": {"up": "bfloat16", "down": "bfloat16"}},
    "attacked": {"fleet": {"failures": {"attack": {"name": "sign-flip", "share": 0.3}, "training": "10%"}}},
    "all measured": {"training": {"batch": 8, "measure": "all"}},
    "batch norm": {
        "model": {"image": {"tower": "resnet", "stem": "small"}},
        "data": {"source": "glyphs", "clients": {"image": 7}, "samples": 10, "validation": 20, "test": 20},
    },
}  # fmt: skip
SLOW = ("compensated", "over-selected", "two bytes down", "all measured", "batch norm")


@pytest.mark.slow(smaller="test_a_sum_is_what_a_loop_adds_up")
@pytest.mark.parametrize("case", [pytest.param(c, marks=pytest.mark.slow) if c in SLOW else c for c in CASES])
def test_the_bits_are_those_of_any_executor(small: Tiny, merged: list[Update], tmp_path: Path, case: str) -> None:
    sections = CASES[case]
    inline = edgefl.run(small(**sections), out=tmp_path / "inline")
    sums = len(merged)
    executor = {**WORKERS, **sections.get("executor", {})}
    workers = edgefl.run(small(**sections | {"executor": executor}), out=tmp_path / "workers")
    assert sums and len(merged) == 2 * sums
    assert_equal_tensors(workers.weights(), inline.weights())
    assert workers.records("clients") == inline.records("clients")
    assert workers.records("rounds") == inline.records("rounds")
    if case == "two rounds":
        assert sums == 2 * 3  # of four image clients each; the four text clients send their updates one by one
        return  # training makes more of what rounding makes different
    expected = edgefl.run(small(**sections, method="at-once"), out=tmp_path / "at-once").weights()
    for address, value in inline.weights().items():
        torch.testing.assert_close(value, expected[address], rtol=1e-3, atol=1e-6)


UNSHARED: dict[str, dict[str, Any]] = {
    "clip": {"aggregation": {"clip": 0.5}},
    "median": {"aggregation": {"rule": "median"}},
    "kept": {"method": {"name": "fedavg", "personal": ["norm"]}},
    "weights of its own": {"method": "fednova", "training": {"batch": 8, "optimizer": "sgd"}},
    "asynchronous": {"round": {"policy": "buffered", "cohort": 1.0}},
}


@pytest.mark.parametrize("case", ["clip", "kept", *(pytest.param(c, marks=pytest.mark.slow) for c in UNSHARED)])
def test_updates_that_are_needed_one_by_one_are_sent_one_by_one(
    small: Tiny, merged: list[Update], tmp_path: Path, case: str
) -> None:
    run = edgefl.run(small(**UNSHARED[case]), out=tmp_path / "run")
    assert not merged and run.records("rounds")[0]["finished"] > 4


class Spoiling(Inline):
    """Trains every task; the updates of some clients become infinite before anyone sees them."""

    def __init__(self, inner: Inline, clients: Sequence[int]):
        self.inner, self.clients = inner, clients
        self.sizes: list[int] = []

    def submit(self, task: Assignment) -> Future[Update]:
        future: Future[Update] = Future()
        self.sizes.append(1 + len(task.others))
        adder = Adder(lambda size: torch.empty(size, dtype=torch.uint8))
        future.set_result(adder.run_and_add(task, self._run) if task.sum else self._run(task))
        return future

    def _run(self, task: Assignment) -> Update:
        report = self.inner.submit(task).result()
        if task.client not in self.clients:
            return report
        payloads = {p: {n: t * torch.inf for n, t in named.items()} for p, named in report.payloads.items()}
        return replace(report, payloads=payloads)


@pytest.mark.parametrize("spoilt", [[1, 6], [4, 5, 6, 7]])
def test_the_mean_is_over_those_whose_update_is_finite(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch, spoilt: list[int]
) -> None:
    """Two of different shards, or a whole shard, are left out with their weights."""
    games = Games(tiny)
    sections = {"data": {**FEW, "clients": {"image": 12}}, "schedule": {"name": "end-to-end", "rounds": 1},
                "round": {"cohort": 1.0}}  # fmt: skip
    states, rows, sizes = [], [], []
    for fewest in (3, 64):
        monkeypatch.setattr(shards, "FEWEST_SHARDS", fewest)
        setup = games.setup(**sections)
        with Inline(setup.clients, "cpu") as inline:  # type: ignore[arg-type]
            executor = Spoiling(inline, spoilt)
            simulation, journal = games.real(setup, executor)
        states.append(simulation.state.tensors)
        rows.append((journal.tables["rounds"], journal.tables["clients"]))
        sizes.append(max(executor.sizes))
    assert sizes == [4, 1] and rows[0] == rows[1]
    assert rows[0][0][0]["rejections"] == {"not finite": len(spoilt)}
    for address, value in states[0].items():
        torch.testing.assert_close(value, states[1][address], rtol=1e-4, atol=1e-6)


def test_a_sum_is_what_a_loop_adds_up(tiny: Tiny) -> None:
    """The witness: a loop over the updates that the same clients send alone."""
    games = Games(tiny)
    setup = games.setup(data={**FEW, "clients": {"image": 3}})
    state = setup.method.initial(3)
    (kind,) = setup.clients.kinds
    work = setup.method.work(kind, 1)
    inputs, addresses = state.wire(work), [item.source for item in work.up[0].items]
    cuts, totals = {a: [None] for a in addresses}, {(a, None): 10.0 for a in addresses}
    rule = SharedSum(cuts, totals, frozenset(addresses), ((5.0, 1.0), (3.0, 0.5), (2.0, 1.0)), False)
    tasks = [Assignment(work.form, work.scalars, inputs, client, 7 + client) for client in range(3)]
    task = replace(tasks[0], others=tuple(tasks[1:]), sum=rule)
    with Inline(setup.clients, "cpu") as inline:  # type: ignore[arg-type]
        sent = [inline.submit(each).result().payloads["model"] for each in tasks]
        sent = [{name: tensor.clone() for name, tensor in named.items()} for named in sent]
        travelled = Assignment.from_data(json.loads(json.dumps(task.to_data())), work.form, inputs)
        report = inline.submit(travelled).result()
    report = Update.from_data(json.loads(json.dumps(report.to_data())), work, 0, report.tensors())
    assert report.means is not None and len(report.others) == 2 and not report.payloads
    for item in work.up[0].items:
        expected = torch.zeros(item.shape)
        for named, weight in zip(sent, (0.5, 0.15, 0.2), strict=True):
            expected += weight * (named[item.name] - inputs[item.name])
        torch.testing.assert_close(report.means[item.source, None], expected, rtol=1e-5, atol=1e-8)


@pytest.mark.slow(smaller="test_a_sum_is_what_a_loop_adds_up")
def test_a_cohort_of_two_hundred_is_added_up_by_threes(tiny: Tiny, merged: list[Update], tmp_path: Path) -> None:
    data = {"source": "glyphs", "clients": {"image": 200}, "samples": 8, "validation": 20, "test": 20}
    scenario = tiny(data=data, model={"image": {"blocks": 1, "width": 16, "heads": 2}})
    inline = edgefl.run(scenario, out=tmp_path / "inline")
    assert len(merged) == 2 * 67
    workers = edgefl.run(scenario | {"executor": WORKERS}, out=tmp_path / "workers")
    assert_equal_tensors(workers.weights(), inline.weights())
