"""Elastic: who trains which part, what travels for it, and that it is end-to-end where nothing limits anybody."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from edgefl_games import TABLES, Games, broken_rules, granted
from edgefl_toys import declared
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tensors import assert_equal_tensors

from edgefl.commands.profile.command import profile
from edgefl.errors import MethodError
from edgefl.methods import Update
from edgefl.methods.fedavg import FedAvg
from edgefl.planning.planner import Planner
from edgefl.planning.setup import Setup
from edgefl.planning.versions import ClientVersions
from edgefl.planning.workload import stage_eligibility, workload_of
from edgefl.schedules import Elastic, Schedule
from edgefl.simulation import Roster
from edgefl.testing import check_part

TOWER = {"blocks": 3, "width": 16, "heads": 2}
STAGES = {"name": "elastic", "stages": 3, "rounds": 3}


def elastic(blocks: int | dict[str, int] = 4, **options: Any) -> Elastic:
    counts = {"image": blocks} if isinstance(blocks, int) else blocks
    return Elastic(Elastic.Options(**options), counts)


def labels(schedule: Schedule, round: int) -> list[str]:
    return [str(part) for part in schedule.candidates(round)]


# what is offered ------------------------------------------------------------------------------------------------------


def test_the_parts_and_whose_turn_it_is() -> None:
    schedule = elastic(stages=4, rounds=8)
    assert labels(schedule, 1) == ["all", "stages 1-3", "stages 1-2", "stage 1", "stage 2", "stage 3", "stage 4"]
    assert labels(schedule, 2) == ["all", "stages 1-3", "stages 1-2", "stage 2", "stage 3", "stage 4", "stage 1"]
    assert labels(schedule, 5) == labels(schedule, 1)
    assert [part.index for part in schedule.offered] == [1, 2, 3, 4, 5, 6, 7]
    assert schedule.stages == schedule.offered[:1] and schedule.rounds == 8
    assert [rounds for _, rounds in schedule.turns(schedule.stages[0])] == [(1, 5), (2, 6), (3, 7), (4, 8)]
    assert [*schedule.rounds_of(schedule.offered[4])] == list(range(1, 9))
    assert labels(elastic(stages=3, parts=["all", "progressive"]), 2) == ["all", "stages 1-2", "stage 1"]
    assert labels(elastic(stages=3, parts=["layerwise"]), 1) == ["stage 1", "stage 2", "stage 3"]
    assert labels(elastic(stages=[1, 0, 3]), 1) == ["all", "stage 1", "stage 3"]
    assert labels(elastic(stages=1), 1) == ["all"] == labels(elastic(stages=1, parts=["progressive"]), 1)


@pytest.mark.parametrize("parts", [[], ["all", "all"], ["some"]])
def test_parts_that_are_none(parts: list[str]) -> None:
    with pytest.raises(ValidationError, match="parts"):
        Elastic.Options(parts=parts)


def test_more_stages_than_blocks() -> None:
    with pytest.raises(MethodError, match="5 stages are more than the 4 blocks of the image tower"):
        elastic(stages=5)


@settings(max_examples=40, deadline=None)
@given(data=st.data(), depth=st.sampled_from(["part", "whole"]))
def test_each_part_trains_less_and_every_block_has_its_turn(data: st.DataObject, depth: str) -> None:
    blocks = {"image": data.draw(st.integers(2, 6)), "text": data.draw(st.integers(2, 6))}
    stages = data.draw(st.integers(1, min(blocks.values())))
    schedule = elastic(blocks, stages=stages, depth=depth, rounds=stages)
    names = [f"{tower}.{part}" for tower, n in blocks.items() for part in ("embedding.w", "norm.w", "head.w")]
    names += [f"{tower}.blocks.{i}.w" for tower, n in blocks.items() for i in range(n)]
    first = set[str]()
    for round in range(1, schedule.rounds + 1):
        whole, *parts = schedule.candidates(round)
        assert all(whole.is_active(name) and whole.is_attached(name) for name in names)
        trained = [{name for name in names if part.is_active(name)} for part in parts]
        prefixes = [one for part, one in zip(parts, trained, strict=True) if "-" in part.label]
        assert all(later < earlier for earlier, later in pairwise(prefixes))
        for part, one in zip(parts, trained, strict=True):
            assert all(part.is_attached(name) for name in one)
            assert all(part.is_attached(name) for name in names) or depth == "part"
        singles = trained[len(prefixes) :]
        assert set().union(*singles) == set(names) if singles else stages == 1
        first |= singles[0] if singles else set(names)
    assert first == set(names)


# runs -----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def games(tiny: Callable[..., dict[str, Any]]) -> Games:
    return Games(tiny)


def made(games: Games, clients: int = 5, schedule: dict[str, Any] = STAGES, **sections: Any) -> Setup:
    data = {**games.tiny()["data"], "clients": {"image": clients}, "samples": 16}
    return games.setup(data=data, model={"image": TOWER}, schedule=schedule, evaluation={"every": 10}, **sections)


def needs(games: Games, setup: Setup) -> dict[str, int]:
    """Peak memory of each part."""
    planner = Planner(setup, games.predictor)
    plans = {str(part): planner.plan(*setup.cell_indices(0), 1, part, ()) for part in setup.schedule.offered}
    return {label: plan.compute.peak_memory_bytes for label, plan in plans.items()}


def allowed(setup: Setup, memory: list[float]) -> Setup:
    return replace(setup, fleet=granted(setup.fleet, memory=np.array(memory, dtype=float)))


def test_without_limits_it_is_end_to_end(games: Games) -> None:
    one, told = games.real(made(games, 2))
    other, journal = games.real(made(games, 2, {"name": "end-to-end", "rounds": 3}))
    for table in TABLES:
        assert [{k: v for k, v in r.items() if k != "part"} for r in told.tables[table]] == journal.tables[table]
    assert told.tables["clients"][0]["part"] == "all"
    assert one.state.versions == other.state.versions
    assert_equal_tensors(one.state.tensors, other.state.tensors)


@pytest.mark.parametrize("depth", ["part", pytest.param("whole", marks=pytest.mark.slow)])
def test_a_client_takes_the_first_part_that_fits_and_is_refused_by_the_nearest(games: Games, depth: str) -> None:
    setup = made(games, schedule={**STAGES, "depth": depth})
    peak = needs(games, setup)
    singles = [peak[f"stage {i}"] for i in (1, 2, 3)]
    least, smallest = min(singles), 1 + singles.index(min(singles))
    budgets = [np.inf, peak["stages 1-2"], max(singles), least, least - 1]
    setup = allowed(setup, budgets)
    simulation, journal = games.none(setup)
    assert broken_rules(setup, journal) == []
    parts: dict[int, list[str]] = {client: [] for client in range(5)}
    for record in journal.tables["clients"]:
        parts[record["client"]].append(record["part"])
    fits = ["all", *(["stages 1-2"] * 4)]
    assert parts[0] == ["all"] * 3 and parts[1] == [fits[1]] * 3
    assert parts[2] == ["stage 1", "stage 2", "stage 3"]
    assert set(parts[3]) == {f"stage {i}" for i, need in enumerate(singles, 1) if need == least}
    assert parts[4] == []
    (refusal,) = (v for v in journal.tables["eligibility"] if not v["eligible"])
    assert (refusal["client"], refusal["round"], refusal["part"]) == (4, 1, f"stage {smallest}")
    assert refusal["margins"]["memory"] == -1 and refusal["binding"] == "memory"
    # a sweep judges as the run does
    turns = stage_eligibility(workload_of(setup, games.predictor))
    for round, turn in enumerate(turns, 1):
        simulation.run.parts.roster.judge(round, simulation.state.versions)
        plans = [simulation.run.parts.roster.plans([client])[0] for client in range(5)]
        assert turn.eligible.tolist() == [True, True, True, True, False]
        workload = workload_of(setup, games.predictor).table["memory"]
        assert workload[turn.work].tolist() == [plan.compute.peak_memory_bytes for plan in plans]


@pytest.mark.slow(smaller="test_the_parts_and_whose_turn_it_is")
def test_turns_are_judged_as_from_the_start(games: Games) -> None:
    """Only whoever a turn touches is judged again; verdicts are those of a roster that begins anew."""
    setup = made(games, 6)
    peak = needs(games, setup)
    budgets = [np.inf, peak["stages 1-2"], peak["stage 3"], peak["stage 1"], 1.0, 1e9]
    setup = allowed(setup, budgets)
    planner, client_versions, state = Planner(setup, games.predictor), ClientVersions(6), setup.method.initial(1)
    roster = Roster(planner, client_versions)
    for round in (1, 2, 3):
        roster.judge(round, state.versions)
        plan = roster.plans([2])[0]
        client_versions.record_download(np.array([0, 2]), plan.down, state.versions)
        anew = Roster(Planner(setup, games.predictor), client_versions)
        roster.judge(round, state.versions)
        anew.judge(round, state.versions)
        for name in ("stage", "eligible", "binding"):
            assert getattr(roster, name).tolist() == getattr(anew, name).tolist()
        assert [str(roster.plans([c])[0].stage) for c in range(6)] == [str(anew.plans([c])[0].stage) for c in range(6)]
        state = state.with_tensors({a: t for a, t in state.tensors.items() if f"blocks.{round - 1}." in a})


class Watched(FedAvg):
    """FedAvg that remembers what it aggregated."""

    def aggregate(self, state: Any, updates: Any) -> Any:
        """As always."""
        self.__dict__.setdefault("rounds", []).append((state, list(updates)))
        return super().aggregate(state, updates)


def watched(games: Games, setup: Setup) -> tuple[Any, Any, list[tuple[Any, list[Update]]]]:
    method = Watched(setup.method.options, setup.method.setting)
    simulation, journal = games.real(replace(setup, method=method))
    return simulation, journal, method.__dict__["rounds"]


@pytest.mark.slow(smaller="test_what_nobody_trains_stays_and_travels_only_to_whoever_lacks_it")
def test_each_parameter_is_averaged_over_those_who_trained_it(games: Games) -> None:
    setup = made(games, 3, {**STAGES, "rounds": 2})
    peak = needs(games, setup)
    simulation, _, rounds = watched(games, allowed(setup, [np.inf, peak["stages 1-2"], peak["stage 3"]]))
    state, updates = rounds[-1]
    assert [len(dict(update.uploaded_tensors())) for update in updates] != [len(state.tensors)] * 3
    seen = set[int]()
    for address, old in state.tensors.items():
        sent = [
            (u.total, dict(u.uploaded_tensors())[address], u.base[address])
            for u in updates
            if address in dict(u.uploaded_tensors())
        ]
        seen.add(len(sent))
        total = sum(n for n, _, _ in sent)
        mean = old + sum((n / total * (value - base) for n, value, base in sent), torch.zeros_like(old))
        torch.testing.assert_close(simulation.state.tensors[address], mean)
    assert seen == {1, 2, 3}


def test_what_nobody_trains_stays_and_travels_only_to_whoever_lacks_it(games: Games) -> None:
    """One weak client: it trains a stage a round, and fetches what the last one changed before it."""
    setup = made(games, 1)
    setup = allowed(setup, [max(needs(games, setup)[f"stage {i}"] for i in (1, 2, 3))])
    simulation, journal, rounds = watched(games, setup)
    assert broken_rules(setup, journal) == []
    states = [state for state, _ in rounds] + [simulation.state]
    sizes = {a: t.numel() * t.element_size() for a, t in states[0].tensors.items()}
    late = ("norm", "head")

    def of(*parts: str) -> int:
        return sum(n for a, n in sizes.items() if a.startswith(tuple(f"image/image.{part}" for part in parts)))

    block = of("blocks.0")
    trained = [("embedding", "blocks.0", *late), ("blocks.1", *late), ("blocks.2", *late)]
    fetched = [0, of("embedding") + block, block]
    for record, before, after, parts, extra in zip(
        journal.tables["clients"], states, states[1:], trained, fetched, strict=False
    ):
        assert record["upload_bytes"] == of(*parts)
        assert record["download_bytes"] == of(*parts) + extra
        assert abs(record["measured_peak_memory_bytes"] - record["peak_memory_bytes"]) <= 4096
        for address, value in before.tensors.items():
            active = address.startswith(tuple(f"image/image.{part}" for part in parts))
            assert torch.equal(after.tensors[address], value) != active


@pytest.mark.slow(smaller="test_a_simulation_goes_on_from_any_checkpoint")
@pytest.mark.parametrize("depth", ["part", "whole"])
def test_it_goes_on_from_any_checkpoint(games: Games, depth: str) -> None:
    setup = made(games, 3, {**STAGES, "depth": depth})
    peak = needs(games, setup)
    setup = allowed(setup, [np.inf, peak["stages 1-2"], peak["stage 3"]])
    whole, told = games.real(setup)
    for round, (tensors, state) in told.states.items():
        again, journal = games.real(setup, since=(round, tensors, state))
        for table in TABLES:
            assert journal.tables.get(table, []) == [r for r in told.tables[table] if r["round"] > round]
        assert_equal_tensors(again.state.tensors, whole.state.tensors)


# commands -------------------------------------------------------------------------------------------------------------


def test_a_profile_shows_the_parts_of_which_none_before_is_smaller(tiny: Callable[..., dict[str, Any]]) -> None:
    data = {**tiny()["data"], "clients": {"image": 2}}
    scenario = declared(tiny(model={"image": TOWER}, data=data, schedule=STAGES))
    rows = profile(scenario)["rows"]
    assert [(row["stage"], row["part"], row["rounds"]) for row in rows] == [
        (1, "all", 3), (2, "stages 1-2", 3), (3, "stage 1", 3), (4, "stage 2", 3), (5, "stage 3", 3),
    ]  # fmt: skip
    peaks = [row["peak_memory_bytes"] for row in rows]
    assert peaks[0] > peaks[1] > max(peaks[2:])
    (row,) = profile(scenario, stage=4)["rows"]
    assert row == rows[3]


@pytest.mark.slow(smaller="test_a_method_keeps_the_contract")
@pytest.mark.parametrize("depth", ["part", "whole"])
@pytest.mark.parametrize("method", ["fedavg", "fedcola"])
def test_the_contract_holds_in_every_part(method: str, depth: str) -> None:
    for schedule in (STAGES, {"name": "elastic", "parts": ["all", "progressive"]}):
        wanted = {**schedule, "stages": 2, "depth": depth, "rounds": 2}
        report = check_part("method", method, runs=False, schedules=[wanted], processes=depth == "part")
        assert report.ok, str(report)
