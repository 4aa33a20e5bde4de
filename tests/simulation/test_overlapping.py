"""Round policies: what each aggregates and when, who is under way, and how a round ends that can't be completed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from edgefl_games import Games, broken_rules, changed
from edgefl_toys import Memory, declared
from hypothesis import given, settings
from hypothesis import strategies as st
from tensors import assert_equal_tensors

from edgefl.cost.predict import Predictor
from edgefl.errors import RunError
from edgefl.planning.setup import Setup
from edgefl.simulation.round_server import FLIGHTS_PER_UPDATE
from edgefl.training import Assignment, Inline
from edgefl.work.update import Update

POLICIES = ("synchronous", "asynchronous", "buffered", "semi-synchronous")
OVERLAPPING = POLICIES[1:]
MIXING = 0.6


@pytest.fixture(scope="module")
def games(tiny: Callable[..., dict[str, Any]]) -> Games:
    return Games(tiny)


@pytest.fixture(scope="module")
def setup(games: Games) -> Setup:
    """Seven clients of two kinds whose seconds vary, three rounds, without training."""
    return changed(
        games.setup(**declared(small(games, image=4, text=3)), schedule={"name": "end-to-end", "rounds": 3}), jitter=0.3
    )


def small(games: Games, **clients: int) -> dict[str, Any]:
    """Sections of a federation of few samples and models of one block."""
    tower = {"blocks": 1, "width": 16, "heads": 2}
    data = {**games.tiny()["data"], "clients": clients, "samples": 16}
    return {"data": data, "model": {"image": tower, "text": {**tower, "tokens": 12}}}


@pytest.fixture(scope="module")
def longest(games: Games, setup: Setup) -> float:
    """Seconds of the longest flight of a synchronous round."""
    _, journal = games.none(setup)
    return float(max(c["virtual_seconds"] for c in journal.tables["clients"]))


# what is aggregated ---------------------------------------------------------------------------------------------------


class Watched(Inline):
    """Keeps clients' tasks and reports, in the order in which they were sent off."""

    def __init__(self, setup: Setup):
        super().__init__(setup.clients, "cpu")  # type: ignore[arg-type]
        self.done: dict[int, list[tuple[Assignment, Update]]] = {}

    def submit(self, task: Assignment) -> Future[Update]:
        future = super().submit(task)
        if task.client is not None:
            self.done.setdefault(task.client, []).append((task, future.result()))
        return future


@pytest.fixture(scope="module")
def images(games: Games) -> Setup:
    """Four clients of one kind."""
    return changed(games.setup(**small(games, image=4), schedule={"name": "end-to-end", "rounds": 2}), jitter=0.5)


def arrivals(
    journal: Memory, done: dict[int, list[tuple[Assignment, Update]]]
) -> list[tuple[dict[str, Any], Assignment, Update]]:
    """What arrived, in order: record, task and report."""
    seen: Counter[int] = Counter()
    found = []
    for record in journal.tables["clients"]:
        client = record["client"]
        task, report = done[client][seen[client]]
        seen[client] += 1
        if record["outcome"] == "finished":
            found.append((dict(record), task, report))
    return found


def aggregated_before(journal: Memory, each: int) -> Callable[[dict[str, Any]], int]:
    """How many aggregations, of ``each`` arrivals, came before a client was sent off."""
    ended = [c["ended_virtual_seconds"] for c in journal.tables["clients"] if c["outcome"] == "finished"]
    return lambda record: sum(at <= record["dispatched_virtual_seconds"] for at in ended) // each


@pytest.mark.parametrize("concurrency", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_fedasync_mixes_each_update_into_the_model_as_it_is(games: Games, images: Setup, concurrency: int) -> None:
    """w <- (1 - a s(t)) w + a s(t) w_client, with s(t) = (1 + t)^-0.5 and t the arrivals while it was under way."""
    executor = Watched(images)
    options = {"policy": "asynchronous", "cohort": 3, "concurrency": concurrency, "mixing": MIXING}
    simulation, journal = games.real(changed(images, options), executor)
    found = arrivals(journal, executor.done)
    assert len(found) == 6
    sent_at = aggregated_before(journal, 1)
    model = dict(images.method.initial(images.seed).tensors)
    for place, (record, _, report) in enumerate(found):
        staleness = place - sent_at(record)
        share = MIXING * (1 + staleness) ** -0.5
        assert (record["staleness"], record["weight_factor"]) == (staleness, pytest.approx(share))
        for name, value in report.payloads["model"].items():
            address = f"image/{name}"
            model[address] = (1 - share) * model[address] + share * value
    assert (concurrency > 1) == any(record["staleness"] for record, _, _ in found)
    assert_equal_tensors(simulation.state.tensors, model, rtol=1e-5, atol=1e-6)
    assert set(simulation.state.versions.values()) == {6}


@pytest.mark.parametrize("weighting", [None, pytest.param("equal", marks=pytest.mark.slow), "samples"])
def test_fedbuff_adds_the_discounted_deltas_of_a_buffer(games: Games, weighting: str | None) -> None:
    """w + 1/K sum_i s(t_i) (w_i - w as it was sent to i), as in FedBuff's Algorithm 1; n_i / n for 1/K by samples.

    One client may be in a buffer twice, and clients have different numbers of samples.
    """
    sections = small(games, image=4)
    sections["data"] |= {"samples": 40, "partition": {"quantity": 0.05}}
    images = changed(games.setup(**sections, schedule={"name": "end-to-end", "rounds": 2}), jitter=0.5)
    executor = Watched(images)
    setup = changed(images, {"policy": "buffered", "buffer": 5, "concurrency": 3, "weighting": weighting})
    simulation, journal = games.real(setup, executor)
    found = arrivals(journal, executor.done)
    assert len(found) == 10
    clients = [record["client"] for record, _, _ in found[:5]]
    assert len(set(clients)) < 5
    sent_at = aggregated_before(journal, 5)
    model = dict(setup.method.initial(setup.seed).tensors)
    for first in (0, 5):
        buffer = found[first : first + 5]
        samples = sum(record["samples"] for record, _, _ in buffer)
        assert len({record["samples"] for record, _, _ in buffer}) > 1
        fresh = dict(model)
        for record, task, report in buffer:
            staleness = first // 5 - sent_at(record)
            discount = (1 + staleness) ** -0.5
            assert (record["staleness"], record["weight_factor"]) == (staleness, pytest.approx(discount))
            for name, value in report.payloads["model"].items():
                share = discount * (record["samples"] / samples if weighting == "samples" else 1 / 5)
                fresh[f"image/{name}"] = fresh[f"image/{name}"] + share * (value - task.inputs[name])
        model = fresh
    assert any(record["staleness"] for record, _, _ in found)
    assert_equal_tensors(simulation.state.tensors, model, rtol=1e-5, atol=1e-6)
    assert journal.tables["rounds"][0]["virtual_seconds"] == found[4][0]["ended_virtual_seconds"]


# when a round ends ----------------------------------------------------------------------------------------------------


def test_a_window_takes_what_arrives_in_it_and_leaves_the_others_under_way(
    games: Games, setup: Setup, longest: float
) -> None:
    window = longest * 0.5
    simulation, journal = games.none(changed(setup, {"policy": "semi-synchronous", "window": window}))
    assert broken_rules(simulation.run.parts.setup, journal) == []
    rounds, clients = journal.tables["rounds"], journal.tables["clients"]
    for record in rounds:
        began, over = record["started_virtual_seconds"], record["started_virtual_seconds"] + window
        assert record["virtual_seconds"] == pytest.approx(window + record["server_seconds"])
        for client in (c for c in clients if c["round"] == record["round"]):
            assert began < client["ended_virtual_seconds"] <= over
            completed = [r for r in rounds if client["base_round"] <= r["round"] < record["round"]]
            assert client["staleness"] == sum(r["outcome"] == "completed" for r in completed)
    assert any(c["staleness"] for c in clients) and rounds[0]["under_way"] > 0
    # nobody is replaced before the next window
    starts = {r["started_virtual_seconds"] for r in rounds}
    assert {c["dispatched_virtual_seconds"] for c in clients} <= starts


def test_who_comes_back_during_the_servers_work_is_heard_in_the_next_round(games: Games, longest: float) -> None:
    """An evaluation of minutes after every round: whoever lands then isn't lost, nor sent off twice."""
    sections = declared(small(games, image=4, text=3))
    setup = games.setup(**sections, schedule={"name": "end-to-end", "rounds": 4}, evaluation={"every": 1})
    slow = replace(setup.fleet.server, flops_per_second=setup.fleet.server.flops_per_second / 1e6)
    setup = changed(replace(setup, fleet=replace(setup.fleet, server=slow)), jitter=0.3)
    for policy in OVERLAPPING:
        played = changed(setup, {"policy": policy, "buffer": 2, "window": longest / 2, "cohort": 2})
        _, journal = games.none(played)
        assert broken_rules(played, journal) == []
        rounds = journal.tables["rounds"]
        assert rounds[0]["server_seconds"] > 2 * longest and rounds[0]["under_way"] > 0
        for record in rounds[1:]:
            waited = [c for c in journal.tables["clients"] if c["round"] == record["round"] > c["base_round"]]
            assert any(c["ended_virtual_seconds"] < record["started_virtual_seconds"] for c in waited)


# who is under way -----------------------------------------------------------------------------------------------------


def most_under_way(clients: Sequence[Any]) -> int:
    """The most clients that are under way at a time; who leaves at a time makes room for who begins then."""
    events = [(c["dispatched_virtual_seconds"], 1) for c in clients if c["virtual_seconds"]]
    events += [(c["ended_virtual_seconds"], 0) for c in clients if c["virtual_seconds"]]
    now = most = 0
    for _, begins in sorted(events):
        now += 1 if begins else -1
        most = max(most, now)
    return most


def test_a_place_is_filled_when_its_client_is_back_whatever_became_of_it(games: Games, setup: Setup) -> None:
    fleet = {"failures": {"download": "20%", "training": "30%", "corrupted": "10%"}}
    for policy in ("asynchronous", "buffered"):
        played = changed(setup, {"policy": policy, "concurrency": 3, "cohort": 6, "buffer": 6}, fleet)
        played = changed(played, jitter=0.3)
        _, journal = games.none(played)
        assert broken_rules(played, journal) == []
        clients, rounds = journal.tables["clients"], journal.tables["rounds"]
        assert most_under_way(clients) == 3
        assert {r["finished"] for r in rounds} == {6} and any(c["outcome"] == "dropped" for c in clients)
        # 3 at first; then one for each that ended, but for those of which no later flight has a record
        ends = sorted(c["ended_virtual_seconds"] for c in clients)
        begins = sorted(c["dispatched_virtual_seconds"] for c in clients if c["dispatched_virtual_seconds"])
        assert set(begins) <= set(ends)
        assert rounds[-1]["under_way"] == 2 and len(begins) >= len(ends) - 3 - 2


class Shifts:
    """Clients that are there from one time to another: arrays `[clients]`."""

    def __init__(self, begins: Sequence[float], ends: Sequence[float]):
        self.begins, self.ends = np.array(begins), np.array(ends)

    def available(self, clients: Any, at: Any) -> Any:
        return (self.begins[clients] <= at) & (at < self.ends[clients])

    def leaves(self, clients: Any, at: Any) -> Any:
        return self.ends[clients]

    def returns(self, clients: Any, at: Any) -> Any:
        return np.where(at < self.ends[clients], np.maximum(self.begins[clients], at), np.inf)

    def state(self, clients: Any, at: Any) -> Any:
        there = self.available(clients, at)
        return there, np.where(there, self.leaves(clients, at), self.returns(clients, at))


def test_a_place_that_nobody_can_take_is_offered_again(games: Games, setup: Setup, longest: float) -> None:
    """One of two leaves early, when the third client isn't there yet: it is asked before the other is back."""
    options = {"policy": "asynchronous", "concurrency": 2, "cohort": 2, "retry": longest / 100}
    played = changed(games.setup(**declared(small(games, image=3))), options)
    for absent in range(3):
        others = [client for client in range(3) if client != absent]
        begins, ends = [0.0] * 3, [float("inf")] * 3
        begins[absent], ends[others[0]] = longest / 10, longest / 20
        shifts: Any = Shifts(begins, ends)
        played = replace(played, fleet=replace(played.fleet, availability=shifts))
        _, journal = games.none(played)
        assert broken_rules(played, journal) == []
        clients = journal.tables["clients"]
        first = min(c["ended_virtual_seconds"] for c in clients if c["client"] == others[1])
        late = min(c["dispatched_virtual_seconds"] for c in clients if c["client"] == absent)
        assert longest / 10 <= late < longest / 8 < first


def test_a_deadline_is_each_clients_own_where_rounds_overlap(games: Games, setup: Setup, longest: float) -> None:
    deadline = longest * 0.6
    for policy in OVERLAPPING:
        options = {"policy": policy, "deadline": deadline, "gate": "everyone", "window": longest, "buffer": 3}
        _, journal = games.none(played := changed(setup, options))
        assert broken_rules(played, journal) == []
        clients = journal.tables["clients"]
        assert {c["outcome"] for c in clients} == {"finished", "late"}
        for client in clients:
            late = client["outcome"] == "late"
            spent = client["ended_virtual_seconds"] - client["dispatched_virtual_seconds"]
            assert spent == pytest.approx(deadline) if late else spent <= deadline


def test_over_selection_ends_with_the_cohorts_number(games: Games, setup: Setup) -> None:
    for events in (False, True):
        played = changed(setup, {"cohort": 4, "over_selection": "50%", "stratify": False})
        _, journal = games.none(played, events=events)
        assert broken_rules(played, journal) == []
        for record in journal.tables["rounds"]:
            mine = [c for c in journal.tables["clients"] if c["round"] == record["round"]]
            assert (len(mine), record["finished"], record["late"]) == (6, 4, 2)
            last = max(c["virtual_seconds"] for c in mine if c["outcome"] == "finished")
            assert all(c["virtual_seconds"] == pytest.approx(last) for c in mine if c["outcome"] == "late")
            assert record["virtual_seconds"] == pytest.approx(last + record["server_seconds"])


# rounds that can't be completed ---------------------------------------------------------------------------------------

NIGHT = {"availability": {"diurnal": {"start": [12, 12], "hours": [1, 1]}}}
"""Everybody is offline at first, from noon on for an hour there."""
EMPTY = {"battery": {"capacity": "1 Wh", "initial": "0%"}}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "phase",
    ["before_download", *(pytest.param(p, marks=pytest.mark.slow) for p in ("download", "training", "truncated"))],
)
def test_a_fleet_of_which_everybody_fails_ends(games: Games, setup: Setup, policy: str, phase: str) -> None:
    played = changed(setup, {"policy": policy, "buffer": 2, "cohort": 3, "window": 5.0}, {"failures": {phase: "100%"}})
    _, journal = games.none(played)
    assert broken_rules(played, journal) == []
    for record in journal.tables["rounds"]:
        assert record["outcome"] == "below quorum" and record["finished"] == 0 < record["failed"]
        if policy in ("asynchronous", "buffered"):
            wanted = 2 if policy == "buffered" else 3
            assert record["failed"] == FLIGHTS_PER_UPDATE * wanted
            # whoever landed last isn't replaced, because the round has given up
            assert record["under_way"] == 2 and record["selected"] == record["failed"] + (record["round"] == 1) * 2
    with pytest.raises(RunError, match="round 1: below quorum .0 updates arrived"):
        games.none(changed(played, {**played.round.model_dump(), "below_quorum": "fail"}))
    waiting = {**played.round.model_dump(), "below_quorum": "wait", "patience": 300.0}
    with pytest.raises(RunError, match="round 1: below quorum"):
        games.none(changed(played, waiting))


@pytest.mark.parametrize("policy", POLICIES)
def test_a_fleet_of_which_nobody_is_there(games: Games, setup: Setup, policy: str) -> None:
    rounds = {"policy": policy, "window": 60.0, "retry": 60.0, "buffer": 2}
    for fleet, lasting in ((NIGHT, False), (EMPTY, True)):
        played = changed(setup, rounds, fleet)
        _, journal = games.none(played)
        assert broken_rules(played, journal) == []
        for record in journal.tables["rounds"]:
            assert (record["outcome"], record["selected"], record["unavailable"]) == ("nobody available", 0, 7)
            assert record["virtual_seconds"] == pytest.approx(60 + record["server_seconds"])
        with pytest.raises(RunError, match="round 1: nobody available"):
            games.none(changed(played, {**rounds, "below_quorum": "fail"}))
        waiting = {**rounds, "below_quorum": "wait", "retry": 1800.0}
        if lasting:
            with pytest.raises(RunError, match="round 1: nobody available"):
                games.none(changed(played, {**waiting, "patience": 3600.0}))
        else:
            _, journal = games.none(played := changed(played, waiting))
            assert broken_rules(played, journal) == []
            first = journal.tables["rounds"][0]
            assert first["outcome"] == "completed" and first["virtual_seconds"] >= 12 * 3600


@pytest.mark.parametrize("policy", POLICIES)
def test_nobody_eligible(games: Games, setup: Setup, policy: str) -> None:
    rounds = {"policy": policy, "window": 60.0, "buffer": 2}
    played = changed(setup, rounds, {"budgets": {"memory": "1 kB"}})
    _, journal = games.none(played)
    assert broken_rules(played, journal) == []
    assert [r["outcome"] for r in journal.tables["rounds"]] == ["nobody eligible"] * 3
    assert "clients" not in journal.tables or not journal.tables["clients"]
    for below in ("wait", "fail"):
        with pytest.raises(RunError, match="round 1: nobody eligible"):
            games.none(changed(played, {**rounds, "below_quorum": below}))


def test_a_synchronous_round_below_quorum_asks_again(games: Games, setup: Setup) -> None:
    fleet = {"failures": {"training": "60%"}}
    rounds = {"quorum": 5, "below_quorum": "wait", "retry": 100.0, "patience": 1e6}
    played = changed(setup, rounds, fleet)
    _, journal = games.none(played)
    assert broken_rules(played, journal) == []
    assert {r["outcome"] for r in journal.tables["rounds"]} == {"completed"}
    assert any(r["selected"] > 7 for r in journal.tables["rounds"])
    for record in journal.tables["rounds"]:
        tries = sorted({c["dispatched_virtual_seconds"] for c in journal.tables["clients"]
                        if c["round"] == record["round"]})  # fmt: skip
        assert len(tries) == record["selected"] / 7
        assert all(b - a > 100 for a, b in pairwise(tries))


def test_a_window_below_quorum_goes_on_if_it_is_to_wait(games: Games, setup: Setup, longest: float) -> None:
    rounds = {"policy": "semi-synchronous", "quorum": 7, "window": longest * 0.55, "below_quorum": "wait"}
    played = changed(setup, rounds)
    _, journal = games.none(played)
    assert broken_rules(played, journal) == []
    for record in journal.tables["rounds"]:
        windows = (record["virtual_seconds"] - record["server_seconds"]) / (longest * 0.55)
        assert record["outcome"] == "completed" and record["finished"] >= 7 and windows == pytest.approx(round(windows))
        assert windows > 1.5


def test_places_are_filled_as_clients_come_back_online(games: Games, setup: Setup) -> None:
    """One client flies for hours; the others come one by one in the meantime."""
    fleet = {"availability": {"diurnal": {"start": [0, 6], "hours": [10, 10]}}}
    rounds = {"policy": "buffered", "buffer": 6, "retry": 600.0, "below_quorum": "wait"}
    played = changed(setup, rounds, fleet)
    slow = [replace(d, flops_per_second=d.flops_per_second / 1e6) for d in played.fleet.devices]
    played = replace(played, fleet=replace(played.fleet, devices=tuple(slow)))
    _, journal = games.none(played)
    assert broken_rules(played, journal) == []
    begins = sorted({c["dispatched_virtual_seconds"] for c in journal.tables["clients"]})
    assert len(begins) > 3


# the gate -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
def test_who_is_asked_over_its_memory_budget_runs_out_of_memory(
    tiny: Callable[..., dict[str, Any]], setup: Setup, policy: str
) -> None:
    games = Games(tiny, Predictor())  # without kernels' scratch, by which peaks may be equal on some processors
    _, journal = games.none(setup)
    peaks = {c["client"]: c["peak_memory_bytes"] for c in journal.tables["clients"]}
    budget = sorted(peaks.values())[3]
    over = {client for client, peak in peaks.items() if peak > budget}
    assert 0 < len(over) < 7
    rounds = {"policy": policy, "window": 60.0, "buffer": 3}
    for gate in ("everyone", "eligible"):
        played = changed(setup, {**rounds, "gate": gate}, {"budgets": {"memory": f"{budget} B"}})
        _, journal = games.none(played)
        assert broken_rules(played, journal) == []
        clients = journal.tables["clients"]
        ended = {c["client"] for c in clients if c["outcome"] == "out of memory"}
        assert ended == {c["client"] for c in clients} & over
        assert ended == (over if gate == "everyone" else set())
        assert all(c["phase"] == "compute" for c in clients if c["outcome"] == "out of memory")


# all of it ------------------------------------------------------------------------------------------------------------

FIFO = {"upload": "1 Mbit/s", "sharing": "fifo"}
SHARES = st.sampled_from(["0%", "10%", "25%"])


@pytest.mark.slow(smaller="test_a_run_is_verified_as_it_ends")
@settings(max_examples=50, deadline=None)
@given(
    policy=st.sampled_from(POLICIES),
    cohort=st.sampled_from([1, 3, 0.5, 1.0]),
    failures=st.fixed_dictionaries(dict.fromkeys(("before_download", "download", "upload", "corrupted"), SHARES)),
    deadline=st.sampled_from([None, 0.02, 0.05]),
    link=st.sampled_from(
        [None, {"download": "1 Mbit/s", "upload": "500 kbit/s"}, {"upload": "1 Mbit/s", "sharing": "fifo"}]
    ),
    battery=st.sampled_from([None, {"capacity": "1 Wh", "initial": "0.0001..0.01%"}]),
    availability=st.sampled_from(["always", {"markov": {"on": 0.2, "off": 0.1}}]),
    seed=st.integers(0, 3),
)
def test_any_fleet_under_any_policy_keeps_the_rules(
    games: Games, setup: Setup, policy: str, cohort: Any, failures: Any, deadline: Any, link: Any, battery: Any,
    availability: Any, seed: int,
) -> None:  # fmt: skip
    rounds = {"policy": policy, "cohort": cohort, "deadline": deadline, "window": 0.04, "buffer": 2, "retry": 0.05}
    fleet = {"failures": failures, "server_link": link, "battery": battery, "availability": availability}
    played = changed(replace(setup, seed=seed), {**rounds, "gate": "everyone"}, fleet, jitter=0.4)
    simulation, journal = games.none(played)
    assert broken_rules(played, journal) == []
    assert most_under_way(journal.tables.get("clients", [])) <= sum(simulation.run.parts.setup.seats(1).values())
    _, again = games.none(played)
    # the tests' predictor is shared, and tells what kernels take when it is asked first
    assert {**again.tables, "scratch": []} == {**journal.tables, "scratch": []}


# stages ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", ["layerwise", pytest.param("progressive", marks=pytest.mark.slow)])
@pytest.mark.parametrize("policy", ["buffered", *(pytest.param(p, marks=pytest.mark.slow) for p in OVERLAPPING[::2])])
def test_an_update_of_an_earlier_stage_changes_only_what_trains_now(
    games: Games, longest: float, schedule: str, policy: str
) -> None:
    """It was begun with the first block and lands when the second trains: its first block isn't asked for any more."""
    data = small(games, image=4)["data"]
    made = games.setup(data=data, schedule={"name": schedule, "stages": 2, "rounds": 4})
    played = changed(made, {"policy": policy, "window": longest * 0.6, "buffer": 2, "cohort": 4}, {}, jitter=0.5)
    simulation, journal = games.real(played)
    assert broken_rules(played, journal) == []
    clients = journal.tables["clients"]
    for client in clients:
        assert client["stage"] == played.schedule.stage(client["base_round"]).index
    late = [c for c in clients if c["stage"] == 1 and c["round"] > 2 and c["outcome"] == "finished"]
    assert late
    first, second = journal.states[2][0], simulation.state
    frozen = [a for a in second.tensors if not played.schedule.stages[1].is_active(a.split("/", 1)[1])]
    assert_equal_tensors({a: second.tensors[a] for a in frozen}, {a: first[a] for a in frozen})
    for address in frozen:
        assert second.versions[address] == journal.states[2][1]["versions"][address]
    # what both stages train is aggregated: the head was changed once more for each aggregation
    heads = [a for a in second.tensors if ".head." in a]
    completed = sum(r["outcome"] == "completed" for r in journal.tables["rounds"])
    wanted = len([c for c in clients if c["outcome"] == "finished"]) if policy == "asynchronous" else completed
    assert {second.versions[a] for a in heads} == {wanted}
