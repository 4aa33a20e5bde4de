"""Runs with noise: the account is of the clients that are drawn, and of nothing that a run may change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from edgefl_games import TABLES, Games, broken_rules
from edgefl_toys import CopyingMemory, Memory
from tensors import assert_equal_tensors

from edgefl.errors import MethodError
from edgefl.planning.setup import Setup
from edgefl.scenario import load
from edgefl.setup.compose import compose
from edgefl.simulation import Simulation
from edgefl.training import ExecutorOptions, make_executor

LAYERWISE = {"name": "layerwise", "stages": 2, "rounds": 4}


@pytest.fixture(scope="module")
def games(tiny: Callable[..., dict[str, Any]]) -> Games:
    return Games(tiny)


def sections(games: Games, **more: Any) -> dict[str, Any]:
    data = {**games.tiny()["data"], "clients": {"image": 5, "text": 4}, "samples": 16}
    return {
        "seed": 4, "data": data, "schedule": LAYERWISE, "aggregation": {"clip": 0.5, "noise": 0.6},
        "privacy": {"delta": 1e-3, "accountant": "rdp"},
        "round": {"cohort": 0.3, "selection": "poisson", "weighting": "equal"}, **more,
    }  # fmt: skip


def setup_of(games: Games, made: dict[str, Any]) -> Setup:
    return compose(load(games.tiny(**made)))


def epsilons(journal: Memory) -> list[float]:
    return [record["privacy"]["epsilon"] for record in journal.tables["rounds"]]


def test_a_run_goes_on_from_any_checkpoint_with_the_same_noise_and_epsilon(games: Games) -> None:
    setup = setup_of(games, sections(games))
    whole, told = games.real(setup, journal=CopyingMemory())
    assert broken_rules(setup, told) == []
    assert any(not record["selected"] for record in told.tables["rounds"])  # and such a round changes the model too
    assert {record["outcome"] for record in told.tables["rounds"]} == {"completed"}
    for round, since in [*told.states.items()][1:2]:  # between two stages
        again, journal = games.real(setup, since=(round, *since), journal=CopyingMemory())
        for table in TABLES:
            assert journal.tables.get(table, []) == [r for r in told.tables.get(table, []) if r["round"] > round]
        assert_equal_tensors(again.state.tensors, whole.state.tensors)
        assert again.state.versions == whole.state.versions


@pytest.mark.slow(smaller="test_a_run_goes_on_from_any_checkpoint_with_the_same_noise_and_epsilon")
def test_processes_events_and_no_training_give_the_same(games: Games) -> None:
    given = load(games.tiny(**sections(games)))
    setup = compose(given)
    inline, told = games.real(setup)
    options = ExecutorOptions(name="processes", workers=2, device="cpu")
    with make_executor(options, setup.clients, given.data, given.seed, given.model.tokens, None) as executor:  # type: ignore[arg-type]
        elsewhere, also = games.real(setup, executor)
    assert_equal_tensors(elsewhere.state.tensors, inline.state.tensors)
    by_event, events = games.real(setup, events=True)
    assert_equal_tensors(by_event.state.tensors, inline.state.tensors)
    untrained, none = games.none(setup)
    assert also.tables["rounds"] == told.tables["rounds"] == events.tables["rounds"]
    assert epsilons(none) == epsilons(told) and untrained.state.versions == inline.state.versions


def test_a_round_without_its_noise_is_the_clipped_one(games: Games) -> None:
    made = sections(games, schedule={"name": "end-to-end", "rounds": 1})
    made["round"] = {**made["round"], "cohort": 1.0, "selection": "random"}
    setup = setup_of(games, made)
    noisy, _ = games.real(setup)
    aggregation = setup.method.setting.aggregation.model_copy(update={"noise": None})
    plain = type(setup.method)(setup.method.options, replace(setup.method.setting, aggregation=aggregation))
    clipped, _ = games.real(replace(setup, method=plain))
    for kind, count in (("image", 5), ("text", 4)):
        change = torch.cat([
            (value - clipped.state.tensors[address]).flatten()
            for address, value in noisy.state.tensors.items() if address.startswith(f"{kind}/")
        ])  # fmt: skip
        expected = 0.6 * 0.5 / count
        assert float(change.std()) == pytest.approx(expected, rel=3 / (2 * len(change)) ** 0.5)
        assert abs(float(change.mean())) < 3 * expected / len(change) ** 0.5


def test_the_account_knows_beforehand_who_is_eligible_in_each_stage(games: Games) -> None:
    fleet = {"devices": {"raspberry-pi-4-4gb": 1.0}, "links": {"wifi-5": 1.0}, "budgets": {"memory": "280..400 KiB"}}
    setup = setup_of(games, sections(games, fleet=fleet))
    simulation, told = games.none(setup)
    rounds, account = told.tables["rounds"], simulation.run.parts.account
    assert account is not None and len({tuple(r["eligible"].values()) for r in rounds}) > 1
    for record, draw in zip(rounds, account.draws, strict=True):
        rates = [1 / n for n in record["eligible"].values() if n]  # 30 % of 5 and of 4 clients are one place each
        assert draw.places / draw.clients == max(rates, default=0.0)


def test_a_run_ends_before_it_passes_epsilon(games: Games) -> None:
    made = sections(games, schedule={"name": "end-to-end", "rounds": 5}, evaluation={"every": 10})
    free = epsilons(games.none(setup_of(games, made))[1])
    made["privacy"] = {**made["privacy"], "epsilon": free[2]}
    _, told = games.none(setup_of(games, made))
    *before, last = told.tables["rounds"]
    assert epsilons(told) == free[:3] and last["stopped"] == {
        "round": 3, "metric": None, "value": None, "reason": "epsilon",
        "text": f"stopped after round 3: the next would pass epsilon {free[2]:g}",
    }  # fmt: skip
    assert not any(record.get("stopped") for record in before)
    assert told.result.stopped.text == last["stopped"]["text"]  # type: ignore[attr-defined]


@pytest.mark.slow(smaller="test_a_run_ends_before_it_passes_epsilon")
def test_the_last_round_is_evaluated_as_the_last(games: Games) -> None:
    made = sections(games, schedule={"name": "end-to-end", "rounds": 3}, evaluation={"every": 10})
    made["privacy"] = {**made["privacy"], "epsilon": epsilons(games.none(setup_of(games, made))[1])[1]}
    _, told = games.real(setup_of(games, made))
    assert [bool(record["metrics"]) for record in told.tables["rounds"]] == [False, True]
    assert told.tables["rounds"][-1]["server_works"][-1]["when"] == "evaluate test"


@pytest.mark.slow(smaller="test_a_run_ends_before_it_passes_epsilon")
def test_noise_is_found_for_all_rounds(games: Games) -> None:
    made = sections(games, aggregation={"clip": 0.5}, schedule={"name": "end-to-end", "rounds": 6})
    made["privacy"] = {**made["privacy"], "epsilon": 5}
    simulation, told = games.none(setup_of(games, made))
    spent = [record["privacy"] for record in told.tables["rounds"]]
    assert len(spent) == 6 and 4.9 < spent[-1]["epsilon"] <= 5
    assert {each["noise"] for each in spent} == {simulation.run.parts.account.noise}  # type: ignore[union-attr]


def test_a_round_that_too_few_fit_is_told_before_anything_is_played(games: Games) -> None:
    fleet = {"devices": {"raspberry-pi-4-4gb": 1.0}, "links": {"wifi-5": 1.0}, "budgets": {"memory": "420..480 KiB"}}
    made = sections(games, fleet=fleet, schedule={"name": "end-to-end", "rounds": 2})
    made["data"] = {**made["data"], "clients": {"image": 9}}
    made["privacy"] = {**made["privacy"], "epsilon": 6}
    with pytest.raises(MethodError, match=r"round 1 alone spends 6.666 of 6, .* 2 of 2 clients"):
        games.none(setup_of(games, made))


def test_without_noise_there_is_no_account(games: Games) -> None:
    made = sections(games, aggregation={}, privacy={})
    simulation, told = games.none(setup_of(games, made))
    assert simulation.run.parts.account is None and "privacy" not in told.tables["rounds"][0]
    assert isinstance(simulation, Simulation) and isinstance(setup_of(games, made), Setup)
