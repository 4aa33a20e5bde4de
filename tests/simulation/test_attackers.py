"""Attackers in whole runs: what reaches the server, who is named, and that nothing else depends on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from edgefl_games import TABLES, Games, broken_rules, changed
from edgefl_toys import Memory
from tensors import assert_equal_tensors

from edgefl.errors import EdgeflError
from edgefl.planning.setup import Setup
from edgefl.scenario import Scenario, load
from edgefl.setup.compose import compose
from edgefl.training import Assignment, Inline, ProcessExecutor
from edgefl.work.update import Update

KINDS = ("sign-flip", "scaling", "label-flip")


@pytest.fixture(scope="module")
def games(tiny: Callable[..., dict[str, Any]]) -> Games:
    return Games(tiny)


def written(games: Games, kind: str | None, rounds: int = 2, **sections: Any) -> dict[str, Any]:
    """A scenario of five clients, two of which attack."""
    data = {**games.tiny()["data"], "clients": {"image": 5}, "samples": 16}
    attack = kind and {"share": "40%", "name": kind}
    asked = {"data": data, "schedule": {"name": "end-to-end", "rounds": rounds}, **sections}
    return games.tiny(fleet={"failures": {"attack": attack}}, **asked)


def setup_of(games: Games, kind: str | None, rounds: int = 2, **sections: Any) -> Setup:
    return compose(load(written(games, kind, rounds, **sections)))


def hostile(games: Games, kind: str, factor: float | None = None, **sections: Any) -> Setup:
    """Any scenario with a fifth of its clients as attackers."""
    attack = {"share": "20%", "name": kind, "factor": factor}
    return compose(load(games.tiny(fleet={"failures": {"attack": attack}}, **sections)))


def attackers(setup: Setup) -> list[int]:
    assert setup.fleet.attackers is not None
    return np.flatnonzero(setup.fleet.attackers).tolist()


class Twice(Inline):
    """Trains, and notes what each client would have sent if it were honest."""

    def __init__(self, setup: Setup):
        super().__init__(setup.clients, "cpu")  # type: ignore[arg-type]
        self.honest: dict[int, tuple[Assignment, Update]] = {}

    def submit(self, task: Assignment) -> Future[Update]:
        if task.client is not None:
            self.honest[task.client] = task, super().submit(replace(task, attack=None)).result()
        return super().submit(task)


@pytest.mark.parametrize(("kind", "strength"), [("sign-flip", -1.0), ("scaling", 10.0)])
def test_the_mean_has_the_changed_updates(games: Games, kind: str, strength: float) -> None:
    setup = setup_of(games, kind, 1)
    with Twice(setup) as executor:
        whole, told = games.real(setup, executor)
    start = setup.method.initial(setup.seed).tensors
    bad = attackers(setup)
    assert len(bad) == 2 and {c for c, (t, _) in executor.honest.items() if t.attack is not None} == set(bad)
    counts = {c: int(setup.clients.client_samples[c]) for c in range(5)}
    for address, value in start.items():
        name = address.split("/", 1)[1]
        if not value.is_floating_point():
            continue
        expected = value.double().clone()
        for client, (_, report) in executor.honest.items():
            change = report.payloads["model"][name].double() - value.double()
            expected += counts[client] / sum(counts.values()) * (strength if client in bad else 1.0) * change
        torch.testing.assert_close(whole.state.tensors[address].double(), expected, rtol=1e-4, atol=1e-5)
    assert broken_rules(setup, told) == []


@pytest.mark.parametrize("kind", KINDS)
def test_records_name_attackers_and_differ_in_nothing_that_is_priced(games: Games, kind: str) -> None:
    hostile, honest = setup_of(games, kind), setup_of(games, None)
    (attacked, told), (plain, wanted) = games.real(hostile), games.real(honest)
    bad = attackers(hostile)
    by_client = {(r["client"], r["attack"]) for r in told.tables["clients"]}
    assert by_client == {(c, kind if c in bad else None) for c in range(5)}  # the same ones in both rounds
    assert all("attack" not in r for r in wanted.tables["clients"])
    learnt = {"attack", "loss"}
    for mine, other in zip(told.tables["clients"], wanted.tables["clients"], strict=True):
        assert {n: x for n, x in mine.items() if n not in learnt} == {n: x for n, x in other.items() if n not in learnt}
    assert told.tables["eligibility"] == wanted.tables["eligibility"]
    different = [not torch.equal(t, plain.state.tensors[a]) for a, t in attacked.state.tensors.items()]
    assert any(different)
    # without training: the same fields and attackers, and versions as with training
    none, priced = games.none(hostile)
    assert none.state.versions == attacked.state.versions
    free = learnt | {n for n in priced.tables["clients"][0] if n.startswith("measured_")} | {"memory_error"}
    for mine, other in zip(priced.tables["clients"], told.tables["clients"], strict=True):
        assert mine["attack"] == other["attack"]
        assert {n: x for n, x in mine.items() if n not in free} == {n: x for n, x in other.items() if n not in free}


def same(told: Memory, wanted: Memory, after: int = 0) -> None:
    for table in TABLES:
        assert told.tables.get(table, []) == [r for r in wanted.tables.get(table, []) if r["round"] > after]


MORE = pytest.mark.filterwarnings("ignore:.* of \\d updates of .* clients, .* withstands 0")
"""These groups are too small for their rule, which their runs tell."""


@MORE
@pytest.mark.slow(smaller="test_records_name_attackers_and_differ_in_nothing_that_is_priced")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("policy", ["synchronous", "buffered"])
def test_workers_and_resumed_runs_have_the_same_attackers(games: Games, kind: str, policy: str) -> None:
    scenario: Scenario = load(written(games, kind, aggregation="multi-krum"))
    setup = changed(
        compose(scenario), {"policy": policy, "cohort": 4, "buffer": 3}, scenario.fleet.model_dump(), jitter=0.3
    )
    whole, wanted = games.real(setup)
    with ProcessExecutor(scenario.data, scenario.seed, scenario.model.tokens, None, 1, "cpu") as workers:
        there, told = games.real(setup, workers)
    same(told, wanted)
    assert_equal_tensors(there.state.tensors, whole.state.tensors)
    for round, since in wanted.states.items():
        again, told = games.real(setup, since=(round, *since))
        same(told, wanted, round)
        assert_equal_tensors(again.state.tensors, whole.state.tensors)


SCHEDULES: Mapping[str, Mapping[str, Any]] = {
    "layerwise": {"name": "layerwise", "stages": 2, "rounds": 2},
    "elastic": {"name": "elastic", "stages": 2, "rounds": 1},
    "heterofl": {"name": "heterofl", "widths": [1.0, 0.5], "rounds": 1},
}


@MORE
@pytest.mark.parametrize(
    ("method", "schedule"),
    [
        ("fedavg", "layerwise"),
        *(
            pytest.param(method, schedule, marks=pytest.mark.slow)
            for method, schedule in (
                ("fedavg", "heterofl"),
                ("fedprox", "elastic"),
                ("fedcola", "layerwise"),
                ("fedcola", "elastic"),
                ("fedcola-mat", "layerwise"),
                ("fedmml", "layerwise"),
                ("fediot", "elastic"),
            )
        ),
    ],
)
def test_krum_works_with_every_method_that_averages_and_under_schedules(
    games: Games, method: str, schedule: str
) -> None:
    from edgefl import registry

    needs = registry.get("method", method).needs
    data = {**games.tiny()["data"], "samples": 16, "clients": {"image": 4, "text": 3, "image-text": 3}}
    data |= needs.get("data", {})
    sections = {**needs, "method": method, "data": data, "schedule": dict(SCHEDULES[schedule])}
    for rule in ("krum", "multi-krum") if method != "fedavg" else ("multi-krum",):
        setup = hostile(games, "scaling", 1e4, **sections, aggregation=rule)
        whole, told = games.real(setup)
        none, _ = games.none(setup)
        assert none.state.versions == whole.state.versions and broken_rules(setup, told) == []
        assert all(bool(t.isfinite().all()) for t in whole.state.tensors.values())
        assert any(whole.state.versions.values())


def test_krum_does_not_follow_those_whom_the_mean_follows(games: Games) -> None:
    sizes = {}
    for rule in ("mean", "krum", "multi-krum"):
        setup = setup_of(games, "scaling", 1, aggregation={"rule": rule})
        attack = setup.fleet.failures.attack
        assert attack is not None
        failures = setup.fleet.failures.model_copy(update={"attack": attack.model_copy(update={"factor": 1e5})})
        only = np.arange(5) == 2
        setup = replace(setup, fleet=replace(setup.fleet, failures=failures, attackers=only))
        whole, _ = games.real(setup)
        start = setup.method.initial(setup.seed).tensors
        sizes[rule] = max(float((whole.state.tensors[a] - t).abs().max()) for a, t in start.items())
    assert sizes["mean"] > 10 and sizes["krum"] < 1 and sizes["multi-krum"] < 1


# what is refused ------------------------------------------------------------------------------------------------------


def test_an_attack_that_would_change_nothing_is_refused(games: Games) -> None:
    base = games.tiny()["data"]
    for kind in ("sign-flip", "scaling"):
        with pytest.raises(EdgeflError, match=f"creamfl has no models to average.* so {kind} changes nothing"):
            hostile(games, kind, method="creamfl", data={**base, "public": 24})
    with pytest.raises(EdgeflError, match="label-flip changes nothing, since image-text clients retrieve"):
        hostile(games, "label-flip", data={**base, "clients": {"image-text": 3}})
