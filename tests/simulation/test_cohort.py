"""Cohorts that a method draws from all kinds, of which it sends some home, and cohorts of all clients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from math import comb
from typing import Any

import numpy as np
import pytest
import torch
from edgefl_games import Games, changed, granted
from edgefl_toys import declared

import edgefl
from edgefl.cells.needs import WaitingUpdates, held_updates
from edgefl.errors import ScenarioError
from edgefl.planning.setup import Setup
from edgefl.scenario import load
from edgefl.setup.compose import compose
from edgefl.training import Assignment, Inline
from edgefl.work.update import Update

ROUNDS = 100


@pytest.fixture(scope="module")
def games(tiny: Callable[..., dict[str, Any]]) -> Games:
    return Games(tiny)


def union(games: Games, **sections: Any) -> dict[str, Any]:
    """Four image and four text clients, of which four are drawn; text clients are sent home in all rounds but one."""
    data = {**games.tiny()["data"], "clients": {"image": 4, "text": 4}, "samples": 16}
    tower = {"blocks": 1, "width": 16, "heads": 2}
    return {
        **declared({"data": data}),
        "model": {"image": tower, "text": {**tower, "tokens": 12}},
        "method": {"name": "fedcola-mat", "warmup": {"modality": "image", "rounds": ROUNDS, "draw": "union"}},
        "schedule": {"name": "end-to-end", "rounds": ROUNDS + 1},
        "round": {"cohort": 4, "stratify": False},
    } | sections


def composed(games: Games, scenario: dict[str, Any]) -> Setup:
    return compose(load(games.tiny(**scenario)))


def test_clients_in_warm_up_follow_the_hypergeometric_law(games: Games) -> None:
    _, journal = games.none(composed(games, union(games)))
    *warm, last = journal.tables["rounds"]
    counts = Counter(row["finished"] for row in warm)
    # K of N at once, given that somebody of the n is among them
    ways = {k: comb(4, k) * comb(4, 4 - k) / (comb(8, 4) - 1) for k in (1, 2, 3, 4)}
    assert sum(k * p for k, p in ways.items()) == pytest.approx(2.029, abs=1e-3)
    # the statistic of three degrees of freedom exceeds 16.3 once in a thousand seeds
    assert counts.keys() <= ways.keys()
    assert sum((counts[k] - ROUNDS * p) ** 2 / (ROUNDS * p) for k, p in ways.items()) < 16.3
    assert last["finished"] == 4
    # whoever is sent home has no record and costs nothing
    rows = journal.tables["clients"]
    assert {row["kind"] for row in rows if row["round"] <= ROUNDS} == {"image"}
    (down,) = {row["download_bytes"] for row in rows if row["round"] in range(2, ROUNDS + 1)}
    assert all(row["download_bytes"] == row["selected"] * down for row in warm[1:])
    assert len({row["client"] for row in rows if row["round"] <= ROUNDS}) == 4


def test_who_is_sent_home_needs_no_budget(games: Games) -> None:
    setup = composed(games, union(games))
    memory = np.where(np.arange(8) < 4, 1e12, 1.0)  # no text client can train
    poor = replace(setup, fleet=granted(setup.fleet, memory=memory))
    drawn = [
        [(row["round"], row["client"]) for row in games.none(each)[1].tables["clients"] if row["round"] <= ROUNDS]
        for each in (setup, poor)
    ]
    assert drawn[0] == drawn[1] and len(drawn[0]) > ROUNDS
    # and nobody else is left where no image client can train
    nobody = replace(setup, fleet=granted(setup.fleet, memory=memory[::-1].copy()))
    rows = games.none(nobody)[1].tables["rounds"]
    assert {row["outcome"] for row in rows[:-1]} == {"nobody eligible"}


@pytest.mark.parametrize(
    ("round", "draw", "warm"),
    [
        ({"cohort": 4, "stratify": False}, "union", 2),
        ({"cohort": 4, "stratify": False}, "modality", 4),
        ({"cohort": "50%", "stratify": False}, "union", 2),
        ({"cohort": 6}, "union", 3),  # places of each kind, of which text's stay empty
        ({"cohort": 6}, "modality", 4),
        ({"cohort": 3, "stratify": False, "leave_out": ["text"]}, "union", 3),
    ],
)
def test_profile_expects_the_share_of_the_modality(games: Games, round: dict[str, Any], draw: str, warm: int) -> None:
    method = {"name": "fedcola-mat", "warmup": {"modality": "image", "rounds": 2, "draw": draw}}
    schedule = {"name": "end-to-end", "rounds": 4}
    found = edgefl.profile(games.tiny(**union(games, method=method, schedule=schedule, round=round)))
    first, *later = found["round_totals"]
    assert first["selected"] == {"image": warm}
    image = next(row for row in found["rows"] if row["kind"] == "image")
    assert first["upload_bytes"] == warm * image["upload_bytes"]
    assert [(total["first_round"], set(total["selected"])) for total in later] == (
        [] if "leave_out" in round else [(3, {"image", "text"})]
    )


@pytest.mark.parametrize(("draw", "drawn"), [("union", 5), ("modality", 10)])
def test_a_sweep_expects_the_share_of_the_modality(games: Games, draw: str, drawn: int) -> None:
    method = {"name": "fedcola-mat", "warmup": {"modality": "image", "rounds": 10, "draw": draw}}
    sections = {"method": method, "schedule": {"name": "end-to-end", "rounds": 10}}
    fleet = {"budgets": {"energy_total": "1 GJ"}}
    (row,) = edgefl.sweep(games.tiny(**union(games, **sections, fleet=fleet)))["rows"]
    # in a round four of eight, or the four of the modality
    assert row["caps"]["energy_total"]["expected_rounds"] == drawn


@pytest.mark.parametrize(
    ("round", "message"),
    [
        (
            {"policy": "buffered"},
            "in round 1 fedcola-mat sends text clients of its cohort home, but buffered fills one",
        ),
        ({"selection": "oort"}, "home, of which oort learns no loss; write selection: random"),
    ],
)
def test_what_does_not_draw_a_whole_cohort_is_refused(games: Games, round: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        composed(games, union(games, round={"cohort": 4, "stratify": False, **round}))


# all clients ----------------------------------------------------------------------------------------------------------

CLIENTS = 5


def whole(combine: str, asks: str = "all", **sections: Any) -> dict[str, Any]:
    """Five clients of unequal sizes, of whom two train in round 1, and who then train matching models."""
    data = {"source": "glyphs", "clients": {"image-text": CLIENTS}, "partition": {"quantity": 0.05},
            "tasks": {"image-text": "classify"}, "samples": 40, "size": 16, "validation": 20, "test": 20}  # fmt: skip
    matching = {"round": 2, "epochs": 1, "clients": asks, "hidden": [8]}
    method = {"name": "pmcmfl", "inference": "classifier", "combine": combine, "members": None, "matching": matching}
    multiway = {"blocks": 1, "width": 16, "heads": 2, "patch": 8, "tokens": 8, "drop_path": 0.0}
    round = {"cohort": 2}
    return {"data": data, "model": {"multiway": multiway}, "method": method, "round": round} | sections


class Sent(Inline):
    """Keeps the updates of clients by round."""

    def __init__(self, setup: Setup):
        super().__init__(setup.clients, "cpu")  # type: ignore[arg-type]
        self.updates: list[Update] = []

    def submit(self, task: Assignment) -> Future[Update]:
        future = super().submit(task)
        if task.client is not None:
            self.updates.append(future.result())
        return future


@pytest.mark.parametrize("combine", ["fedavg", "max-data", "ensemble"])
def test_every_client_trains_a_matching_model_once(games: Games, combine: str) -> None:
    setup = composed(games, whole(combine))
    with Sent(setup) as executor:
        simulation, journal = games.real(setup, executor)
    assert [row["finished"] for row in journal.tables["rounds"]] == [2, CLIENTS]
    sent = [update for update in executor.updates if "matching" in update.payloads]
    assert sorted(update.client for update in sent) == list(range(CLIENTS))
    samples = {client: int(n) for client, n in enumerate(setup.clients.client_samples)}
    assert len(set(samples.values())) > 1
    by_size = sorted(sent, key=lambda update: (-samples[update.client], update.client))
    tensors = simulation.state.tensors
    for modality in ("image", "text"):
        name = f"matching.{modality}.0.weight"
        models = [update.payloads["matching"][name].double() for update in by_size]
        sizes = [samples[update.client] for update in by_size]
        if combine == "ensemble":
            torch.testing.assert_close(tensors[f"table/ensemble.{name}"].double(), torch.stack(models))
            assert tensors[f"table/matched.{modality}"].tolist() == sizes
        else:
            mean = sum(n * model for n, model in zip(sizes, models, strict=True)) / sum(sizes)
            expected = models[0] if combine == "max-data" else mean
            torch.testing.assert_close(tensors[f"table/{name}"].double(), expected, rtol=1e-5, atol=1e-6)


def test_all_clients_are_those_that_may_take_part(games: Games) -> None:
    setup = composed(games, whole("fedavg"))
    for able, outcome in ((3, "completed"), (0, "nobody eligible")):
        memory = np.where(np.arange(CLIENTS) < able, 1e12, 1.0)
        _, journal = games.none(replace(setup, fleet=granted(setup.fleet, memory=memory)))
        last = journal.tables["rounds"][-1]
        assert (last["selected"], last["finished"], last["outcome"]) == (able, able, outcome)
    away = changed(setup, {"cohort": 2, "retry": 1.0}, {"availability": {"markov": {"on": "1 h", "off": "1 h"}}})
    _, journal = games.none(away)
    last = journal.tables["rounds"][-1]
    assert last["selected"] + last["unavailable"] == CLIENTS and 0 < last["unavailable"] < CLIENTS


def test_a_round_of_all_clients_is_expected_and_holds_all_updates(games: Games) -> None:
    found = edgefl.profile(games.tiny(**whole("fedavg")))
    assert [total["selected"] for total in found["round_totals"]] == [{"image-text": 2}, {"image-text": CLIENTS}]
    # the whole model in the first round, two models of 16-8-classes in the second
    setup = composed(games, whole("fedavg"))
    model = sum(spec.bytes for spec in setup.method.setting.kinds["image-text"].parameters().values())
    classes = setup.clients.classes_of("image-text")
    matching = 2 * 4 * (16 * 8 + 8 + 8 * classes + classes)
    library = sum(item.spec.bytes for item in setup.method.work("image-text", 1).up[1].items)
    assert 2 * model > CLIENTS * matching
    assert held_updates(setup) == WaitingUpdates(2, 2 * (model + library))
    alone = whole("fedavg", schedule={"name": "end-to-end", "rounds": 1})
    alone["method"]["matching"]["round"] = 1
    assert held_updates(composed(games, alone)) == WaitingUpdates(CLIENTS, CLIENTS * matching)
    alone["method"]["matching"]["clients"] = "cohort"
    assert held_updates(composed(games, alone)) == WaitingUpdates(2, 2 * matching)


def test_all_clients_need_a_policy_that_draws_them_at_once(games: Games) -> None:
    with pytest.raises(ScenarioError, match="in round 2 pmcmfl asks all clients, but semi-synchronous fills one place"):
        composed(games, whole("fedavg", round={"cohort": 2, "policy": "semi-synchronous"}))
    composed(games, whole("fedavg", "cohort", round={"cohort": 2, "policy": "semi-synchronous"}))
